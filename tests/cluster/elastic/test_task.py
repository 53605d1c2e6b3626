"""Tasks: their text, their order, and the stages of an interval."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.cluster import Task
from headrace.cluster.elastic import Direction, stages

TASKS = st.builds(Task, st.integers(0, 10**6), st.integers(0, 99), st.sampled_from(Direction), st.integers(0, 10**9))


@given(TASKS)
def test_a_task_is_what_its_text_says(task):
    assert Task.parse(str(task)) == task
    assert hash(Task.parse(str(task))) == hash(task)


@pytest.mark.parametrize("text", ["", "3.b1", "3.b1.12.4", "3.x1.12", "-1.b1.12", "3.b1.12\n", "3.b.12", "٣.b1.12", " 3.b1.12"])
def test_other_text_is_refused(text):
    with pytest.raises(ValueError, match=r"such as 3\.b1\.12"):
        Task.parse(text)


@pytest.mark.parametrize("attention", [False, True])
@pytest.mark.parametrize("layers", [1, 2, 3, 5])
def test_stages_of_an_epoch(layers, attention):
    training, validation = (stages(layers, attention=attention, validate=validate) for validate in (False, True))
    assert len(training) == (2 * layers + 1 if attention else 2 * layers - 1)
    forward, last, backward = training[: len(training) // 2], training[len(training) // 2], training[len(training) // 2 + 1 :]
    assert last == (len(forward), Direction.TURN)
    assert forward == tuple((layer, Direction.FORWARD) for layer in range(len(forward)))
    assert backward == tuple((layer, Direction.BACKWARD) for layer, _ in reversed(forward))
    assert [layer for layer, _ in validation] == [layer for layer, _ in (*forward, last)]
    assert {direction for _, direction in validation} == {Direction.VALIDATE}


def test_a_model_without_layers_is_refused():
    with pytest.raises(ValueError, match="at least 1, not 0"):
        stages(0)


@given(st.integers(1, 4), st.booleans(), st.randoms())
def test_tasks_sort_in_the_order_of_one_worker(layers, attention, random):
    training, validation = (stages(layers, attention=attention, validate=validate) for validate in (False, True))
    tasks = [Task(epoch, *stage, interval) for epoch in range(2) for stage in (*training, *validation) for interval in range(3)]
    shuffled = random.sample(tasks, len(tasks))
    assert sorted(shuffled) == tasks
    assert min(shuffled) == tasks[0] <= tasks[1] < tasks[2]


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_one_task_starts_a_pass_and_one_ends_it(layers):
    training = [Task(0, *stage, 0) for stage in stages(layers)]
    assert [task.starts_pass for task in training] == [True] + [False] * (len(training) - 1)
    assert [task.ends_training for task in training] == [False] * (len(training) - 1) + [True]
    assert [task.has_gradients for task in training] == [False] * (layers - 1) + [True] * layers
    validation = [Task(0, *stage, 0) for stage in stages(layers, validate=True)]
    assert not any(task.has_gradients or task.ends_training for task in validation)


def test_a_task_compares_with_tasks_alone():
    with pytest.raises(TypeError):
        assert Task.parse("0.f0.0") < 3
    assert Task.parse("0.f0.0") != "0.f0.0"
