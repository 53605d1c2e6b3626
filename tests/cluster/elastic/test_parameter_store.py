"""The parameter store: pinned versions, gradients that count once, sums by interval, and bounds."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from headrace.cluster import ParameterStore, Task


def descend(weights, total):
    """In place, as torch's optimizers do."""
    return {name: weight.sub_(total[name]) for name, weight in weights.items()}


def store_of(intervals, versions="flush", update_every=None, **weights):
    weights = weights or {"w": torch.zeros(1)}
    return ParameterStore(weights, descend, intervals=range(intervals), versions=versions, update_every=update_every)


def train(store, interval, epoch, value=1.0):
    """One task is a whole pass: a model of one layer."""
    task = Task.parse(f"{epoch}.t0.{interval}")
    store.pin(task)
    return store.add(task, {"w": torch.tensor([value])})


def step(store, **options):
    total = store.take(**options)
    return None if total is None else store.step(total)


def test_a_pass_reads_one_version():
    store = store_of(2, "stash", update_every=1)
    assert store.pin(Task.parse("0.f0.0")) == 0
    train(store, 1, 0)
    assert step(store) == 1
    assert store.weights()["w"] == -1
    assert [store.pin(Task.parse(text)) for text in ("0.f0.0", "0.t1.0", "0.b0.0")] == [0, 0, 0]
    assert store.weights(0)["w"] == 0  # the update was in place, and did not touch the pinned version
    store.add(Task.parse("0.t1.0"), {})
    store.add(Task.parse("0.b0.0"), {})
    assert store.live == 1
    with pytest.raises(KeyError, match=r"version 0 of the weights does not live: \[1\] do"):
        store.weights(0)


def test_gradients_count_once():
    store = store_of(2)
    turn, back = Task.parse("0.t1.0"), Task.parse("0.b0.0")
    store.pin(Task.parse("0.f0.0"))
    gradients = {"w": torch.ones(1)}
    assert [store.add(turn, gradients), store.add(turn, gradients)] == [True, False]
    assert [store.add(back, gradients), store.add(back, gradients), store.add(turn, gradients)] == [True, False, False]
    train(store, 1, 0)
    step(store)
    assert store.weights()["w"] == -3
    assert not store.add(back, gradients)  # after the step, too
    store.pin(Task.parse("1.f0.0"))
    assert not store.add(back, gradients)  # and when its interval is in the next epoch
    assert store.duplicates == 5


@given(st.permutations(range(6)))
def test_sums_do_not_depend_on_arrival(arrival):
    values = torch.logspace(-8, 8, 6) * torch.tensor([1, -1, 1, 1, -1, 1])
    expected = torch.zeros(1)
    for value in values:
        expected = expected + value
    store = store_of(6)
    for interval in arrival:
        train(store, interval, 0, values[interval].item())
    assert torch.equal(store.take()["w"], expected)


def test_the_parts_of_a_pass_are_added_in_its_order():
    store = store_of(1, w=torch.zeros(1), unused=torch.ones(2))
    store.pin(Task.parse("0.f0.0"))
    for text, value in (("0.t2.0", 1e8), ("0.b1.0", -1e8), ("0.b0.0", 1.0)):
        store.add(Task.parse(text), {"w": torch.tensor([value])})
    total = store.take()
    assert total["w"] == 1
    assert torch.equal(total["unused"], torch.zeros(2))  # every server sends the same shapes


def test_a_sum_is_no_gradient_of_the_caller():
    store, gradient = store_of(1), torch.ones(1)
    store.pin(Task.parse("0.t0.0"))
    store.add(Task.parse("0.t0.0"), {"w": gradient})
    store.take()["w"].add_(5)
    assert gradient == 1


def test_flush_steps_once_an_epoch_in_place():
    weights = {"w": torch.zeros(1)}
    store = ParameterStore(weights, descend, intervals=[3, 7])
    for epoch in range(3):
        train(store, 7, epoch)
        assert store.take() is None
        train(store, 3, epoch)
        assert step(store) == epoch + 1
    assert weights["w"] == -6
    assert (store.most_versions, store.most_bytes) == (1, 4)


def test_flush_steps_when_nobody_reads():
    """A validation of the newest weights goes on beside the next epoch, whose step waits for its end."""
    store = store_of(1)
    validation = Task.parse("0.v0.0")
    assert store.pin(validation) == 0
    train(store, 0, 1)
    assert store.take() is None
    assert store.pin(Task.parse("0.v1.0")) == 0
    store.release(validation)
    assert step(store) == 1


def test_with_flush_nobody_starts_before_the_update():
    store = store_of(1)
    train(store, 0, 0)
    total = store.take()
    assert store.take() is None
    with pytest.raises(RuntimeError, match="step first"):
        store.pin(Task.parse("1.t0.0"))
    store.step(total)
    assert store.pin(Task.parse("1.t0.0")) == 1


def test_sums_are_taken_one_at_a_time():
    store = store_of(1, "stash")
    train(store, 0, 0)
    total = store.take()
    train(store, 0, 1)
    assert store.take() is None
    store.step(total)
    assert step(store) == 2


def test_stash_has_a_version_for_each_interval_and_the_newest():
    store = store_of(3, "stash", update_every=1)
    store.pin(Task.parse("0.f0.0"))
    train(store, 2, 0)
    step(store)
    store.pin(Task.parse("0.f0.1"))
    for epoch in range(1, 5):
        train(store, 2, epoch)
        step(store)
    store.pin(Task.parse("5.f0.2"))
    assert (store.live, store.versions.live) == (3, 4)
    store.step({"w": torch.ones(1)})  # the sum of another server
    assert (store.live, store.most_versions, store.most_bytes) == (4, 4, 16)
    assert not store.may_step


def test_a_step_that_breaks_the_bound_is_refused():
    store = store_of(1)
    store.pin(Task.parse("0.f0.0"))
    assert not store.may_step
    with pytest.raises(RuntimeError, match=r"versions \[0\] are pinned, and flush has room for 1"):
        store.step({"w": torch.ones(1)})


def test_double_buffer_waits_for_the_version_before():
    store = store_of(2, "double_buffer")
    store.pin(Task.parse("0.f0.0"))
    train(store, 1, 0)
    train(store, 1, 1)
    assert step(store) == 1
    train(store, 1, 2)
    train(store, 1, 3)
    assert step(store) is None  # interval 0 reads version 0, and version 1 may be pinned
    store.add(Task.parse("0.b0.0"), {"w": torch.ones(1)})
    assert step(store) == 2
    assert (store.weights()["w"].item(), store.most_versions) == (-5, 2)


def test_the_rest_is_taken_at_the_end():
    store = store_of(2, "stash", update_every=3)
    assert store.take(rest=True) is None
    train(store, 0, 0)
    assert store.take() is None
    assert step(store, rest=True) == 1


def test_settled_weights_are_flushed():
    store = store_of(2, "stash", update_every=1)
    train(store, 0, 0)
    with pytest.raises(RuntimeError, match="gradients wait"):
        store.settle()
    step(store)
    store.settle()
    assert (store.versions.kind, store.versions.m, store.versions.live) == ("flush", 2, 1)


def test_an_update_that_fails_leaves_the_weights():
    def fails(weights, total):
        raise FloatingPointError("overflow")

    store = ParameterStore({"w": torch.ones(1)}, fails, intervals=[0])
    train(store, 0, 0)
    with pytest.raises(FloatingPointError):
        store.step(store.take())
    assert (store.version, store.weights()["w"].item()) == (0, 1)


def test_parameters_of_a_model_are_held_without_a_graph():
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)

    def update(weights, total):
        for name, parameter in model.named_parameters():
            parameter.data, parameter.grad = weights[name], total[name]
        optimizer.step()
        return dict(model.named_parameters())

    store = ParameterStore(dict(model.named_parameters()), update, intervals=[0, 1], versions="stash", update_every=1)
    before = store.weights(store.pin(Task.parse("0.f0.1")))["weight"]
    kept = before.clone()
    store.pin(Task.parse("0.t0.0"))
    store.add(Task.parse("0.t0.0"), {"weight": torch.ones(1, 2), "bias": torch.ones(1)})
    step(store)
    assert torch.equal(before, kept)
    assert torch.equal(store.weights()["weight"], model.weight)
    assert not torch.equal(model.weight, kept)
    assert not store.weights()["weight"].requires_grad


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0,), "at least one interval"),
        ((2, "newest"), "versions must be flush, stash or double_buffer, not 'newest'"),
        ((2, "flush", 1), "flush updates once an epoch, after all 2 intervals, not after 1: use stash"),
        ((4, "double_buffer", 3), "update_every of 4, its intervals, or more, not 3"),
        ((2, "stash", 0), "at least 1"),
    ],
)
def test_wrong_arguments_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        store_of(*arguments)


def test_tasks_out_of_turn_are_refused():
    store = store_of(1)
    with pytest.raises(ValueError, match=r"0\.b0\.0 has no pinned weights"):
        store.pin(Task.parse("0.b0.0"))
    with pytest.raises(ValueError, match="has pinned no weights for this epoch"):
        store.add(Task.parse("0.b0.0"), {})
    store.pin(Task.parse("0.f0.0"))
    with pytest.raises(ValueError, match=r"1\.f0\.0 needs weights while its interval is in epoch 0"):
        store.pin(Task.parse("1.f0.0"))
    with pytest.raises(ValueError, match=r"0\.f0\.0 has no gradients"):
        store.add(Task.parse("0.f0.0"), {})
    with pytest.raises(ValueError, match="not of an own interval"):
        store.pin(Task.parse("0.f0.1"))
    with pytest.raises(ValueError, match="is no validation"):
        store.release(Task.parse("0.f0.0"))
