"""Two lanes: a piece in two halves has the rows and gradients of the whole, and a second stream reads nothing before it is made."""

from contextlib import contextmanager
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from cell_cases import CELLS, GROUPS, sequence
from headrace.kernels import aggregate_reference
from headrace.snapshots import Group, KeptSums, Operators
from headrace.snapshots.lanes import Lanes, Turn
from headrace.snapshots.streams import OneStream, TwoStreams


def outcome(cell, rows):
    torch.manual_seed(5)
    gradients = torch.autograd.grad((rows * torch.randn_like(rows)).sum(), list(cell.parameters()), allow_unused=True)
    return rows.detach(), [g for g in gradients if g is not None]


def assert_close(some, others):
    torch.testing.assert_close(some[0], others[0], rtol=1e-7, atol=1e-9)
    for a, b in zip(some[1], others[1], strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("name", CELLS)
@pytest.mark.parametrize("kind", ["one graph", "changing graphs", "changing nodes"])
def test_lanes_have_the_rows_and_gradients_of_the_whole(name, kind):
    cell, snapshots = CELLS[name]().double(), sequence(kind)
    snapshots.x = [part.double() for part in snapshots.x]
    for kept in (None, KeptSums()):
        operators = Operators(cell, snapshots, kept=kept)
        expected = outcome(cell, operators.rows(GROUPS))
        for count in (1, 2, 5):
            assert_close(outcome(cell, Lanes(operators, count=count).rows(GROUPS)), expected)


class Told(OneStream):
    """Keeps what was done in which order."""

    def __init__(self):
        self.done = []

    def issue(self, left):
        self.done.append("sum")
        return super().issue(left)

    def take(self, issued):
        self.done.append("products")
        return super().take(issued)


@pytest.mark.parametrize("name", ["tgcn", "gclstm"])
def test_a_lane_sums_before_the_other_multiplies(name):
    told, snapshots = Told(), sequence("one graph")
    Lanes(Operators(CELLS[name](), snapshots), told).rows([Group(0, 3), Group(1, 3)])
    assert told.done.count("sum") == told.done.count("products") == 6
    assert told.done[:3] == ["sum", "sum", "products"] or told.done[:3] == ["sum", "products", "sum"]
    ahead = [told.done[:end].count("sum") - told.done[:end].count("products") for end in range(1, 12)]
    assert min(ahead[:-2]) >= 0
    assert max(ahead) <= 3
    pairs = list(zip(told.done, told.done[1:], strict=False))
    assert ("products", "products") not in pairs[:-2]  # there is a sum between any two


def test_the_order_never_changes_a_result():
    cell, snapshots = CELLS["gconv_gru"](), sequence("changing graphs")
    operators = Operators(cell, snapshots)
    expected = outcome(cell, Lanes(operators).rows(GROUPS))
    for order in ([], [Turn(1, 0, "dense", False)] * 9, [Turn(lane, at, "graph", True) for at in (2, 2, 0) for lane in (1, 0)]):
        lanes = Lanes(operators)
        lanes.order = lambda chains, order=order: order
        found = outcome(cell, lanes.rows(GROUPS))
        assert torch.equal(found[0], expected[0])
        for a, b in zip(found[1], expected[1], strict=True):
            torch.testing.assert_close(a, b)


class Stream:
    """A stream as clocks: how much of each stream is known to have come before what follows here."""

    device = torch.device("cpu")

    def __init__(self, *_, **__):
        self.clock, self.time = {self: 0}, 0.0

    def record_event(self):
        return SimpleNamespace(clock=dict(self.clock), time=self.time)

    def wait_event(self, event):
        self.time = max(self.time, event.time)
        for stream, count in event.clock.items():
            self.clock[stream] = max(self.clock.get(stream, 0), count)

    def wait_stream(self, other):
        self.wait_event(other.record_event())


_SECONDS = {"mm": 1.0, "addmm": 1.0, "index_add": 2.0, "index_put": 2.0}  # of products, and of a sum: other operators take none


class Machine(TorchDispatchMode):
    """Every operator runs on the current stream, and must come after what made the memory that it reads, wherever that ran."""

    def __init__(self):
        super().__init__()
        self.current = Stream()
        self.writers, self.early, self.ran, self.kept, self.busy = {}, [], {}, [], 0.0

    @contextmanager
    def on(self, stream):
        before, self.current = self.current, stream
        try:
            yield
        finally:
            self.current = before

    def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
        result = function(*arguments, **(keywords or {}))
        read = {t.untyped_storage().data_ptr() for t in _flat((arguments, keywords or {})) if t.numel()}
        for memory in read & self.writers.keys():
            stream, count = self.writers[memory]
            if self.current.clock.get(stream, 0) < count:
                self.early.append(str(function))
        self.current.clock[self.current] += 1
        self.current.time += _SECONDS.get(function.overloadpacket.__name__, 0.0)
        self.busy += _SECONDS.get(function.overloadpacket.__name__, 0.0)
        self.ran[self.current] = self.ran.get(self.current, 0) + 1
        for made in _flat(result):
            memory = made.untyped_storage().data_ptr()
            if made.numel() and (memory not in read or function._schema.is_mutable):
                self.writers[memory] = self.current, self.current.clock[self.current]
        self.kept.append(result)  # no memory is used twice
        return result


def _flat(values):
    if isinstance(values, torch.Tensor):
        yield values
    elif isinstance(values, (tuple, list)):
        for value in values:
            yield from _flat(value)
    elif isinstance(values, dict):
        yield from _flat(tuple(values.values()))


def on_two_streams(cell, snapshots, **how):
    def summed(x, indptr, indices, weight=None, scale=None, row_scale=None, **_):
        return aggregate_reference(x, indptr, indices, weight=weight, scale=scale, row_scale=row_scale)

    machine = Machine()
    with (
        mock.patch("torch.cuda.Stream", Stream),
        mock.patch("torch.cuda.current_stream", lambda *_: machine.current),  # noqa: PT008 - it changes
        mock.patch("torch.cuda.stream", machine.on),
        mock.patch("headrace.nn.neighbor_sum.aggregate", summed),
        machine,
    ):
        place = TwoStreams(torch.device("cpu"))
        rows = Lanes(Operators(cell, snapshots, **how), place).rows(GROUPS)
        machine.forward = machine.current.time, machine.busy
        found = outcome(cell, rows)
    return machine, place, found


@pytest.mark.parametrize("name", ["tgcn", "gclstm", "gconv_gru", "lrgcn"])
@pytest.mark.parametrize("kind", ["one graph", "changing nodes"])
def test_nothing_is_read_before_it_is_made_on_the_other_stream(name, kind):
    cell, snapshots = CELLS[name]().double(), sequence(kind)
    snapshots.x = [part.double() for part in snapshots.x]
    machine, place, found = on_two_streams(cell, snapshots)
    assert not machine.early
    assert machine.ran[place.stream] > 10
    assert machine.ran[machine.current] > 10
    assert machine.current.clock[place.stream] == place.stream.clock[place.stream]  # it has waited for all of the other's work
    assert_close(found, outcome(cell, Operators(cell, snapshots).rows(GROUPS)))


@pytest.mark.parametrize("missing", ["_Arrive.forward", "_Leave.backward", "TwoStreams.mark"])
def test_a_wait_that_lacks_is_seen(missing):
    torch.manual_seed(0)
    name, method = missing.split(".")
    never = SimpleNamespace(clock={}, time=0.0)
    instead = {
        "_Arrive.forward": staticmethod(lambda ctx, made, call: setattr(ctx, "call", call) or made.view_as(made)),
        "_Leave.backward": staticmethod(lambda ctx, gradient: (gradient, None)),
        "TwoStreams.mark": lambda self: never,
    }[missing]
    with mock.patch(f"headrace.snapshots.streams.{name}.{method}", instead):
        machine, *_ = on_two_streams(CELLS["gclstm"](), sequence("one graph"))
    assert machine.early


def test_sums_are_hidden_forward_and_back():
    groups = [Group(0, 6), Group(1, 6)]
    with mock.patch("test_lanes.GROUPS", groups):
        machine, *_ = on_two_streams(CELLS["gclstm"](), sequence("one graph"))
    (forward, alone), whole = machine.forward, machine.current.time
    assert alone == pytest.approx(2 * 6 * (2 + 2))  # a sum of two seconds, and a product of x and one of states and sums
    assert forward <= 0.6 * alone
    assert whole - forward <= 0.75 * (machine.busy - alone)  # twice as many products, as long sums
