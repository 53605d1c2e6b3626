"""`SplitSampler` on graphs and owners of any kind, its ranks being threads of one process."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace as hr
from headrace.cluster.topology import SplitSampler, asked_sizes, degree_traffic, sample_traffic
from headrace.store import TableOwners, hash_owners
from rank_threads import ThreadExchange, on_every_rank
from topology_cases import assert_equals_whole, share_of


@st.composite
def cases(draw):
    """A graph, its owners, fanouts, and the batches of every rank."""
    nodes, size = draw(st.integers(1, 25)), draw(st.integers(1, 5))
    degrees = draw(st.lists(st.sampled_from([0, 0, 1, 2, 5, 16, 17, 40]), min_size=nodes, max_size=nodes))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 10_000)))
    dtype = draw(st.sampled_from([torch.int32, torch.int64]))
    indices = torch.randint(nodes, (sum(degrees),), generator=generator).to(dtype)
    graph = hr.Graph(torch.tensor([0, *degrees]).cumsum(0), indices)
    owners = draw(
        st.one_of(
            st.builds(lambda seed: hash_owners(nodes, size, seed), st.integers(0, 1 << 40)),
            st.builds(
                lambda owner: TableOwners(torch.tensor(owner), size),
                st.lists(st.integers(0, size - 1), min_size=nodes, max_size=nodes),
            ),
        )
    )
    fanouts = draw(st.lists(st.sampled_from([-1, 0, 1, 2, 4, 5, 16, 17, 100]), min_size=1, max_size=3))
    seeds = st.lists(st.integers(0, nodes - 1), max_size=8)
    number = st.sampled_from([0, 1, 2**32, 2**64 - 1])
    batch = st.tuples(seeds, st.sampled_from([0, 5, 2**32 - 1]), number)
    return graph, owners, fanouts, draw(st.lists(st.lists(batch, max_size=3), min_size=size, max_size=size))


@settings(derandomize=True, deadline=None, max_examples=120)
@given(case=cases(), replace=st.booleans(), seed=st.sampled_from([0, 7, 2**64 - 1]))
def test_split_samples_have_the_bits_of_whole_ones_and_the_bytes_of_the_formula(case, replace, seed):
    graph, owners, fanouts, batches = case
    nodes = [torch.tensor([node for seeds, _, _ in of_rank for node in seeds], dtype=torch.int64) for of_rank in batches]

    def work(ranks):
        exchange = ThreadExchange(ranks)
        rows = share_of(graph, owners, ranks.rank)
        sampler = SplitSampler(*rows, owners, fanouts, replace=replace, seed=seed, exchange=exchange, threads=1)
        samples, of_samples = sampler.sample_many(batches[ranks.rank]), dict(exchange.traffic)
        exchange.traffic.clear()
        return samples, of_samples, sampler.degrees(nodes[ranks.rank]), dict(exchange.traffic)

    results = on_every_rank(owners.ranks, work)
    for result in results:
        if isinstance(result, Exception):
            raise result
    sizes = {"row_bytes": 4, "id_bytes": graph.indices.element_size()}
    asked = [[asked_sizes(sample, owners) for sample in samples] for samples, *_ in results]
    asked_degrees = [torch.bincount(owners.locate(ids)[0], minlength=owners.ranks).tolist() for ids in nodes]
    for rank, (samples, of_samples, degrees, of_degrees) in enumerate(results):
        for sample, request in zip(samples, batches[rank], strict=True):
            assert_equals_whole(sample, graph, fanouts, request, replace=replace, seed=seed)
        assert torch.equal(degrees, graph.degrees(loops=False)[nodes[rank]])
        if owners.ranks > 1:
            assert of_samples == sample_traffic(asked, rank, hops=len(fanouts), **sizes)
            assert of_degrees == degree_traffic(asked_degrees, rank, **sizes)
