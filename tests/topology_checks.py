"""What every rank of a few checks of `SplitSampler`, in one job, since starting processes costs more than all checks together.

Run by `test_split_sampler.py` as `topology_checks.py FOLDER` with torchrun's environment; writes a JSON file of check -> "" or
traceback.
"""

import sys
import time
from itertools import product
from pathlib import Path

import torch

import headrace as hr
from checks import message, run_checks
from headrace.cluster.topology import SplitSampler, asked_sizes, degree_traffic, sample_traffic
from headrace.ranks import Exchange, Traffic, join
from headrace.store import hash_owners
from topology_cases import assert_equals_whole, awkward_graph, owners_of, seeds_of, share_of

FANOUTS = ([5, 3], [-1, 2], [0, 4], [3])
KINDS = ("hash", "table", "none for one")


def split(graph, kind, ranks, fanouts, **options):
    owners = owners_of(kind, graph.num_nodes, ranks.size)
    return SplitSampler(*share_of(graph, owners, ranks.rank), owners, fanouts, **options)


def traffic_of(exchange):
    """The traffic since the last call of this."""
    seen = {phase: Traffic(t.sent, t.received) for phase, t in exchange.traffic.items()}
    exchange.traffic.clear()
    return seen


def check_samples_are_those_of_the_whole_graph(ranks):
    exchange = Exchange(ranks, timeout=60)
    for dtype in (torch.int32, torch.int64):
        graph = awkward_graph(dtype=dtype)
        for kind, fanouts in product(KINDS, FANOUTS):
            sampler = split(graph, kind, ranks, fanouts, seed=11, exchange=exchange, threads=1)
            for batch in range(3):
                request = (seeds_of(ranks.rank, batch, graph.num_nodes), 2, batch * 10 + ranks.rank)
                assert_equals_whole(sampler.sample(*request), graph, fanouts, request, seed=11)
    exchange.close()


def check_draws_with_replacement_and_large_fanouts(ranks):
    graph, exchange = awkward_graph(hub=70_000), Exchange(ranks, timeout=60)
    for fanouts, replace in (([17, 40], False), ([2000], False), ([6, 20], True), ([-1, 3], True)):
        sampler = split(graph, "hash", ranks, fanouts, seed=2**64 - 1, replace=replace, exchange=exchange, threads=2)
        request = (torch.cat([torch.tensor([3]), seeds_of(ranks.rank, 0, graph.num_nodes)]), 2**32 - 1, 2**64 - 1)
        assert_equals_whole(sampler.sample(*request), graph, fanouts, request, seed=2**64 - 1, replace=replace)
    exchange.close()


def check_ranks_without_seeds_answer(ranks):
    graph = awkward_graph()
    sampler = split(graph, "hash", ranks, [5, 3], seed=1, group=ranks, timeout=60)
    for idle in range(ranks.size):
        seeds = [] if ranks.rank == idle else seeds_of(ranks.rank, idle, graph.num_nodes)
        sample = sampler.sample(seeds, 0, idle)
        assert sample.num_seeds == len(seeds)
        assert_equals_whole(sample, graph, [5, 3], (seeds, 0, idle), seed=1)
    assert sampler.sample([]).num_edges == 0
    sampler.close()


def check_several_batches_share_an_exchange(ranks):
    graph = awkward_graph()
    sampler = split(graph, "table", ranks, [5, 3], seed=1, group=ranks, timeout=60)
    requests = [(seeds_of(ranks.rank, number, 300), 4, number) for number in range(ranks.rank * 2)] + [([], 0, 0)]
    requests = requests[: ranks.rank * 2 + 1 - (ranks.rank == 1)]
    for _ in range(2):
        samples = sampler.sample_many(requests)
        assert len(samples) == len(requests)
        for sample, request in zip(samples, requests, strict=True):
            assert_equals_whole(sample, graph, [5, 3], request, seed=1)
    assert sampler.sample_many([]) == []
    assert sampler.exchange.exchanges == 3
    assert sampler.workspace_bytes >= 4 * 300 * len(requests)
    sampler.close()


def check_degrees_are_those_of_the_whole_graph(ranks):
    exchange = Exchange(ranks, timeout=60)
    for dtype, kind in product((torch.int32, torch.int64), KINDS):
        graph = awkward_graph(dtype=dtype)
        sampler = split(graph, kind, ranks, [3], exchange=exchange)
        for nodes in (torch.arange(300), seeds_of(ranks.rank, 0, 300).int(), [] if ranks.rank == 0 else [299, 3, 3, 0]):
            degrees = sampler.degrees(nodes)
            assert degrees.dtype == torch.int64
            assert torch.equal(degrees, graph.degrees(loops=False)[torch.as_tensor(nodes).long()])
    exchange.close()


def check_bytes_equal_the_formula(ranks):
    exchange = Exchange(ranks, timeout=60)
    for dtype, kind, fanouts in product((torch.int32, torch.int64), KINDS, ([5, 3], [0, 4], [-1])):
        graph = awkward_graph(dtype=dtype)
        sampler = split(graph, kind, ranks, fanouts, exchange=exchange)
        sizes = {"row_bytes": 4, "id_bytes": dtype.itemsize}
        for many in (1, 2):
            requests = [(seeds_of(ranks.rank, number, 300), 0, number) for number in range(many * (ranks.rank + 1) - 1)]
            traffic_of(exchange)
            samples = sampler.sample_many(requests)
            seen = traffic_of(exchange)
            batches = ranks.all_gather([asked_sizes(sample, sampler.owners) for sample in samples])
            wanted = sample_traffic(batches, ranks.rank, hops=len(fanouts), **sizes)
            assert seen == (wanted if ranks.size > 1 else {}), (seen, wanted)
        nodes = seeds_of(ranks.rank, 0, 300)
        sampler.degrees(nodes)
        seen = traffic_of(exchange)
        asked = torch.bincount(sampler.owners.locate(nodes)[0], minlength=ranks.size).tolist()
        wanted = degree_traffic(ranks.all_gather(asked), ranks.rank, **sizes)
        assert seen == (wanted if ranks.size > 1 else {}), (seen, wanted)
    exchange.close()


def check_ranks_with_fewer_batches_finish(ranks):
    graph = awkward_graph()
    sampler = split(graph, "hash", ranks, [5, 3], seed=1, group=ranks, timeout=60)
    for epoch in range(2):
        for batch in range(ranks.rank if epoch == 0 else ranks.size - ranks.rank):
            request = (seeds_of(ranks.rank, batch, 300), epoch, batch)
            sample = sampler.sample(*request)
            assert_equals_whole(sample, graph, [5, 3], request, seed=1)
            assert torch.equal(sampler.degrees(sample.nodes), graph.degrees(loops=False)[sample.nodes.long()])
        sampler.finish()
    sampler.close()


def check_a_loader_gives_the_batches_of_the_whole_graph(ranks):
    data = hr.generate.community(nodes=500, edges=6000, classes=4, features=8)
    owners = hash_owners(500, ranks.size)
    options = {"input_nodes": torch.arange(173), "batch_size": 16, "shuffle": True, "seed": 5, "shard": (ranks.rank, ranks.size)}
    whole = hr.loader.NeighborLoader(data, [5, 3], **options)
    sampler = SplitSampler(*share_of(data.graph, owners, ranks.rank), owners, [5, 3], seed=5, group=ranks, timeout=60)
    for ahead in ({"staleness": 0}, {"staleness": 2, "threads": 1}, {"staleness": 3, "threads": 2}):
        loader = hr.loader.NeighborLoader(data, neighbor_sampler=sampler, **options, **ahead)
        batches = list(loader)
        sampler.finish()
        assert len(batches) == len(whole)
        whole.epoch = 0
        for ours, theirs in zip(batches, whole, strict=True):
            assert torch.equal(ours.n_id, theirs.n_id)
            assert torch.equal(ours.sample.indices, theirs.sample.indices)
            assert torch.equal(ours.x, theirs.x)
    stand_in = hr.Graph.from_edges([], [], 500)  # where no rank has the whole graph
    loader = hr.loader.NeighborLoader(stand_in, neighbor_sampler=sampler, **options, staleness=0)
    whole.epoch = 0
    for ours, theirs in zip(loader, whole, strict=True):
        assert torch.equal(ours.n_id, theirs.n_id)
        assert "ask its sampler for degrees(batch.n_id)" in message(ValueError, lambda ours=ours: ours.degree)
        assert torch.equal(sampler.degrees(ours.n_id), theirs.degree)
    sampler.finish()
    started = sampler.start(torch.tensor([1, 2]), 0, 3).finish()
    (one,) = sampler.samples([[1, 2]], epoch=0, first=3)
    assert torch.equal(started.nodes, one.nodes)
    sampler.close()


def check_wrong_input_of_one_rank_is_raised_on_all(ranks):
    graph = awkward_graph()
    sampler = split(graph, "hash", ranks, [5, 3], group=ranks, timeout=60)
    last = ranks.size - 1
    me = ranks.rank == last
    there = "" if me else f"rank {last}: {{}}: "
    error = IndexError if me else ValueError
    said = message(error, sampler.sample, [0, 300] if me else [1])
    assert said.startswith(there.format("IndexError")), said
    assert said.endswith("seeds[1] is 300, which is out of range"), said
    said = message(error, sampler.degrees, [-1] if me else [1])
    assert said.endswith("nodes[0] is -1, which is out of range"), said
    assert "epoch and batch must be counts, not 0 and -1" in message(ValueError, sampler.sample, [0], 0, -1 if me else 0)
    assert "a split graph has no times" in message(ValueError, sampler.sample, [0], time=[1] if me else None)
    assert "a split graph has no edge ids" in message(ValueError, sampler.sample, [0], edge_ids=me)
    assert "must hold integers" in message(ValueError, sampler.sample_many, [([0.5] if me else [1], 0, 0)])
    request = ([1, 2], 0, 0)
    assert_equals_whole(sampler.sample(*request), graph, [5, 3], request)  # and then it goes on
    sampler.close()


def check_a_damaged_share_is_named_on_all(ranks):
    graph = awkward_graph()
    for damage, said in (
        (lambda p, i: p[1:-1].fill_(-5), "indptr is corrupt"),
        (lambda p, i: i.fill_(300), "holds an index out of range"),
    ):
        owners = hash_owners(300, ranks.size)
        indptr, indices = share_of(graph, owners, ranks.rank)
        if ranks.rank == ranks.size - 1:
            damage(indptr, indices)
        sampler = SplitSampler(indptr, indices, owners, [-1, -1], group=ranks, timeout=60)
        begin = time.monotonic()
        assert said in message(ValueError, sampler.sample, torch.arange(300))
        assert time.monotonic() - begin < 10
        sampler.close()


def check_ranks_that_disagree_all_say_so(ranks):
    graph, odd = awkward_graph(), ranks.rank == 1

    def made(nodes=300, owner_seed=0, fanouts=(5, 3), dtype=torch.int32, **options):
        owners = hash_owners(nodes, ranks.size, owner_seed)
        rows = share_of(graph, owners, ranks.rank) if nodes == 300 else (torch.zeros(owners.size(ranks.rank) + 1), [])
        return SplitSampler(rows[0].long(), torch.as_tensor(rows[1]).to(dtype), owners, fanouts, group=ranks, **options)

    def said(**options):
        return message(ValueError, made, **options)

    if ranks.size > 1:
        differ = "ranks disagree on the {}: rank 0 has {}, rank 1 has {}"
        assert said(nodes=301 if odd else 300) == differ.format("number of nodes", 300, 301)
        assert said(owner_seed=int(odd)).startswith("ranks disagree on the owners: rank 0 has hash 300")
        assert said(fanouts=[5, 4] if odd else [5, 3]) == differ.format("fanouts", "[5, 3]", "[5, 4]")
        assert said(seed=int(odd)) == differ.format("seed", 0, 1)
        assert said(replace=odd) == differ.format("drawing with replacement", False, True)
        assert said(dtype=torch.int64 if odd else torch.int32) == differ.format("type of indices", "torch.int32", "torch.int64")
    rank = "rank 0: "
    assert said(fanouts=[]).startswith(rank + "fanouts must be one number per hop")
    assert said(fanouts=[5, -2]).startswith(rank + "fanouts must be one number per hop")
    assert said(seed=-1).startswith(rank + "seed must be from 0")
    other = hash_owners(300, ranks.size + 1)
    wrong = message(ValueError, SplitSampler, graph.indptr, graph.indices, other, [5], group=ranks)
    assert wrong == f"{rank}owners are for {ranks.size + 1} ranks, the group has {ranks.size}"
    owners = hash_owners(300, ranks.size)
    short = message(ValueError, SplitSampler, [0, 0], [], owners, [5], group=ranks)
    assert short == f"{rank}indptr has 1 rows, and this rank owns {owners.size(0)} nodes: pass its own rows alone"


def check_different_calls_are_named(ranks):
    sampler = split(awkward_graph(), "hash", ranks, [3], group=ranks, timeout=60)
    if ranks.size > 1:
        call = sampler.degrees if ranks.rank == 0 else sampler.sample
        said = message(RuntimeError, call, [1])
        assert "exchange 1: rank 0 called degrees, rank 1 called sample. All ranks must make the same calls" in said, said
    sampler.close()


def check_an_absent_rank_is_named(ranks):
    sampler = split(awkward_graph(), "hash", ranks, [3], group=ranks, timeout=0.7)
    sampler.sample([1])
    if ranks.size == 1:
        return
    if ranks.rank == ranks.size - 1:
        time.sleep(2.5)
        return
    said = message(TimeoutError, sampler.sample, [1])
    assert f"rank {ranks.size - 1} did not come within 0.7 s" in said, said
    assert "one that has no more calls finish()" in said


CHECKS = {name: check for name, check in list(globals().items()) if name.startswith("check_")}


def main():
    folder = Path(sys.argv[1])
    torch.set_num_threads(1)
    with join("cpu", timeout=60) as ranks:
        run_checks(CHECKS, ranks, rank=ranks.rank, folder=folder, barrier=ranks.barrier)


if __name__ == "__main__":
    main()
