"""What tests of loaders that yield PyG's objects share. Needs torch-geometric."""

import torch
from torch_geometric.loader import LinkLoader
from torch_geometric.sampler import NegativeSampling as PygNegativeSampling

from headrace.sample.pyg import PygSampler


def link_loader(data, number, *, how, negatives, **options):
    """PyG's own loader, made to draw our sample and our negatives as batch `number`."""

    class Sampler(PygSampler):
        def _sample(self, seeds):
            seeds = seeds if isinstance(seeds, dict) else seeds.contiguous()
            return self.sampler.sample(seeds, 0, number, edge_ids=True)

    class Ours(PygNegativeSampling):
        def sample(self, num_samples, endpoint, num_nodes=None):
            drawn = getattr(negatives, endpoint)
            assert len(drawn) == num_samples
            return drawn

    sampling = None if how is None else Ours(how["mode"], how["amount"])
    return LinkLoader(data, Sampler(data, [4, 3], seed=5), neg_sampling=sampling, **options)


def assert_same_fields(ours, theirs):
    """Two objects of PyG with the same fields, of the same types and equal to the bit."""
    assert set(ours.keys()) == set(theirs.keys())
    for field in theirs.keys():  # noqa: SIM118 - PyG's method
        a, b = ours[field], theirs[field]
        assert type(a) is type(b), field
        if isinstance(b, torch.Tensor):
            assert a.dtype == b.dtype, field
            assert torch.equal(a, b), field
        else:
            assert a == b, field


def assert_transforms_are_called(loader_of, mark, *, output):
    """`loader_of(transform=, transform_sampler_output=)` shows both what PyG shows them, in each of two batches."""
    seen = []

    def on_output(sampled):
        seen.append(type(sampled).__name__)
        return sampled

    def on_batch(batch):
        mark(batch).transformed = True
        return batch

    loader = loader_of(transform=on_batch, transform_sampler_output=on_output)
    assert all(mark(batch).transformed for batch in loader)
    assert seen == [output] * 2
    return loader


def by_adjacency(edge_index, values, nodes):
    """Edges as PyG's `adj_t`, a sparse CSR tensor, and the order in which it has them."""
    order = edge_index[1].argsort(stable=True)
    src, dst = edge_index[:, order]
    indptr = torch.searchsorted(dst.contiguous(), torch.arange(nodes + 1))
    return torch.sparse_csr_tensor(indptr, src, values, (nodes, nodes), check_invariants=False), order
