"""Padded batches: a model computes the rows of the seeds, and the gradients, that it computes of the batch itself."""

import pytest
import torch

import headrace as hr
from headrace.loader.padded import PaddedBatch, Shape


@pytest.fixture(scope="module")
def batches():
    data = hr.generate.community(nodes=3000, edges=40_000, classes=4, features=12)
    return list(hr.loader.NeighborLoader(data, [6, 4, 3], "train", batch_size=64, shuffle=True, drop_last=True))


@pytest.mark.parametrize("conv", ["sage", "gcn"])
@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("spare", [0.0, 0.5])
def test_rows_and_gradients_of_seeds_are_those_of_the_batch(batches, conv, in_place, spare):
    model = hr.nn.GNN(12, 16, 4, layers=3, conv=conv, dropout=0.0)
    shape = Shape.of(batches[0].sample, spare=spare)
    for batch in batches[:3]:
        shape = shape.union(Shape.of(batch.sample, spare=spare))
    plain = [hr.loader.Batch(b.sample, b.input_id, b.rows, b.labels, b.index, b.graph) for b in batches[:3]]
    if not in_place:
        for batch in plain:
            batch.x  # noqa: B018 - gathers
    padded = PaddedBatch(shape, plain[0], in_place=in_place and model.reads_table)
    padded.keep_degrees(plain[0])
    for batch in plain:  # one after the other in the same memory
        assert shape.holds(Shape.of(batch.sample))
        padded.fill(batch)
        found, expected = [], []
        for one, into in ((padded, found), (batch, expected)):
            model.zero_grad()
            rows = model(one)
            assert rows.shape == (64, 4)
            torch.nn.functional.cross_entropy(rows, batch.y).backward()
            into.extend([rows.detach(), *(p.grad.clone() for p in model.parameters())])
        for a, b in zip(found, expected, strict=True):
            assert torch.allclose(a, b, rtol=1e-4, atol=1e-6)
        assert torch.equal(padded.y, batch.y)


def test_a_shape_holds_what_fits(batches):
    small, large = sorted((b.sample for b in batches), key=lambda s: s.nodes.numel())[:: len(batches) - 1]
    room = Shape.of(large)
    assert room.holds(Shape.of(large))
    assert room.union(Shape.of(small)).holds(Shape.of(small))
    assert not Shape((64, 65, 66, 67), (1, 2, 3)).holds(Shape.of(small))
    other = hr.sample.Sample(
        large.nodes, large.indptr, large.indices, (63, *large.num_sampled_nodes[1:]), large.num_sampled_edges, None
    )
    assert not room.holds(Shape.of(other))  # other seeds
    assert Shape.of(large, spare=0.5).nodes[0] == 64
