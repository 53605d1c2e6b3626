"""A step of every strategy, hoisted or not, overlapped or not, on 1, 2 and 3 ranks: the loss and gradients of plain torch."""

import threading
from contextlib import ExitStack
from functools import cache
from itertools import product
from time import process_time

import pytest
import torch

import headrace as hr
from headrace.ranks import Alone, gradient_bytes
from headrace.snapshots import Costs
from headrace.snapshots.traffic import boundary_bytes, halo_bytes, halo_rows
from headrace.train import SnapshotOptions, Watcher
from headrace.train.fit import Setup, torch_threads
from headrace.train.snapshots import recipe as recipes
from headrace.train.snapshots.dealing import Dealing
from headrace.train.snapshots.windows import Windows
from headrace.train.steps.accumulate import Accumulator
from headrace.train.watching.clock import Clock
from rank_threads import ThreadExchange, ThreadRanks, on_every_rank

STRATEGIES = ("balanced", "equal", "sequential", "vertex", "snapshot")
SHAPE = {"window": 3, "hidden": 8, "groups": 5, "stack": 2, "val": 0.2, "optimizer": "sgd", "skip": False}


@cache
def sequence(kind):
    """Changing nodes, of which the third snapshot has no edges, or ones whose ids leave gaps; or one graph for all."""
    data = hr.generate.snapshots(nodes=20, edges=60, steps=24, features=3, seed=2)
    graphs = [data.graph(t).edge_index() for t in range(len(data))]
    graphs = [([], []) if t == 2 else (src[src != dst], dst[src != dst]) for t, (src, dst) in enumerate(graphs)]
    if kind == "prefixes":
        return hr.Snapshots(graphs, data.num_nodes, x=data.x, y=data.y, mask=data.mask, nodes=data.nodes)
    x = torch.randn(24, data.num_nodes, 3, generator=torch.Generator().manual_seed(4))
    if kind == "one graph":
        return hr.Snapshots([graphs[0]] * 24, data.num_nodes, x=x, y=data.y)
    moved = torch.randperm(data.num_nodes, generator=torch.Generator().manual_seed(5))
    nodes = [moved[ids].sort().values for ids in data.nodes]
    edges = [(moved[torch.as_tensor(src).long()], moved[torch.as_tensor(dst).long()]) for src, dst in graphs]
    x = [part[ids] for part, ids in zip(x, nodes, strict=True)]
    return hr.Snapshots(edges, data.num_nodes, x=x, y=data.y, nodes=nodes)


def matrix(graph, kind):
    """A sum over neighbors as a dense matrix."""
    count, (src, dst) = graph.num_nodes, graph.edge_index()
    edges = torch.zeros(count, count).index_put((dst, src), torch.ones(len(src)), accumulate=True)
    if kind == "gcn":
        edges += torch.eye(count)
        root = edges.sum(1).rsqrt()
        return root[:, None] * edges * root
    degree = edges.sum(0)
    root = torch.where(degree > 0, degree.rsqrt(), 0)
    return -(root[:, None] * edges * root)


def tgcn(cell, x, graph, state):
    summed, hidden = matrix(graph, "gcn") @ x, state[0]
    gate = lambda name, h: getattr(cell, f"linear_{name}")(  # noqa: E731
        torch.cat([summed @ getattr(cell, f"conv_{name}").lin.weight.t() + getattr(cell, f"conv_{name}").bias, h], 1)
    )
    z, r = torch.sigmoid(gate("z", hidden)), torch.sigmoid(gate("r", hidden))
    return (z * hidden + (1 - z) * torch.tanh(gate("h", r * hidden)),)


def gclstm(cell, x, graph, state):
    hidden, memory = state
    summed = matrix(graph, "laplacian") @ hidden

    def gate(name):
        conv = getattr(cell, f"conv_{name}")
        filtered = conv.lins[0](hidden) + conv.lins[1](summed) + conv.bias
        return x @ getattr(cell, f"W_{name}") + filtered + getattr(cell, f"b_{name}")

    memory = torch.sigmoid(gate("f")) * memory + torch.sigmoid(gate("i")) * torch.tanh(gate("c"))
    return torch.sigmoid(gate("o")) * torch.tanh(memory), memory


def reference(recipe, groups):
    """Loss and gradients of groups, one after the other, each snapshot by dense matrices."""
    windows, data, model = recipe.windows, recipe.windows.snapshots, recipe.model
    step, total = {"TGCN": tgcn, "GCLSTM": gclstm}[type(model.cell).__name__], 0
    for group in groups:
        state = model.cell.start(data.num_nodes, data.x[0])
        for at in group.times:
            ids = torch.arange(data.num_nodes) if data.nodes is None else data.nodes[at]
            new = step(model.cell, data.x[at], data.own_graph(at), tuple(part[ids] for part in state))
            state = tuple(old.index_copy(0, ids, part) for old, part in zip(state, new, strict=True))
        forecast = state[0] @ model.head.weight.t() + model.head.bias
        values, counts = (part[0] for part in windows.targets([group]))
        total = total + ((forecast - values).square() * counts).sum() / counts.sum() / len(groups)
    gradients = torch.autograd.grad(total, list(model.parameters()))
    return float(total.detach()), gradients


def a_step(ranks, exchange, kind, **options):
    """Losses and gradients of the first step on this rank, and its recipe."""
    options = SnapshotOptions(**SHAPE | options)
    windows = Windows.of(sequence(kind), options)
    generator = torch.Generator().manual_seed(0)
    with ExitStack() as opened:
        pieces = options.batches_per_step
        recipe = recipes.SnapshotRecipe(windows, Setup(options, None, None, ranks, pieces, Watcher(), opened, exchange))
        with torch.no_grad():  # by a generator of its own: ranks are threads here
            for parameter in recipe.model.parameters():
                parameter.copy_(0.5 * torch.randn(parameter.shape, generator=generator))
        recipe.update = recipe.make_update(options)
        accumulator = Accumulator(recipe, ranks, exchange)
        count = min(pieces, recipe.num_batches(0))
        batches = recipe.batches(0, 0)
        wide = accumulator.step(batches, count, epoch=0, first=0, rate=0.0, ask=0, clock=Clock(None))
        sizes = [done.seeds for done in wide.batches]
        loss = sum(done.loss * size for done, size in zip(wide.batches, sizes, strict=True)) / sum(sizes)
        recipe.dealing.learn()
        return loss, [p.grad.clone() for p in recipe.model.parameters()], recipe


def on_ranks(monkeypatch, size, kind, **options):
    """What `a_step` gives on every rank; ranks are threads."""
    if size == 1:
        return [a_step(Alone(), None, kind, **options)]

    def work(ranks):
        try:
            return a_step(ranks, ThreadExchange(ranks), kind, **options)
        except Exception:
            ranks._meeting.abort()
            raise

    board, meeting = [None] * size, threading.Barrier(size, timeout=60)  # of the second worker's exchange
    with monkeypatch.context() as patched:
        patched.setattr(recipes, "Exchange", lambda ranks: _Closing(ThreadRanks(ranks.rank, size, board, meeting)))
        results = on_every_rank(size, work)
    problems = [result for result in results if isinstance(result, Exception)]
    for problem in sorted(problems, key=lambda error: isinstance(error, threading.BrokenBarrierError)):
        raise problem
    return results


class _Closing(ThreadExchange):
    def close(self):
        pass


def assert_same(some, others, tolerance):
    for a, b in zip(some, others, strict=True):
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


CASES = list(product(STRATEGIES, (False, True), (False, True)))


QUICK = [(1, "gaps"), (2, "one graph"), (3, "prefixes")]
SIZES = [
    pytest.param(size, kind, marks=() if (size, kind) in QUICK else pytest.mark.slow)
    for size, kind in product((1, 2, 3), ("prefixes", "gaps", "one graph"))
]


@pytest.mark.parametrize("model", ["tgcn", "gclstm"])
@pytest.mark.parametrize(("size", "kind"), SIZES)
def test_every_strategy_has_the_loss_and_gradients_of_plain_torch(monkeypatch, model, size, kind):
    expected = None
    for strategy, hoist, overlap in CASES:
        case = {"model": model, "strategy": strategy, "hoist": hoist, "overlap": overlap}
        results = on_ranks(monkeypatch, size, kind, **case)
        if expected is None:
            recipe = results[0][2]
            expected = reference(recipe, [group for piece in recipe._step for group in piece.groups])
        for loss, gradients, _ in results:
            assert loss == pytest.approx(expected[0], rel=1e-5), case
            assert_same(gradients, expected[1], 1e-5)
            assert_same(gradients, results[0][1], 0.0)  # the same bits on every rank


@pytest.mark.parametrize("strategy", ["vertex", "snapshot"])
def test_on_one_rank_nothing_is_split_or_shipped(monkeypatch, strategy):
    ((loss, gradients, recipe),) = on_ranks(monkeypatch, 1, "gaps", model="gclstm", strategy=strategy)
    ((expected, others, _),) = on_ranks(monkeypatch, 1, "gaps", model="gclstm", strategy="sequential")
    assert recipe._joint is None  # the work of `sequential`, and its time
    assert loss == expected
    assert_same(gradients, others, 0.0)


@pytest.mark.slow
@pytest.mark.parametrize("model", ["tgcn", "gclstm"])
def test_on_one_rank_vertex_and_snapshot_take_as_long_as_sequential(model):
    """Processor time of the same steps, of each strategy in turn; no more than 1.05 times."""
    data = hr.generate.snapshots(nodes=1500, edges=15_000, steps=24, features=16, seed=2)
    made, taken = {}, {}
    with ExitStack() as opened, torch_threads(1):
        for strategy in ("sequential", "vertex", "snapshot"):
            options = SnapshotOptions(**SHAPE | {"model": model, "strategy": strategy, "hidden": 32, "threads": 1})
            setup = Setup(options, None, None, Alone(), options.batches_per_step, Watcher(), opened, None)
            torch.manual_seed(0)
            made[strategy] = recipes.SnapshotRecipe(Windows.of(data, options), setup)
        for _ in range(12):
            for strategy, recipe in made.items():
                recipe.update, begun = recipe.make_update(recipe.options), process_time()
                count = recipe.options.batches_per_step
                batches = recipe.batches(0, 0)
                accumulator = Accumulator(recipe, Alone(), None)
                accumulator.step(batches, count, epoch=0, first=0, rate=0.0, ask=0, clock=Clock(None))
                taken.setdefault(strategy, []).append(process_time() - begun)
    quick = {strategy: sorted(seconds[2:])[2] for strategy, seconds in taken.items()}
    for strategy in ("vertex", "snapshot"):
        assert quick[strategy] <= 1.05 * quick["sequential"], quick


@pytest.mark.parametrize("strategy", ["balanced", "equal"])
def test_measured_seconds_change_no_bit(monkeypatch, strategy):
    plain = on_ranks(monkeypatch, 2, "gaps", model="gclstm", strategy=strategy)[0]
    monkeypatch.setattr(Costs, "of", lambda costs, sizes: [100.0, *[1.0] * (len(sizes) - 1)])
    monkeypatch.setattr(Costs, "speeds", property(lambda costs: [3.0, 1.0]))
    for loss, gradients, _ in on_ranks(monkeypatch, 2, "gaps", model="gclstm", strategy=strategy):
        assert loss == plain[0]
        assert_same(gradients, plain[1], 0.0)


@pytest.mark.parametrize("strategy", ["vertex", "snapshot"])
@pytest.mark.parametrize("model", ["a3tgcn", "lrgcn", "gconvgru", "wdgcn", "evolvegcno"])
def test_other_cells_are_split_and_shipped_too(monkeypatch, model, strategy):
    case = {"model": model, "terms": 3, "hidden": 4}
    (loss, expected, _), *_ = on_ranks(monkeypatch, 1, "gaps", **case)
    for hoist in (False, True):
        for found, gradients, _ in on_ranks(monkeypatch, 2, "gaps", strategy=strategy, hoist=hoist, **case):
            assert found == pytest.approx(loss, rel=1e-5)
            assert_same(gradients, expected, 1e-5)


@pytest.mark.parametrize(
    ("groups", "window", "size"),
    [(1, 2, 3), (3, 1, 2), (2, 2, 3)],
    ids=["one group", "one snapshot", "fewer snapshots than ranks"],
)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_fewer_groups_or_snapshots_than_ranks(monkeypatch, strategy, groups, window, size):
    case = {"model": "gclstm", "groups": groups, "window": window, "stack": 1}
    (loss, expected, _), *_ = on_ranks(monkeypatch, 1, "prefixes", **case)
    for found, gradients, _ in on_ranks(monkeypatch, size, "prefixes", strategy=strategy, **case):
        assert found == pytest.approx(loss, rel=1e-5)
        assert_same(gradients, expected, 1e-5)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_same_step_twice_has_the_same_bits(monkeypatch, strategy):
    case = {"model": "gclstm", "strategy": strategy, "overlap": True}
    runs = [on_ranks(monkeypatch, 2, "gaps", **case)[0] for _ in range(2)]
    assert runs[0][0] == runs[1][0]
    assert_same(runs[0][1], runs[1][1], 0.0)


def sent(recipe, *phases):
    return [recipe.exchange.traffic[phase].sent for phase in phases]


def parameters_of(recipe):
    return sum(p.numel() for p in recipe.model.parameters())


@pytest.mark.parametrize("size", [2, 3])
def test_vertex_sends_the_halo_of_each_sum_of_states_forward_and_back(monkeypatch, size):
    for rank, (_, _, recipe) in enumerate(on_ranks(monkeypatch, size, "gaps", model="gclstm", strategy="vertex")):
        data, owner = recipe.windows.snapshots, torch.arange(recipe.windows.snapshots.num_nodes) % size
        forward = back = 0
        for group in (group for piece in recipe._step for group in piece.groups):
            for at in group.times:
                halo = halo_rows(data.own_graph(at), owner[data.nodes[at]], size)
                there, again = halo_bytes(halo, rank, 8)
                forward += there
                back += again if at > group.first else 0  # the first state is nobody's result
        assert sent(recipe, "halo", "halo gradients") == [forward, back]
        gradients = gradient_bytes(parameters_of(recipe), 4, size, size, rank)
        assert sent(recipe, "scatter", "collect") == [gradients["scatter"].sent, gradients["collect"].sent]


def test_a_hoisted_vertex_split_of_tgcn_sends_gradients_alone(monkeypatch):
    for _, _, recipe in on_ranks(monkeypatch, 2, "gaps", model="tgcn", strategy="vertex"):
        assert sent(recipe, "halo", "halo gradients") == [0, 0]


@pytest.mark.parametrize(("model", "widths"), [("tgcn", [8]), ("gclstm", [8, 8])])
@pytest.mark.parametrize("size", [2, 3])
def test_snapshot_sends_a_state_at_every_boundary_forward_and_back(monkeypatch, model, widths, size):
    for rank, (_, _, recipe) in enumerate(on_ranks(monkeypatch, size, "one graph", model=model, strategy="snapshot")):
        groups = sum(len(piece.groups) for piece in recipe._step)
        state = groups * boundary_bytes(recipe.windows.snapshots.num_nodes, widths)
        assert sent(recipe, "states", "state gradients") == [state * (rank < size - 1), state * (rank > 0)]


@pytest.mark.parametrize("strategy", ["balanced", "equal", "sequential"])
def test_whole_groups_send_gradients_alone(monkeypatch, strategy):
    """Beside them some dozens of numbers of each piece: its loss, how much it was, the seconds that it took."""
    deal, dealt = Dealing.deal, {}

    def seen(self, pieces, reporter=None):
        dealt[self.ranks.rank] = deal(self, pieces, reporter)
        return dealt[self.ranks.rank]

    monkeypatch.setattr(Dealing, "deal", seen)
    for rank, (_, _, recipe) in enumerate(on_ranks(monkeypatch, 2, "gaps", model="gclstm", strategy=strategy)):
        pieces, own = len(recipe._step), dealt[rank].count(rank)
        assert own == {"sequential": pieces * (rank == 0)}.get(strategy, own)
        assert set(recipe.exchange.traffic) == {"scatter", "collect", "reports", "costs"}
        gradients = gradient_bytes(parameters_of(recipe), 4, pieces, 2, rank, own=own)
        assert sent(recipe, "scatter", "collect") == [gradients["scatter"].sent, gradients["collect"].sent]
        reports, costs = sent(recipe, "reports", "costs")
        assert costs == 8 * recipe.options.batches_per_step
        assert reports <= 8 * 64 * pieces  # however large the graphs are


@pytest.mark.parametrize("model", ["mpnnlstm", "evolvegcnh"])
def test_a_cell_that_looks_at_all_rows_is_not_split(monkeypatch, model):
    with pytest.raises(ValueError, match="looks at all rows of a snapshot together, and strategy vertex splits them"):
        on_ranks(monkeypatch, 2, "one graph", model=model, strategy="vertex")


def test_dropout_draws_on_one_rank():
    with pytest.raises(ValueError, match="strategy snapshot runs a group on several ranks, and dropout draws on one"):
        SnapshotOptions(strategy="snapshot", model="mpnnlstm", dropout=0.5)
