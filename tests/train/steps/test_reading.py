"""Numbers that training reads, at once or a step later: the same log, the same weights, the same errors."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace as hr
from headrace.nn.node_losses import count_right
from headrace.store.tiers.placed import rows_for
from headrace.train import NodeOptions, Watcher
from headrace.train import recipe as training_recipe
from headrace.train.nodes.node import NodeRecipe
from headrace.train.steps.reading import Reading
from training_cases import assert_same_run, assert_same_weights, small


@pytest.fixture(scope="module")
def data():
    return hr.generate.community(nodes=600, edges=6_000, classes=4, features=8, seed=1, splits=(0.5, 0.2, 0.3))


def test_numbers_on_the_cpu_are_there_at_once():
    loss = torch.tensor(0.25, requires_grad=True) * 2
    reading = Reading(loss, torch.tensor(7), 3, torch.tensor([4.0]))
    assert not reading.on_their_way
    assert reading.take() == reading.take() == [0.5, 7.0, 3.0, 4.0]
    assert all(type(value) is float for value in reading.take())
    assert Reading().take() == []
    assert Reading(torch.tensor(2**53 + 2)).take() == [2.0**53 + 2]  # not rounded as float32


class Far(torch.Tensor):
    """A loss that says it is on a GPU."""

    is_cuda = True


class Late:
    """Numbers that are there when they are taken, and not before."""

    waiting = 0

    def __init__(self, *numbers):
        self.values, self.on_their_way = [float(torch.as_tensor(n).detach()) for n in numbers], True
        Late.waiting += 1

    def take(self):
        if self.on_their_way:
            Late.waiting -= 1
        self.on_their_way = False
        return self.values


@pytest.fixture
def as_on_a_device(monkeypatch):
    """Losses and numbers of a run are as on a GPU."""
    plain = NodeRecipe.loss

    def far(recipe, batch, clock):
        step = plain(recipe, batch, clock)
        return replace(step, loss=step.loss.as_subclass(Far))

    monkeypatch.setattr(NodeRecipe, "loss", far)
    monkeypatch.setattr(training_recipe, "Reading", Late)
    Late.waiting = 0


class Steps(Watcher):
    def __init__(self):
        self.seen, self.waiting = [], []

    def step(self, event, clock):
        self.seen.append(
            (event.epoch, event.batch, event.step, event.loss, tuple(event.measures.items()), event.nodes, event.edges, event.bytes)
        )
        self.waiting.append(Late.waiting)


OPTIONS = {"epochs": 3, "checkpoint_seconds": 0, "log_every": 1, "features": "as_is"}


def test_every_step_is_counted_once_and_in_order(data):
    watcher = Steps()
    hr.train.node(data, options=small(**OPTIONS), watcher=watcher)
    assert [seen[:3] for seen in watcher.seen] == [(n // 5, n % 5 + 1, n + 1) for n in range(15)]


def test_a_run_read_later_is_the_same_run(data, tmp_path, request):
    now, later = Steps(), Steps()
    hr.train.node(data, options=small(**OPTIONS), watcher=now, out=tmp_path / "now")
    request.getfixturevalue("as_on_a_device")
    hr.train.node(data, options=small(**OPTIONS), watcher=later, out=tmp_path / "later")
    assert later.seen == now.seen
    assert_same_run(tmp_path / "later", tmp_path / "now")
    assert Late.waiting == 0


def test_numbers_are_read_when_the_next_step_is_launched(data, as_on_a_device):
    later = Steps()
    hr.train.node(data, options=small(**{**OPTIONS, "checkpoint_seconds": 1000.0}), watcher=later)
    last = [n % 5 == 4 for n in range(15)]  # of an epoch: nothing is launched after it
    assert later.waiting == [0 if end else 1 for end in last]


class Stop(Watcher):
    def step(self, event, clock):
        if event.step == 8:
            raise KeyError("stopped")


def test_a_run_read_later_goes_on_from_its_checkpoint(data, tmp_path, as_on_a_device):
    whole = hr.train.node(data, options=small(**OPTIONS), out=tmp_path / "whole")
    with pytest.raises(KeyError, match="stopped"):
        hr.train.node(data, options=small(**OPTIONS), out=tmp_path / "cut", watcher=Stop())
    resumed = hr.train.node(data, options=small(**OPTIONS), out=tmp_path / "cut", resume=True)
    assert_same_weights(resumed.model.state_dict(), whole.model.state_dict())
    assert_same_run(tmp_path / "cut", tmp_path / "whole")


@pytest.mark.parametrize("at", [0, 2, 4, 5, 14])
def test_a_lost_loss_names_its_batch_also_if_it_is_read_later(data, as_on_a_device, monkeypatch, at):
    plain, calls = NodeRecipe.loss, iter(range(100))

    def lost(recipe, batch, clock):
        step = plain(recipe, batch, clock)
        return replace(step, loss=step.loss * (torch.nan if next(calls) == at else 1.0))

    monkeypatch.setattr(NodeRecipe, "loss", lost)
    with pytest.raises(FloatingPointError, match=f"the loss is nan at epoch {at // 5}, batch {at % 5}"):
        hr.train.node(data, options=small(**{**OPTIONS, "checkpoint_seconds": 1000.0}))


@given(nodes=st.integers(0, 20), classes=st.integers(1, 6), seed=st.integers(0, 1000), share=st.sampled_from([0.0, 0.3, 1.0]))
@settings(max_examples=60, deadline=None)
def test_several_labels_are_counted_by_their_f1(nodes, classes, seed, share):
    draw = torch.Generator().manual_seed(seed)
    rows = torch.randn(nodes, classes, generator=draw)
    labels = torch.rand(nodes, classes, generator=draw) < share
    right = wrong = 0
    for predicted, true in zip((rows > 0).flatten().tolist(), labels.flatten().tolist(), strict=True):
        right += predicted and true
        wrong += predicted != true
    f1 = 2 * right / (2 * right + wrong) if right or wrong else 1.0
    for kind in (torch.bool, torch.float32, torch.int64):
        found = count_right(rows, labels.to(kind))
        assert found.shape == ()
        assert float(found) == pytest.approx(f1 * nodes)


def test_classes_are_counted():
    rows = torch.tensor([[0.1, 2.0], [3.0, 1.0], [0.0, 1.0]])
    for kind in (torch.int64, torch.int32, torch.uint8):
        assert int(count_right(rows, torch.tensor([1, 1, 1], dtype=kind))) == 2
    assert int(count_right(rows[:0], torch.zeros(0, dtype=torch.int64))) == 0
    assert not isinstance(count_right(rows, torch.tensor([1, 1, 1])), float)  # left where it is


@pytest.fixture
def gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)


@pytest.mark.parametrize(
    ("given", "budget"),
    [
        ("auto", None),
        ("20%", 0.2),
        ("0%", 0.0),
        ("100%", 1.0),
        ("12.5 %", 0.125),
        ("4GiB", 4 << 30),
        ("600", 600),
        ("1.5MB", 1_500_000),
    ],
)
def test_a_cache_is_bytes_or_a_share(gpu, given, budget):
    assert NodeOptions(device="cuda", device_cache=given).cache_budget == budget
    assert isinstance(NodeOptions(device="cuda", device_cache=given).cache_budget, type(budget))


@pytest.mark.parametrize("given", ["much", "%", "-20%", "4GiBi", "", "twenty%", "-4GiB"])
def test_what_is_no_cache_is_named(gpu, given):
    with pytest.raises(ValueError, match=r"device_cache must be auto, bytes \(4GiB\) or a share \(20%\), not '" + given):
        NodeOptions(device="cuda", device_cache=given)


@pytest.mark.parametrize("given", ["120%", "0.2", ".5", "0."])
def test_a_share_that_is_none_is_named(gpu, given):
    with pytest.raises(ValueError, match=f"device_cache '{given}' is no share of the features: write 0% to 100%"):
        NodeOptions(device="cuda", device_cache=given)


@pytest.mark.parametrize("device", ["cpu", "cpu:0"])
@pytest.mark.parametrize(
    "given", [{"mode": "gpu"}, {"mode": "uva"}, {"mode": "mixed"}, {"device_cache": "20%"}, {"hot": "probability"}], ids=str
)
def test_what_a_gpu_does_needs_one(device, given):
    with pytest.raises(ValueError, match="mode, device_cache, hot and capture say what a GPU does: they need device cuda"):
        NodeOptions(device=device, **given)
    assert NodeOptions(device=device, mode="cpu").mode == "cpu"


def test_choices_are_named(gpu):
    with pytest.raises(ValueError, match="mode must be one of auto, cpu, uva, gpu, mixed, not 'fast'"):
        NodeOptions(device="cuda", mode="fast")
    with pytest.raises(ValueError, match="hot must be one of degree, probability, not 'size'"):
        NodeOptions(device="cuda", hot="size")


def test_what_is_hot_is_only_found_out_where_not_all_rows_fit(monkeypatch):
    """On a GPU with a certain amount of free memory, for which the CPU stands."""
    rows, here = torch.arange(40.0).view(10, 4), torch.device("cpu")
    memory = []
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (memory[-1], 10**9))

    def order():
        asked.append(True)
        return torch.arange(9, -1, -1)

    for free, cache, hot in [(1000, None, 10), (160, None, 5), (1000, 0.3, 3), (10, 64, 4), (0, None, 0)]:
        asked = []
        memory.append(free)
        store = rows_for(here, rows, cache=cache, order=order)
        ids = torch.tensor([9, 0, 5, 9])
        assert torch.equal(store.gather(ids), rows[ids])
        assert bool(asked) == (hot < 10)
        if hot < 10:
            assert store.use().tiers[0].rows == hot
            assert store.use().tiers[0].hits == int((ids >= 10 - hot).sum())
