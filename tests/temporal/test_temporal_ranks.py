"""Trainers that are spread over ranks compute what those of one process do: the same bits, in the same order of tickets."""

import copy
import itertools
from collections import deque

import pytest
import torch

import headrace as hr
from headrace.ranks import gradient_bytes
from headrace.train.events.event import _tgn
from headrace.train.events.forward import Forward
from headrace.train.events.recipe import TemporalRecipe
from headrace.train.fit import torch_threads
from headrace.train.loop import Trainer
from headrace.train.watching.watch import Watcher
from rank_threads import ThreadExchange, on_every_rank

SLOW = [("1x1x2", 2), ("1x2x1", 2), ("1x2x2", 2), ("2x1x2", 4)]
SPREAD = [("2x1x1", 2), ("1x2x2", 4), ("2x1x2", 2), *(pytest.param(*case, marks=pytest.mark.slow) for case in SLOW)]


class Losses(Watcher):
    def __init__(self):
        self.losses = []

    def step(self, event, seconds):
        self.losses.append(event.loss)


def options(parallel, **more):
    base = {"hidden": 8, "neighbors": 3, "batch_size": 25, "dropout": 0.0, "optimizer": "sgd", "lr": 1e-2, "heads": 1}
    return hr.train.TemporalOptions(**(base | {"threads": 1, "candidates": 3, "parallel": parallel} | more))


@pytest.fixture(autouse=True)
def _one_thread():
    with torch_threads(1):  # sums have other bits with more
        yield


@pytest.fixture(scope="module")
def stream():
    return hr.EventStream.of(hr.generate.events(nodes=60, events=1200, new=0.02, seed=5))


class Ends(deque):
    """A log that copies the rows when the last batch of the stream was written."""

    def __init__(self, memory, last, rows):
        super().__init__()
        self.memory, self.last, self.rows = memory, last, rows

    def append(self, operation):
        super().append(operation)
        if operation[1:3] == ("write", self.last):
            self.rows.append(self.memory.rows.clone())


class Trained:
    """Some sweeps: losses of all trainers, weights, rows and log of every copy, bytes sent."""

    def __init__(self, stream, chosen, model, *, ranks=None, exchange=None, steps=1, frozen=False):
        watcher = Losses()
        recipe = TemporalRecipe(
            stream, stream.splits(), copy.deepcopy(model), chosen, evaluates=False, saves=False, ranks=ranks, exchange=exchange
        )
        self.schedule, self.copies = recipe.schedule, recipe.copies
        trainer = Trainer(recipe, chosen, None, watcher, ranks=ranks, exchange=exchange, accumulate=recipe.schedule.trainers)
        if frozen:
            recipe.update.optimizer.step = lambda: None
        self.at_ends = {}
        for number, memory in recipe.memories.items():
            memory.log = Ends(memory, recipe.schedule.batches - 1, self.at_ends.setdefault(number, []))
        self.rows, self.steps = [], 0
        while self.steps < steps:
            trainer.epoch()
            self.steps += recipe.schedule.iterations
            recipe.copies.settle()
            self.rows.append({number: rows.clone() for number, rows in recipe.copies.rows.items()})
            recipe.copies.settle()
        self.losses = watcher.losses
        self.weights = {name: values.detach().clone() for name, values in recipe.model.named_parameters()}
        self.log = {number: list(memory.log) for number, memory in recipe.memories.items()}
        self.cuts = recipe.make.cuts
        self.sent = {} if exchange is None else {phase: traffic.sent for phase, traffic in exchange.traffic.items()}
        recipe.close()


def trained(stream, chosen, *, size=1, machines=None, **more):
    """By one process, or what each of some ranks has, which are threads."""
    torch.manual_seed(0)  # torch has one generator for all threads: weights are drawn before
    model = Forward(_tgn(chosen, stream, 0), None)
    if size == 1:
        return [Trained(stream, chosen, model, **more)]

    def work(ranks):
        torch.set_num_threads(1)
        ranks.machines = ["one"] * size if machines is None else machines
        return Trained(stream, chosen, model, ranks=ranks, exchange=ThreadExchange(ranks), **more)

    results = on_every_rank(size, work)
    for result in results:
        if isinstance(result, Exception):
            raise result
    return results


@pytest.mark.parametrize(("parallel", "size"), SPREAD)
def test_ranks_train_as_lanes_do(stream, parallel, size):
    chosen = options(parallel)
    [lanes] = trained(stream, chosen, steps=60)
    ranks = trained(stream, chosen, steps=60, size=size)
    assert lanes.steps >= 60
    assert all(len(rank.losses) == lanes.steps * lanes.schedule.trainers for rank in ranks)
    for rank in ranks:
        assert rank.losses == lanes.losses
        for name, values in lanes.weights.items():
            assert torch.equal(rank.weights[name], values), name
        for theirs, ours in zip(rank.rows, lanes.rows, strict=True):
            assert theirs.keys() == ours.keys()
            assert all(torch.equal(theirs[number], ours[number]) for number in ours)


@pytest.mark.parametrize(("parallel", "size"), [("1x3x1", 3), ("3x1x1", 3), ("2x2x1", 2), ("1x1x2", 2)])
def test_memory_of_frozen_weights_is_the_serial_one_on_ranks(stream, parallel, size):
    i = int(parallel[0])
    [serial] = trained(stream, options("1x1x1", batch_size=48), frozen=True)
    for rank in trained(stream, options(parallel, batch_size=48 // i), frozen=True, size=size):
        if i == 1:
            assert torch.equal(rank.rows[0][0], serial.rows[0][0])
        else:  # the memory is that of batches i times as large
            assert torch.allclose(rank.rows[0][0], serial.rows[0][0], rtol=0, atol=1e-6)


@pytest.mark.parametrize(("parallel", "size"), [("1x1x3", 3), ("1x2x2", 4), ("1x1x2", 1)])
def test_every_copy_has_the_serial_memory_after_a_sweep_from_zero(stream, parallel, size):
    """One that begins elsewhere is zero at the stream's beginning, and at its end has seen what the serial one has."""
    [serial] = trained(stream, options("1x1x1"), frozen=True)
    ranks = trained(stream, options(parallel), frozen=True, size=size, steps=60)
    at_ends = {}
    for rank in ranks:
        for number, rows in rank.at_ends.items():
            at_ends.setdefault(number, []).extend(rows)
    assert len(at_ends) == int(parallel[-1])
    for number, rows in at_ends.items():
        assert len(rows) == 2
        assert torch.equal(rows[1], serial.rows[0][0])
        assert torch.equal(rows[0], serial.rows[0][0]) == (number == 0)  # the others began in the middle


@pytest.mark.parametrize(("parallel", "size"), [("2x1x1", 2), ("1x3x1", 3), ("2x2x1", 4), ("2x1x2", 4)])
def test_the_logs_of_ranks_together_obey_the_schedule(stream, parallel, size):
    ranks = trained(stream, options(parallel), size=size)
    schedule, cuts = ranks[0].schedule, ranks[0].cuts
    for number in range(schedule.k):
        log = [(operation, rank) for rank, made in enumerate(ranks) for operation in made.log.get(number, ())]
        log.sort(key=lambda entry: entry[0].ticket)
        assert [operation.ticket for operation, _ in log] == list(range(2 * schedule.batches))
        for operation, rank in log:
            holder = schedule.holder(number, operation.ticket)
            assert (operation.operation, operation.batch) == (holder.operation, holder.batch)
            assert ranks[0].copies.owners[holder.trainer] == rank
        for group in range(schedule.groups):
            members = schedule.members(group)
            begin, end = int(cuts[members[0]]), int(cuts[members[-1] + 1])
            distinct = torch.cat([stream.src[begin:end], stream.dst[begin:end]]).unique()
            assert sum(o.rows for o, _ in log if o.operation == "write" and o.batch in members) == len(distinct)


@pytest.mark.parametrize("shape", list(itertools.product((1, 2, 3), (1, 2, 3), (1, 2, 3), (3, 7, 12))))
def test_a_ticket_has_the_holder_that_its_turn_says(shape):
    i, j, k, batches = shape
    if max(j, k) > -(-batches // i):
        return
    schedule = hr.temporal.schedule(*shape)
    turns = [turn for n in range(schedule.iterations) for turn in schedule.turns(n) if turn is not None and turn.reads]
    assert len(turns) == k * batches
    for turn in turns:
        assert schedule.holder(turn.copy, turn.ticket) == (turn.trainer, "read", turn.batch)
        assert schedule.holder(turn.copy, turn.ticket + turn.group) == (turn.trainer, "write", turn.batch)
        assert schedule.first_ticket(turn.copy, turn.position) <= turn.ticket < schedule.first_ticket(turn.copy, turn.position + 1)
    for ticket in (-1, 2 * batches):
        with pytest.raises(ValueError, match=f"has tickets 0 to {2 * batches - 1}, not {ticket}"):
            schedule.holder(0, ticket)


MACHINES = [("1x2x2", "aabb"), ("1x1x2", "ab"), pytest.param("1x2x2", "abab", marks=pytest.mark.slow)]


@pytest.mark.parametrize(("parallel", "machines"), MACHINES)
def test_between_machines_gradients_alone_move(stream, parallel, machines):
    size = len(machines)
    [lanes] = trained(stream, options(parallel))
    ranks = trained(stream, options(parallel), size=size, machines=list(machines))
    parameters = sum(values.numel() for values in lanes.weights.values())
    for number, rank in enumerate(ranks):
        assert rank.losses == lanes.losses
        assert set(rank.sent) == {"scatter", "collect", "reports"}
        formula = gradient_bytes(parameters, 4, size, size, number)
        for phase in ("scatter", "collect"):
            assert rank.sent[phase] == rank.steps * formula[phase].sent
        of_machine = {"a": {0}, "b": {1}}[machines[number]]
        assert set(rank.rows[0]) == of_machine  # a copy is where its trainers are, and nowhere else
        for copied in of_machine:
            assert torch.equal(rank.rows[0][copied], lanes.rows[0][copied])


def test_what_does_not_fit_is_named():
    deal = hr.temporal.deal_trainers
    assert deal(2, 1, 2, ["a", "b", "b", "a"]) == [0, 3, 1, 2]
    assert deal(2, 1, 2, ["a", "a"]) == [0, 0, 1, 1]
    with pytest.raises(ValueError, match="3 ranks do not divide the 4 trainers of 1x2x2: start 1, 2 or 4"):
        deal(1, 2, 2, ["a"] * 3)
    with pytest.raises(ValueError, match="8 ranks do not divide the 4 trainers of 1x2x2: start 1, 2 or 4"):
        deal(1, 2, 2, ["a"] * 8)
    with pytest.raises(ValueError, match="2 machines need a copy of the memory each, and 1x4x1 has 1: raise k to 2 at least"):
        deal(1, 4, 1, ["a", "b"])
    with pytest.raises(ValueError, match=r"copy 0 of the memory would span 2 machines: with 1, 3 ranks .* multiple of i x j = 2"):
        deal(1, 2, 2, ["a", "b", "b", "b"])
