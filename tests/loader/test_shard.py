"""Batches of one list dealt to ranks: all of it, in equal steps, each batch as one process would have it."""

import hashlib
import itertools

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace as hr
from headrace.loader import LinkNeighborLoader, NeighborLoader, Shard
from headrace.loader.seeds import Seeds


@pytest.fixture(scope="module")
def data() -> hr.Dataset:
    return hr.generate.community(nodes=800, edges=9_000, classes=4, features=6, seed=2, splits=(0.4, 0.1, 0.5))


def fields(batch) -> dict:
    """All that a batch is, of any kind: tensors as lists, by name."""
    found = {"index": batch.index, "input_id": batch.input_id.tolist()}
    for part in (batch.sample, getattr(batch, "links", None)):
        for name, value in ({} if part is None else vars(part)).items():
            if isinstance(value, dict):
                value = {kind: ids.tolist() for kind, ids in value.items() if isinstance(ids, torch.Tensor)}
            found[name] = value.tolist() if isinstance(value, torch.Tensor) else value
    found.pop("blocks", None)  # views of the rest
    if getattr(batch, "rows", None) is not None:
        found["x"] = batch.x.tolist()
    return found


def dealt(batches: int, ranks: int, tail: str) -> list[list[int]]:
    shards = [Shard(rank, ranks, tail) for rank in range(ranks)]
    return [[shard.batch(step, batches) for step in range(shard.steps(batches))] for shard in shards]


@given(batches=st.integers(0, 60), ranks=st.integers(1, 17), tail=st.sampled_from(["repeat", "drop"]))
@settings(max_examples=150, deadline=None)
def test_ranks_go_through_the_list_together_and_make_equal_steps(batches, ranks, tail):
    lists = dealt(batches, ranks, tail)
    assert len({len(steps) for steps in lists}) == 1
    in_turn = [batch for step in zip(*lists, strict=True) for batch in step]
    if tail == "drop":
        assert in_turn == list(range(batches))[: batches // ranks * ranks]
    else:
        assert in_turn[:batches] == list(range(batches))
        assert len(in_turn) - batches < ranks
        assert in_turn[batches:] == [n % max(batches, 1) for n in range(batches, len(in_turn))]  # from the beginning again


@given(
    batches=st.integers(0, 60),
    ranks=st.integers(1, 9),
    accumulate=st.integers(1, 12) | st.none(),
    tail=st.sampled_from(["repeat", "drop", "empty"]),
    data=st.data(),
)
@settings(max_examples=300, deadline=None)
def test_all_know_the_rounds_and_whose_turn_has_no_batch(batches, ranks, accumulate, tail, data):
    shards = [Shard(rank, ranks, tail, accumulate) for rank in range(ranks)]
    total, size = shards[0].total(batches), ranks if accumulate is None else accumulate
    assert {"repeat": 0 <= total - batches < size, "drop": 0 <= batches - total < size, "empty": total == batches}[tail]
    assert shards[0].steps(batches) == -(-total // size)
    dealt = [list(shard.indices(batches)) for shard in shards]
    assert [shard.count(batches) for shard in shards] == [len(indices) for indices in dealt]
    rounds = shards[0].rounds(batches)
    turns = [[shard.batch(round, batches) for round in range(rounds)] for shard in shards]
    assert [[index for index in mine if index is not None] for mine in turns] == dealt
    in_turn = [index for turn in zip(*turns, strict=True) for index in turn if index is not None]
    assert in_turn == [place % batches for place in range(total)]  # rank after rank, round after round, it is the list
    assert all(any(index is not None for index in turn) for turn in zip(*turns, strict=True))  # no round is for nothing
    assert all(shard.batch(rounds, batches) is None for shard in shards) or tail != "empty"
    first = data.draw(st.integers(0, total))
    rest = [list(shard.indices(batches, first)) for shard in shards]
    assert sorted(itertools.chain(*rest)) == sorted(place % batches for place in range(first, total))
    assert all(whole[len(whole) - len(mine) :] == mine for whole, mine in zip(dealt, rest, strict=True))
    if first % size == 0:
        assert shards[0].rounds(batches, first) == max(rounds - first // size * -(-size // ranks), 0)


@given(batches=st.integers(0, 40), accumulate=st.integers(1, 7))
@settings(max_examples=100, deadline=None)
def test_the_batches_of_a_step_are_the_same_for_any_number_of_ranks(batches, accumulate):
    for ranks in range(1, 6):
        shards = [Shard(rank, ranks, "empty", accumulate) for rank in range(ranks)]
        for rank, shard in enumerate(shards):
            assert list(shard.indices(batches)) == [i for i in range(batches) if i % accumulate % ranks == rank]
            assert shard.steps(batches) == -(-batches // accumulate)


@given(
    nodes=st.integers(0, 50),
    batch_size=st.integers(1, 9),
    ranks=st.integers(1, 6),
    drop_last=st.booleans(),
    epoch=st.integers(0, 3),
    data=st.data(),
)
@settings(max_examples=80, deadline=None)
def test_seeds_of_all_ranks_are_those_of_one_process(nodes, batch_size, ranks, drop_last, epoch, data):
    ids = torch.arange(nodes) * 3

    def seeds(shard):
        return Seeds(ids, torch.arange(nodes), batch_size, True, drop_last, 5, shard)

    alone = {index: positions.tolist() for index, positions in seeds(Shard()).batches(epoch)}
    step = data.draw(st.integers(0, len(seeds(Shard(0, ranks)))))
    found = set()
    for rank in range(ranks):
        mine = list(seeds(Shard(rank, ranks)).batches(epoch))
        assert len(mine) == len(seeds(Shard(rank, ranks)))
        found |= {index for index, _ in mine}
        assert all(positions.tolist() == alone[index] for index, positions in mine)
        resumed = list(seeds(Shard(rank, ranks)).batches(epoch, step * ranks))
        assert [(i, p.tolist()) for i, p in resumed] == [(i, p.tolist()) for i, p in mine[step:]]
    assert found == set(alone)


def make_loader(kind, data, **options):
    options = {"batch_size": 24, "shuffle": True, "seed": 4, "threads": 2, **options}
    if kind == "node":
        return NeighborLoader(data, [4, 3], "train", edge_ids=True, **options)
    if kind == "labor":
        return NeighborLoader(data, [4, 3], "train", labor=True, batch_dependency=3, **options)
    if kind == "link":
        return LinkNeighborLoader(data, [3], data.graph.edge_index()[:, :300], neg_sampling="binary", **options)
    draw = torch.Generator().manual_seed(0)
    writes, cites = ("author", "writes", "paper"), ("paper", "cites", "paper")
    edges = {
        writes: (torch.randint(0, 90, (700,), generator=draw), torch.randint(0, 250, (700,), generator=draw)),
        cites: (torch.randint(0, 250, (900,), generator=draw), torch.randint(0, 250, (900,), generator=draw)),
    }
    graph = hr.HeteroGraph.from_edges(edges, num_nodes={"author": 90, "paper": 250})
    if kind == "hetero":
        return NeighborLoader(graph, [3, 2], "paper", **options)
    return LinkNeighborLoader(graph, [3], (cites, torch.stack(edges[cites])[:, :200]), neg_sampling="triplet", **options)


@pytest.mark.parametrize("kind", ["node", "labor", "link", "hetero", "hetero link"])
@pytest.mark.parametrize(("ranks", "tail"), [(3, "repeat"), (4, "drop"), (4, "empty")])
def test_batches_of_ranks_are_the_bits_of_one_process(data, kind, ranks, tail):
    alone = make_loader(kind, data)
    alone.epoch = 1
    expected = [fields(batch) for batch in alone]
    loaders = [make_loader(kind, data, shard=Shard(rank, ranks, tail)) for rank in range(ranks)]
    steps = Shard(0, ranks, tail).steps(len(alone))
    assert {len(loader) for loader in loaders} == ({steps} if tail != "empty" else {steps, steps - 1})
    for rank, loader in enumerate(loaders):
        assert loader.num_batches == alone.num_batches == len(alone)
        loader.epoch = 1
        found = [fields(batch) for batch in loader]
        assert len(found) == len(loader)
        for step, batch in enumerate(found):
            assert batch == expected[Shard(rank, ranks, tail).batch(step, len(alone))]


def digest(batch) -> tuple[int, str]:
    """The index of a batch, and a hash of all bits of its sample and rows."""
    held = [batch.input_id, batch.x, *(value for value in vars(batch.sample).values() if isinstance(value, torch.Tensor))]
    return batch.index, hashlib.sha256(b"".join(tensor.numpy().tobytes() for tensor in held)).hexdigest()


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("accumulate", range(1, 8))
def test_after_any_step_another_number_of_ranks_goes_on_with_the_same_bits(data, accumulate, drop_last):
    options = {"batch_size": 24, "staleness": 0, "drop_last": drop_last}

    def loaders(ranks):
        return [make_loader("node", data, shard=Shard(rank, ranks, "empty", accumulate), **options) for rank in range(ranks)]

    alone = make_loader("node", data, **options)
    alone.resume(1)
    expected = [digest(batch) for batch in alone]
    assert [index for index, _ in expected] == list(range(alone.num_batches))
    assert len(expected) == (13 if drop_last else 14)
    teams = {ranks: loaders(ranks) for ranks in range(1, 6)}
    steps = -(-len(expected) // accumulate)
    for ranks, team in teams.items():
        assert sum(len(loader) for loader in team) == len(expected)
        for step in range(ranks % 2, steps + 1, 2):  # of every step boundary some numbers of ranks, of every number some boundaries
            first = min(step * accumulate, len(expected))
            batches = []
            for loader in team:
                loader.resume(1, first)
                batches.append([digest(batch) for batch in loader])
                assert loader.epoch == 2
            assert sorted(itertools.chain(*batches)) == expected[first:]
            assert all(index % accumulate % ranks == rank for rank, mine in enumerate(batches) for index, _ in mine)


@pytest.mark.parametrize("staleness", [0, 3])
def test_a_rank_goes_on_where_it_stopped(data, staleness):
    loader = make_loader("node", data, shard=(1, 3), staleness=staleness)
    epochs = [[fields(batch) for batch in loader] for _ in range(2)]
    assert len(epochs[0]) == len(loader) == 5  # 14 batches over 3 ranks, and one of them again
    for step in (0, 2, 4, 5):
        loader.resume(1, 3 * step)  # by the batches that all ranks have made
        assert [fields(batch) for batch in loader] == epochs[1][step:]
        assert loader.epoch == 2
    loader.resume(1, 5)  # within a step: batch 4 of the list, which is this rank's, is done
    assert [fields(batch) for batch in loader] == epochs[1][2:]
    with pytest.raises(ValueError, match="batch be from 0 to 15, not 1 and 16"):
        loader.resume(1, 16)


def test_a_pyg_batch_is_that_of_one_process(data):
    pytest.importorskip("torch_geometric", reason="needs torch-geometric")
    from torch_geometric.data import Data

    graph = Data(x=data.x, edge_index=data.graph.edge_index())
    options = {"num_neighbors": [3], "batch_size": 100, "shuffle": True, "seed": 1}
    expected = list(NeighborLoader(graph, **options))
    for rank in range(3):
        for step, batch in enumerate(NeighborLoader(graph, **options, shard=(rank, 3))):
            same = expected[(3 * step + rank) % len(expected)]
            assert torch.equal(batch.n_id, same.n_id)
            assert torch.equal(batch.edge_index, same.edge_index)
            assert torch.equal(batch.x, same.x)


def test_torchrun_is_read_from_the_environment(data, monkeypatch):
    monkeypatch.setenv("RANK", "2")
    monkeypatch.setenv("WORLD_SIZE", "5")
    assert Shard.of("torchrun") == Shard(2, 5)
    assert make_loader("node", data, shard="torchrun").seeds.shard == Shard(2, 5)
    assert make_loader("hetero link", data, shard="torchrun").seeds.shard == Shard(2, 5)
    monkeypatch.delenv("WORLD_SIZE")
    with pytest.raises(ValueError, match=r"needs a process that torchrun has started.*\(rank, ranks\)"):
        Shard.of("torchrun")


def test_torchrun_is_read_from_a_process_group(monkeypatch, tmp_path):
    monkeypatch.setenv("RANK", "7")  # of another launch: the group that was made counts
    monkeypatch.setenv("WORLD_SIZE", "9")
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'meeting'}", rank=0, world_size=1)
    try:
        assert Shard.of("torchrun") == Shard(0, 1)
    finally:
        dist.destroy_process_group()


def test_a_shard_is_taken_in_every_form():
    assert Shard.of(None) == Shard() == Shard(0, 1, "repeat")
    assert Shard.of((1, 2)) == Shard.of([1, 2]) == Shard.of(Shard(1, 2)) == Shard(1, 2)


@pytest.mark.parametrize("given", ["torch", (1,), (0, 1, 2), 3, ("0", "2"), (0.0, 2.0)], ids=str)
def test_what_is_no_shard_is_named(given):
    with pytest.raises(ValueError, match=r"shard must be .*'torchrun' or a Shard, not"):
        Shard.of(given)


@pytest.mark.parametrize("given", [(2, 2), (-1, 2), (0, 0), (0, -3)])
def test_a_rank_must_be_below_their_number(data, given):
    with pytest.raises(ValueError, match=rf"with the rank below, not \({given[0]}, {given[1]}\)"):
        make_loader("node", data, shard=given)
    with pytest.raises(ValueError, match="tail must be 'repeat', 'drop' or 'empty', not 'pad'"):
        Shard(0, 2, "pad")
    with pytest.raises(ValueError, match="accumulate must be at least 1 batch a step, not 0"):
        Shard(0, 2, accumulate=0)


def test_fewer_batches_than_ranks(data):
    nodes = torch.tensor([5, 6, 7])
    seen = []
    for rank in range(5):
        loader = NeighborLoader(data, [2], nodes, batch_size=2, shard=(rank, 5))
        assert len(loader) == 1
        seen += [batch.index for batch in loader]
        assert len(NeighborLoader(data, [2], nodes, batch_size=2, shard=Shard(rank, 5, "drop"))) == 0
        without = NeighborLoader(data, [2], nodes, batch_size=2, shard=Shard(rank, 5, "empty"))
        assert [batch.index for batch in without] == ([rank] if rank < 2 else [])
        assert without.shard.rounds(without.num_batches) == 1
    assert seen == [0, 1, 0, 1, 0]
    assert list(NeighborLoader(data, [2], nodes[:0], shard=(1, 3))) == []
