"""The schedule: what each flow waits for, and what it makes of losses, duplicates and strangers."""

import pytest

from headrace.cluster.elastic import Schedule, Task, stages

TWO = {0: {0, 1}, 1: {1}}  # interval 0 reads rows of interval 1
TWO_BACK = {0: {0}, 1: {0, 1}}


def two_intervals(flow="pipe", lead=0, layers=2, epochs=range(8), **more):
    return Schedule(stages(layers, **more), TWO, TWO_BACK, intervals=2, epochs=epochs, flow=flow, lead=lead)


def ready(schedule):
    return " ".join(map(str, schedule.ready()))


def do(schedule, text):
    for task in map(Task.parse, text.split()):
        schedule.start(task)
        assert schedule.done(task)


def test_sync_waits_for_all():
    schedule = two_intervals("sync")
    do(schedule, "0.f0.1")
    assert ready(schedule) == "0.f0.0"  # interval 1 reads its own rows alone, and waits all the same
    do(schedule, "0.f0.0")
    assert ready(schedule) == "0.t1.0 0.t1.1"


def test_pipe_waits_for_rows_that_are_read():
    schedule = two_intervals("pipe")
    do(schedule, "0.f0.1 0.t1.1")
    assert ready(schedule) == "0.f0.0"  # going back, interval 1 reads gradients of interval 0
    do(schedule, "0.f0.0 0.t1.0 0.b0.0")
    assert ready(schedule) == "0.b0.1"


@pytest.mark.parametrize("flow", ["sync", "pipe"])
def test_an_exact_epoch_waits_for_the_update(flow):
    schedule = two_intervals(flow)
    do(schedule, "0.f0.0 0.f0.1 0.t1.0 0.t1.1 0.b0.0 0.b0.1")
    assert (ready(schedule), schedule.slowest) == ("", 1)
    schedule.updated(0)
    assert ready(schedule) == "1.f0.0 1.f0.1"


def test_async_waits_for_nothing_but_the_window():
    schedule = two_intervals("async", lead=1)
    do(schedule, "0.f0.0 0.f0.1 0.t1.0 0.t1.1 0.b0.0")
    assert ready(schedule) == "0.b0.1"  # the first epoch is synchronous
    do(schedule, "0.b0.1")
    do(schedule, "1.f0.0 1.t1.0 1.b0.0 2.f0.0 2.t1.0 2.b0.0")
    assert ready(schedule) == "1.f0.1"
    assert (schedule.most_lead, schedule.most_age) == (1, 2)
    do(schedule, "1.f0.1 1.t1.1 1.b0.1")
    assert ready(schedule) == "2.f0.1 3.f0.0"
    assert (schedule.slowest, schedule.fastest) == (2, 2)


def test_the_first_epoch_of_async_waits_for_rows():
    schedule = two_intervals("async", lead=2)
    do(schedule, "0.f0.0")
    assert ready(schedule) == "0.f0.1"
    do(schedule, "0.f0.1")
    assert ready(schedule) == "0.t1.0 0.t1.1"


def test_other_servers_are_waited_for():
    first = Schedule(stages(2), {0: {0, 1}}, {0: {0}}, intervals=2, epochs=range(5, 9))
    do(first, "5.f0.0")
    assert ready(first) == ""
    first.heard(Task.parse("5.f0.1"))
    assert ready(first) == "5.t1.0"
    do(first, "5.t1.0 5.b0.0")
    first.updated(5)
    assert ready(first) == ""
    for text in ("5.t1.1", "5.b0.1", "5.t1.1"):  # a repeated message changes nothing
        first.heard(Task.parse(text))
    assert ready(first) == "6.f0.0"


def test_a_result_counts_once():
    schedule = two_intervals()
    task = Task.parse("0.f0.0")
    schedule.start(task)
    assert [schedule.done(task) for _ in range(3)] == [True, False, False]
    assert schedule.duplicates == 2


def test_a_lost_task_is_launched_again_and_either_result_counts():
    schedule = two_intervals()
    task = Task.parse("0.f0.0")
    assert not schedule.lost(task)  # it has not been launched
    schedule.start(task)
    assert schedule.lost(task)
    assert not schedule.lost(task)  # it is ready already
    assert ready(schedule) == "0.f0.0 0.f0.1"
    schedule.start(task)
    assert schedule.done(task)
    assert not schedule.done(task)
    assert not schedule.lost(task)
    assert (schedule.relaunched, schedule.duplicates) == (1, 1)


def test_a_late_result_makes_a_relaunch_needless():
    schedule = two_intervals()
    task = Task.parse("0.f0.0")
    schedule.start(task)
    schedule.lost(task)
    assert schedule.done(task)
    assert ready(schedule) == "0.f0.1"


def test_it_ends_with_the_last_epoch():
    schedule = Schedule(stages(1), {0: {0}}, {0: {0}}, intervals=1, epochs=range(2))
    do(schedule, "0.t0.0")
    schedule.updated(0)
    assert not schedule.finished
    do(schedule, "1.t0.0")
    assert schedule.finished
    assert ready(schedule) == ""


def test_no_epochs_are_finished_at_once():
    schedule = two_intervals(epochs=range(0))
    assert schedule.finished
    assert ready(schedule) == ""


def test_validation_has_the_same_stages_without_an_update():
    schedule = two_intervals(validate=True, epochs=range(4, 5))
    do(schedule, "4.v0.1 4.v1.1")
    assert ready(schedule) == "4.v0.0"
    do(schedule, "4.v0.0 4.v1.0")
    assert schedule.finished


def test_attention_has_a_task_more_in_each_direction():
    schedule = Schedule(stages(1, attention=True), {0: {0}}, {0: {0}}, intervals=1, epochs=range(1))
    do(schedule, "0.f0.0 0.t1.0 0.b0.0")
    assert schedule.finished


def test_settled_epochs_are_exact():
    schedule = two_intervals("async", lead=2)
    do(schedule, "0.f0.0 0.f0.1 0.t1.0 0.t1.1 0.b0.0 0.b0.1 1.f0.0 1.t1.0 1.b0.0")
    assert ready(schedule) == "1.f0.1 2.f0.0"
    with pytest.raises(ValueError, match=r"epoch 1 has begun.* settle at 2"):
        schedule.settle(1)
    schedule.settle(2)
    assert ready(schedule) == "1.f0.1"
    do(schedule, "1.f0.1 1.t1.1 1.b0.1")
    assert ready(schedule) == ""
    schedule.updated(1)
    assert ready(schedule) == "2.f0.0 2.f0.1"
    do(schedule, "2.f0.0")
    assert ready(schedule) == "2.f0.1"
    assert schedule.most_age == 1


def test_settling_keeps_tasks_that_are_under_way():
    schedule = two_intervals("async")
    schedule.start(Task.parse("0.f0.0"))
    schedule.start(Task.parse("0.f0.1"))
    schedule.lost(Task.parse("0.f0.1"))
    schedule.settle(1)
    assert ready(schedule) == "0.f0.1"
    assert schedule.done(Task.parse("0.f0.0"))
    assert schedule.done(Task.parse("0.f0.1"))
    assert ready(schedule) == "0.t1.0 0.t1.1"


def test_an_interval_that_reads_nobody_goes_on_alone():
    schedule = Schedule(stages(3), {0: set(), 1: set()}, {0: set(), 1: set()}, intervals=2, epochs=range(2))
    do(schedule, "0.f0.0 0.f1.0 0.t2.0 0.b1.0 0.b0.0")
    assert ready(schedule) == "0.f0.1"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"flow": "fast"}, "flow must be sync, pipe or async, not 'fast'"),
        ({"flow": "pipe", "lead": 1}, "flow pipe has no lead, got 1: use flow async"),
        ({"flow": "async", "lead": -1}, "lead must not be negative"),
        ({"epochs": range(0, 9, 2)}, "epochs must follow one another"),
        ({"intervals": 1}, "interval ids must be from 0 to 0, not 1"),
        ({"reads_back": {0: {0}}}, "must have the same keys"),
    ],
)
def test_wrong_arguments_are_refused(arguments, message):
    reads_back = arguments.pop("reads_back", TWO_BACK)
    with pytest.raises(ValueError, match=message):
        Schedule(stages(2), TWO, reads_back, **{"intervals": 2, "epochs": range(8)} | arguments)


def test_tasks_out_of_turn_are_refused():
    schedule = Schedule(stages(2), {0: {0, 1}}, {0: {0}}, intervals=2, epochs=range(8))
    with pytest.raises(ValueError, match=r"0\.t1\.0 is not ready"):
        schedule.start(Task.parse("0.t1.0"))
    with pytest.raises(ValueError, match=r"0\.f0\.0 has a result but was never started"):
        schedule.done(Task.parse("0.f0.0"))
    with pytest.raises(ValueError, match=r"0\.f0\.1 is not of an own interval"):
        schedule.done(Task.parse("0.f0.1"))
    with pytest.raises(ValueError, match=r"0\.f0\.0 is of an own interval: use done"):
        schedule.heard(Task.parse("0.f0.0"))
    for stranger in ("0.f0.2", "8.f0.1", "0.f1.1", "0.v0.1"):
        with pytest.raises(ValueError, match="is none of this schedule"):
            schedule.heard(Task.parse(stranger))
    with pytest.raises(ValueError, match="only async settles"):
        schedule.settle(3)


class Counted(dict):
    looks = 0

    def __getitem__(self, key):
        self.looks += 1
        return super().__getitem__(key)


def test_a_wait_goes_on_where_it_stopped():
    """When n intervals read one another, a stage looks at each pair a few times: looking again from the start would be n^3."""
    count = 100
    everyone = {i: range(count) for i in range(count)}
    schedule = Schedule(stages(2), everyone, everyone, intervals=count, epochs=range(1))
    schedule._done = Counted(schedule._done)
    while tasks := schedule.ready():
        for task in tasks:
            schedule.start(task)
        for task in tasks:
            schedule.done(task)
    assert schedule.finished
    assert schedule._done.looks < 3 * 4 * count**2
