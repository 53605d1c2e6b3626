import os
import random
import signal
import time

import pytest
import torch

import headrace as hr
import warm
from headrace.train import Run, Watcher, node
from training_cases import MODELS, StopAt, StoppedError, assert_same_run, assert_same_weights, ctrl_c_at, lasting, small

WAYS = [
    *(pytest.param({"model": model}, id=f"{model} on samples") for model in MODELS),
    pytest.param({"model": "gcn", "full_batch": True, "epochs": 5}, id="gcn on the whole graph"),
    pytest.param({"optimizer": "sgd", "norm": "batch", "schedule": "cosine", "warmup": 1.0}, id="sgd, batch norm and a schedule"),
]


@pytest.fixture(scope="module")
def data() -> hr.Dataset:
    return hr.generate.community(nodes=600, edges=6000, classes=3, features=8, seed=2, splits=(0.3, 0.2, 0.5))


def options_of(way, **changes):
    return small(**{"epochs": 2, "dropout": 0.5, "checkpoint_seconds": 0.0, "log_every": 1, **way, **changes})


@pytest.fixture(scope="module", params=WAYS)
def whole(request, data, tmp_path_factory):
    """A run that was never stopped: its options, its directory, and how many steps and validations it took."""
    place = tmp_path_factory.mktemp("whole") / "run"
    seen = Counter()
    node(data, options=options_of(request.param), out=place, watcher=seen)
    return request.param, place, seen


class Counter(Watcher):
    def __init__(self):
        self.count = {"begin": 0, "step": 0, "validating": 0, "epoch": 0, "end": 0}
        self.places = []

    def begin(self, header, *, epoch, batch, **where):
        self.count["begin"] += 1
        self.places.append((epoch, batch))

    def step(self, event, clock):
        self.count["step"] += 1

    def validating(self, done, total):
        self.count["validating"] += 1

    def epoch(self, facts):
        self.count["epoch"] += 1

    def end(self, facts):
        self.count["end"] += 1


def test_a_run_that_dies_at_any_batch_ends_as_one_that_did_not(data, whole, tmp_path):
    way, reference, seen = whole
    for number in range(1, seen.count["step"] + 1):
        place = tmp_path / str(number)
        with pytest.raises(StoppedError):
            node(data, options=options_of(way), out=place, watcher=StopAt("step", number))
        node(data, options=options_of(way), out=place, resume=True)
        assert_same_run(place, reference)


def test_ctrl_c_at_any_batch_writes_a_checkpoint_to_go_on_from(data, whole, tmp_path):
    way, reference, seen = whole
    options = options_of(way, checkpoint_seconds=1e9)  # none but those that Ctrl-C writes
    batches = seen.count["step"] // seen.count["epoch"]
    for number in range(1, seen.count["step"] + 1):
        place, again = tmp_path / str(number), Counter()
        with pytest.raises(KeyboardInterrupt):
            node(data, options=options, out=place, watcher=ctrl_c_at("step", number))
        node(data, options=options, out=place, resume=True, watcher=again)
        assert_same_run(place, reference)
        assert again.places == [((number - 1) // batches, (number - 1) % batches + 1)]
        assert again.count["step"] == seen.count["step"] - number


def test_a_run_that_stops_between_batches_ends_as_one_that_did_not(data, tmp_path):
    """As it begins, at any moment of a validation, at the end of an epoch, and when all is done."""
    seen = Counter()
    node(data, options=options_of({}), out=tmp_path / "whole", watcher=seen)
    for kind in ("begin", "validating", "epoch", "end"):
        for number in range(1, seen.count[kind] + 1):
            place, stopped = tmp_path / f"{kind}-{number}", tmp_path / f"{kind}-{number}-stopped"
            with pytest.raises(StoppedError):
                node(data, options=options_of({}), out=place, watcher=StopAt(kind, number))
            node(data, options=options_of({}), out=place, resume=True)
            assert_same_run(place, tmp_path / "whole")
            if kind == "begin":
                continue  # Ctrl-C is the caller's until the run goes
            with pytest.raises(KeyboardInterrupt):
                node(data, options=options_of({}, checkpoint_seconds=1e9), out=stopped, watcher=ctrl_c_at(kind, number))
            assert Run(stopped).has_checkpoint()
            node(data, options=options_of({}), out=stopped, resume=True)
            assert_same_run(stopped, tmp_path / "whole")


def test_the_handlers_of_signals_are_put_back(data, tmp_path):
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with pytest.raises(KeyboardInterrupt):
        node(data, options=options_of({}), watcher=ctrl_c_at("step", 1))
    node(data, options=options_of({}))
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def test_a_run_goes_on_after_any_number_of_stops(data, whole, tmp_path):
    way, reference, seen = whole
    place = tmp_path / "run"
    for stop in range(seen.count["step"]):
        with pytest.raises(KeyboardInterrupt):
            node(data, options=options_of(way), out=place, resume=stop > 0, watcher=ctrl_c_at("step", 1))
    node(data, options=options_of(way), out=place, resume=True)
    assert_same_run(place, reference)


def test_a_request_to_terminate_is_taken_as_ctrl_c(data, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        node(data, options=options_of({}), out=tmp_path / "run", watcher=StopAt("step", 2, signal.SIGTERM))
    assert Run(tmp_path / "run").load_checkpoint()["state"]["step"] == 2


def test_a_second_ctrl_c_stops_within_a_step(data, tmp_path):
    class Twice(Watcher):
        def step(self, event, clock):
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(5)  # signals are handled before this is over

    begin = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        node(data, options=options_of({}), out=tmp_path / "run", watcher=Twice())
    assert time.monotonic() - begin < 5
    assert not Run(tmp_path / "run").has_checkpoint()


def test_a_run_without_a_directory_is_interrupted_too(data):
    with pytest.raises(KeyboardInterrupt):
        node(data, options=options_of({}), watcher=ctrl_c_at("step", 1))


def test_the_optimizer_is_part_of_a_checkpoint(data, tmp_path):
    """Forgotten, it gives another end: the comparison of runs above would see it."""
    options, place = options_of({}), tmp_path / "run"
    node(data, options=options, out=tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        node(data, options=options, out=place, watcher=ctrl_c_at("step", 3))
    run = Run(place)
    state = run.load_checkpoint()
    state["optimizer"]["state"] = {}
    run.save_checkpoint({name: value for name, value in state.items() if name != "log_position"})
    node(data, options=options, out=place, resume=True)
    with pytest.raises(AssertionError):
        assert_same_run(place, tmp_path / "whole")


def test_dropout_depends_on_seed_epoch_and_batch_alone(data, tmp_path):
    """Numbers that somebody else draws from torch between two batches change nothing."""

    class Draws(Watcher):
        def step(self, event, clock):
            torch.rand(event.step)

    options = options_of({"dropout": 0.5})
    node(data, options=options, out=tmp_path / "whole")
    node(data, options=options, out=tmp_path / "run", watcher=Draws())
    assert_same_run(tmp_path / "run", tmp_path / "whole")


def test_a_finished_run_that_is_resumed_gives_its_result_again(data, tmp_path):
    place, seen = tmp_path / "run", Counter()
    first = node(data, options=options_of({}), out=place)
    files = {file: file.read_bytes() for file in place.rglob("*") if file.is_file()}
    again = node(data, options=options_of({}), out=place, resume=True, watcher=seen)
    assert again.summary() == first.summary()
    assert_same_weights(again.model.state_dict(), first.model.state_dict())
    assert seen.count["step"] == 0
    assert {file: file.read_bytes() for file in place.rglob("*") if file.is_file()} == files


def test_a_run_that_has_no_checkpoint_yet_starts_over(data, tmp_path):
    node(data, options=options_of({}), out=tmp_path / "whole")
    place = tmp_path / "run"
    with pytest.raises(StoppedError):
        node(data, options=options_of({}, checkpoint_seconds=1e9), out=place, watcher=StopAt("step", 4))
    assert not Run(place).has_checkpoint()
    assert len(Run(place).metrics("step")) == 4  # lines that are to be forgotten
    node(data, options=options_of({}), out=place, resume=True)
    assert_same_run(place, tmp_path / "whole")


def test_repeats_go_on_with_the_one_that_was_stopped(data, tmp_path):
    options = options_of({}, repeats=3)
    whole = node(data, options=options, out=tmp_path / "whole")
    steps = 2 * 3
    for number in (2, steps + 2, 2 * steps + 5):
        place = tmp_path / str(number)
        with pytest.raises(StoppedError):
            node(data, options=options, out=place, watcher=StopAt("step", number))
        result = node(data, options=options, out=place, resume=True)
        assert (result.test_accuracy, result.val_accuracy) == (whole.test_accuracy, whole.val_accuracy)
        for repeat in range(3):
            found, wanted = (Run(top / f"repeat-{repeat}") for top in (place, tmp_path / "whole"))
            assert_same_weights(found.load_checkpoint("best")["model"], wanted.load_checkpoint("best")["model"])
            assert lasting(found.metrics()) == lasting(wanted.metrics())
        again = node(data, options=options, out=place, resume=True)
        assert again.summary() == result.summary()


def test_a_repeat_that_was_killed_before_it_wrote_anything_starts_over(data, tmp_path):
    options = options_of({}, repeats=2)
    whole = node(data, options=options, out=tmp_path / "whole")
    with pytest.raises(StoppedError):
        node(data, options=options, out=tmp_path / "run", watcher=StopAt("end", 1))
    (tmp_path / "run" / "repeat-1" / "checkpoints").mkdir(parents=True)
    assert node(data, options=options, out=tmp_path / "run", resume=True).test_accuracy == whole.test_accuracy


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("lr", 0.5),
        ("hidden", 8),
        ("seed", 9),
        ("fanout", (5, 4)),
        ("model", "gcn"),
        ("dropout", 0.1),
        ("repeats", 2),
    ],
)
def test_other_options_than_the_run_began_with_are_refused_by_name(data, tmp_path, name, value):
    place = tmp_path / "run"
    with pytest.raises(StoppedError):
        node(data, options=options_of({}), out=place, watcher=StopAt("step", 2))
    before = Run(place).load_checkpoint()
    with pytest.raises(ValueError, match=rf"was begun with {name} .*resume with the same options"):
        node(data, options=options_of({}, **{name: value}), out=place, resume=True)
    assert Run(place).load_checkpoint()["state"] == before["state"]


def test_options_that_change_no_result_may_differ(data, tmp_path):
    node(data, options=options_of({}), out=tmp_path / "whole")
    place = tmp_path / "run"
    with pytest.raises(StoppedError):
        node(data, options=options_of({}, staleness=0), out=place, watcher=StopAt("step", 3))
    node(data, options=options_of({}, staleness=3, checkpoint_seconds=5.0), out=place, resume=True)
    assert_same_run(place, tmp_path / "whole")


def test_another_dataset_than_the_run_began_with_is_refused(data, tmp_path):
    place = tmp_path / "run"
    with pytest.raises(StoppedError):
        node(data, options=options_of({}), out=place, watcher=StopAt("step", 2))
    for name, changes in (
        ("nodes", {"nodes": 601}),
        ("edges", {"edges": 5000}),
        ("features", {"features": 9}),
        ("classes", {"classes": 4}),
    ):
        other = hr.generate.community(**{"nodes": 600, "edges": 6000, "classes": 3, "features": 8, **changes})
        with pytest.raises(ValueError, match=f"another dataset: it had {name}"):
            node(other, options=options_of({}), out=place, resume=True)


def test_only_a_run_can_be_resumed(data, tmp_path):
    with pytest.raises(FileNotFoundError, match="is no run"):
        node(data, options=options_of({}), out=tmp_path / "nothing", resume=True)
    with pytest.raises(ValueError, match="resume goes on with the run at out"):
        node(data, options=options_of({}), resume=True)


def test_a_damaged_checkpoint_is_named_and_nothing_is_lost(data, tmp_path):
    place = tmp_path / "run"
    with pytest.raises(StoppedError):
        node(data, options=options_of({}), out=place, watcher=StopAt("step", 3))
    file = place / "checkpoints" / "last.pt"
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
    log = (place / "metrics.jsonl").read_bytes()
    with pytest.raises(hr.train.CheckpointError, match=r"last\.pt is damaged or no checkpoint"):
        node(data, options=options_of({}), out=place, resume=True)
    assert (place / "metrics.jsonl").read_bytes() == log


# A process that is killed for good.

DATASET = "generate:community?nodes=1500&edges=20000&classes=4&features=16&seed=3&splits=0.5,0.2,0.3"
COMMAND = [
    "train",
    "node",
    DATASET,
    "--fanout",
    "4,4",
    "--hidden",
    "16",
    "--batch-size",
    "100",
    "--epochs",
    "6",
    "--dropout",
    "0.5",
]
COMMAND += ["--threads", "1", "--log-every", "1", "--checkpoint-seconds", "0", "--json"]
STEPS = 6 * 8


def start(place, *more) -> warm.Python:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    said = place.with_suffix(".said")
    return warm.Python("-m", "headrace", *COMMAND, "--out", str(place), *more, said=said, environment=environment)


def finish(process: warm.Python, place) -> None:
    assert process.wait(120) == 0, place.with_suffix(".said").read_text()


def lines_of(place) -> int:
    file = place / "metrics.jsonl"
    return file.read_bytes().count(b"\n") if file.exists() else 0


def kill_and_resume(place, kills: int, seed: int) -> int:
    """Run to the end, killed on the way; returns how often."""
    draw = random.Random(seed)
    process, killed = start(place), 0
    while killed < kills:
        until = lines_of(place) + draw.randint(1, max(STEPS // (kills + 1), 1))
        while process.poll() is None and lines_of(place) < until:
            time.sleep(0.002)
        time.sleep(draw.uniform(0, 0.03))  # anywhere in a step, or while a checkpoint is written
        if process.poll() is not None:
            break
        process.kill()
        process.wait()
        killed += 1
        process = start(place, "--resume")
    finish(process, place)
    return killed


@pytest.fixture(scope="module")
def unkilled(tmp_path_factory):
    place = tmp_path_factory.mktemp("unkilled") / "run"
    finish(start(place, "--checkpoint-seconds", "60"), place)
    return place


@pytest.mark.parametrize(("kills", "seed"), [(2, 0), pytest.param(10, 1, marks=pytest.mark.slow)])
def test_a_process_that_is_killed_again_and_again_ends_as_one_that_was_not(unkilled, tmp_path, kills, seed):
    place = tmp_path / "run"
    assert kill_and_resume(place, kills, seed) >= min(kills, 2)
    assert_same_run(place, unkilled)
    assert [line["epoch"] for line in Run(place).metrics("epoch")] == list(range(6))
    assert [line["step"] for line in Run(place).metrics("step")] == list(range(1, STEPS + 1))


class AtFirstStep(Watcher):
    """Does something at the first step."""

    def __init__(self, work):
        self.work = work

    def step(self, event, clock):
        work, self.work = self.work, None
        if work is not None:
            work()


@pytest.mark.parametrize("repeats", [1, 2])
def test_a_run_that_is_under_way_cannot_be_resumed(data, tmp_path, repeats):
    options, place = options_of({"model": "sage"}, repeats=repeats), tmp_path / "run"
    refusals = []

    def resume():
        with pytest.raises(BlockingIOError, match=r"is in use by process \d+ on .* since"):
            node(data, options=options, out=place, resume=True)
        refusals.append(True)

    node(data, options=options, out=tmp_path / "alone")
    node(data, options=options, out=place, watcher=AtFirstStep(resume))
    assert refusals
    for folder in ["repeat-0", "repeat-1"] if repeats > 1 else [""]:
        assert lasting(Run(place / folder).metrics()) == lasting(Run(tmp_path / "alone" / folder).metrics())
    assert not list(place.rglob(".lock"))
    node(data, options=options, out=place, resume=True)


@pytest.mark.parametrize("place", [{}, {"storage": "disk", "partitions": 4, "buffer": 2}], ids=["in memory", "on disk"])
def test_a_link_run_that_is_under_way_cannot_be_resumed(tmp_path, place):
    data = hr.generate.community(nodes=200, edges=2000, classes=3, features=4, seed=2)
    options = hr.train.LinkOptions(dim=8, epochs=1, batch_size=256, negatives=16, threads=1, **place)
    refusals = []

    def resume():
        with pytest.raises(BlockingIOError, match=r"is in use by process \d+ on .* since"):
            hr.train.link(data, options=options, out=tmp_path / "run", resume=True)
        refusals.append(True)

    hr.train.link(data, options=options, out=tmp_path / "run", watcher=AtFirstStep(resume))
    assert refusals
