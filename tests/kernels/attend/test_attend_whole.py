"""Attention over rows that are part of a whole: their coefficients are dropped as those of the whole, in all three passes."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace as hr
from headrace import _native
from headrace.kernels import Whole, attend, attend_pairs, attend_pairs_reference, attend_reference
from headrace.kernels._attend.attend import _factors
from plain_philox import philox, stream_key

KINDS = ["gat", "gatv2"]
FAR = 2**33 + 5  # positions from here on lie above 2**32


def graph_of(degrees, columns, seed=0):
    generator = torch.Generator().manual_seed(seed)
    indptr = torch.tensor([0, *degrees]).cumsum(0)
    return indptr, torch.randint(0, columns, (int(indptr[-1]),), generator=generator).to(torch.int32)


def part_of(indptr, indices, rows):
    """The CSR of these rows."""
    pieces = [indices[indptr[row] : indptr[row + 1]] for row in rows.tolist()]
    return torch.tensor([0, *(len(piece) for piece in pieces)]).cumsum(0), torch.cat([indices[:0], *pieces])


def leaves_of(kind, rows, columns, heads, channels, dtype=torch.float64):
    named = {"x": torch.randn(columns, heads, channels)}
    if kind == "gat":
        named |= {"source": torch.randn(columns, heads), "target": torch.randn(rows, heads)}
    else:
        named |= {"target": torch.randn(rows, heads, channels), "attention": torch.randn(heads, channels)}
    return {name: value.to(dtype) for name, value in named.items()}


def run(function, leaves, indptr, indices, grad, **options):
    """The output and all gradients, by name."""
    here = {name: value.clone().requires_grad_() for name, value in leaves.items()}
    out = function(here["x"], indptr, indices, **{n: v for n, v in here.items() if n != "x"}, **options)
    found = torch.autograd.grad(out, list(here.values()), grad)
    return {"out": out.detach(), **dict(zip(here, found, strict=True))}


def functions(kind):
    return (attend, attend_reference) if kind == "gat" else (attend_pairs, attend_pairs_reference)


def assert_part_is_that_of_the_whole(
    kind, indptr, indices, rows, columns, heads, channels, *, self_loops, dropout=0.4, threads=None
):
    """The rows of a part, with sources numbered so that row i is of source i: results are the whole's."""
    height = len(indptr) - 1
    leaves = leaves_of(kind, height, columns, heads, channels)
    order = torch.arange(columns)
    if self_loops:  # those of the rows come first
        others = torch.ones(columns, dtype=torch.bool).index_fill(0, rows, False)
        order = torch.cat([rows, others.nonzero()[:, 0]])
    number = torch.empty_like(order).index_copy_(0, order, torch.arange(columns))
    part_indptr, part_indices = part_of(indptr, indices, rows)
    part_indices = number[part_indices.long()].to(indices.dtype)

    def of_part(tensors):
        chosen = {"out": rows, "target": rows, "x": order, "source": order}
        return {name: value[chosen[name]] if name in chosen else value for name, value in tensors.items()}

    part_grad = torch.randn(len(rows), heads, channels).double()
    grad = torch.zeros(height, heads, channels).double().index_add_(0, rows, part_grad)
    options = {"self_loops": self_loops, "dropout": dropout, "seed": 2**40 + 3}
    ours, reference = functions(kind)
    expected = of_part(run(ours, leaves, indptr, indices, grad, **options))
    place, part_leaves = Whole.of(indptr, rows), of_part(leaves)
    found = run(ours, part_leaves, part_indptr, part_indices, part_grad, **options, whole=place, threads=threads)
    assert torch.equal(found["out"], expected["out"])
    assert torch.equal(found["target"], expected["target"])
    truth = run(reference, part_leaves, part_indptr, part_indices, part_grad, **options, whole=place)
    for name in found:
        torch.testing.assert_close(found[name], expected[name], rtol=0, atol=1e-11, msg=lambda m, n=name: f"{n}: {m}")
        torch.testing.assert_close(truth[name], expected[name], rtol=0, atol=1e-11, msg=lambda m, n=name: f"reference, {n}: {m}")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("heads", [1, 3, 8, 17])
@pytest.mark.parametrize("self_loops", [False, True])
@pytest.mark.parametrize("threads", [1, 2])
def test_a_subset_of_rows_in_any_order_is_that_of_the_whole(kind, heads, self_loops, threads):
    indptr, indices = graph_of([3, 0, 300, 1, 40, 2, 129, 0, 128, 5], 12)  # 128 entries are looked at together
    indices[:2] = 0  # loops that are there already
    for rows in ([2, 8, 0, 6], [9, 4, 1], [7], [1, 2, 3]):
        assert_part_is_that_of_the_whole(
            kind, indptr, indices, torch.tensor(rows), 12, heads, 7, self_loops=self_loops, threads=threads
        )


@settings(max_examples=40, deadline=None)
@given(
    kind=st.sampled_from(KINDS),
    degrees=st.lists(st.integers(0, 9), min_size=1, max_size=8),
    heads=st.integers(1, 5),
    channels=st.integers(1, 9),
    self_loops=st.booleans(),
    data=st.data(),
)
def test_any_part_is_that_of_the_whole(kind, degrees, heads, channels, self_loops, data):
    columns = len(degrees) + data.draw(st.integers(0, 3))
    indptr, indices = graph_of(degrees, columns, data.draw(st.integers(0, 1_000)))
    rows = torch.tensor(data.draw(st.permutations(range(len(degrees)))))[: data.draw(st.integers(1, len(degrees)))]
    assert_part_is_that_of_the_whole(kind, indptr, indices, rows, columns, heads, channels, self_loops=self_loops)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("self_loops", [False, True])
def test_positions_above_two_to_the_32_are_those_of_the_reference(kind, self_loops):
    indptr, indices = graph_of([3, 0, 7, 150, 1], 9)
    place = Whole(torch.tensor([FAR, 0, FAR - 2, 5, 2**40]), torch.tensor([FAR, 7, FAR + 100, 0, 2**39]), 2**41)
    leaves, grad = leaves_of(kind, 5, 9, 5, 3), torch.randn(5, 5, 3).double()
    options = {"self_loops": self_loops, "dropout": 0.4, "seed": 11, "whole": place}
    found, truth = (run(function, leaves, indptr, indices, grad, **options) for function in functions(kind))
    here = run(functions(kind)[0], leaves, indptr, indices, grad, **(options | {"whole": None}))
    for name in found:
        torch.testing.assert_close(found[name], truth[name], rtol=0, atol=1e-11, msg=lambda m, n=name: f"{n}: {m}")
        assert not torch.allclose(found[name], here[name])  # it is another mask


def test_factors_are_philox_of_the_seed_the_position_and_the_head():
    positions = [0, 1, 2**32 - 1, 2**32, FAR, 2**56]
    key = stream_key(4, 0, 0, _native.Purpose.attend)
    words = [[philox(key, (h // 4, p & 0xFFFFFFFF, p >> 32, 0))[h % 4] for h in range(9)] for p in positions]
    expected = (torch.tensor(words) >= int(0.3 * 2**32)).double() / 0.7
    assert torch.equal(_factors(torch.tensor(positions), 9, 0.3, 4), expected)


@pytest.mark.parametrize("kind", KINDS)
def test_threads_and_a_given_transpose_change_no_bit(kind):
    graph = hr.generate.community(nodes=600, edges=9_000, classes=3, features=0).graph
    leaves = leaves_of(kind, 600, 600, 4, 8, torch.float32)
    place, grad = Whole(torch.randperm(600) + FAR, graph.indptr[:-1] + FAR, 2**40), torch.randn(600, 4, 8)
    options = {"self_loops": True, "dropout": 0.2, "whole": place}
    ours = functions(kind)[0]
    runs = [
        run(ours, leaves, graph.indptr, graph.indices, grad, **options, **more)
        for more in ({"threads": 1}, {"threads": 2}, {"threads": 5}, {"reverse": graph.reverse()})
    ]
    for other in runs[1:]:
        assert all(torch.equal(other[name], runs[0][name]) for name in runs[0])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_the_whole_as_its_own_part_has_its_bits(kind, dtype):
    indptr, indices = graph_of([3, 0, 300, 1, 40], 9)
    leaves, grad = leaves_of(kind, 5, 9, 4, 8, dtype), torch.randn(5, 4, 8).to(dtype)
    options = {"self_loops": True, "dropout": 0.4, "seed": 5}
    ours = functions(kind)[0]
    found, expected = (
        run(ours, leaves, indptr, indices, grad, **options, whole=place) for place in (Whole.of(indptr, torch.arange(5)), None)
    )
    assert all(torch.equal(found[name], expected[name]) for name in expected)


@pytest.mark.parametrize("kind", KINDS)
def test_parts_without_rows_or_entries(kind):
    for degrees, rows in (([], []), ([4, 0, 0], [1, 2])):
        indptr, indices = graph_of(degrees, 3)
        for self_loops in (False, True):
            chosen = torch.tensor(rows, dtype=torch.int64)
            assert_part_is_that_of_the_whole(kind, indptr, indices, chosen, 3, 2, 4, self_loops=self_loops)


def test_without_dropout_a_whole_changes_nothing():
    indptr, indices = graph_of([3, 2], 4)
    leaves = leaves_of("gat", 2, 4, 2, 3)
    x = leaves.pop("x")
    place = Whole(torch.tensor([7, 8]), torch.tensor([FAR, 0]), 2**40)
    assert torch.equal(attend(x, indptr, indices, **leaves, whole=place), attend(x, indptr, indices, **leaves))


@pytest.mark.parametrize("kind", KINDS)
def test_torch_takes_parts_for_an_op_and_compiles_them(kind):
    indptr, indices = graph_of([3, 0, 4], 5)
    leaves = leaves_of(kind, 3, 5, 2, 4, torch.float32)
    x, *more = (value.requires_grad_() for value in leaves.values())
    rows, begins = torch.tensor([9, 4, 2]), torch.tensor([100, 50, 7])
    op = torch.ops.headrace.attend if kind == "gat" else torch.ops.headrace.attend_pairs
    torch.library.opcheck(op.default, (x, indptr, indices, *more, None, None, None, rows, begins, 200, 0.2, True, 0.3, 7, 1))
    ours = functions(kind)[0]
    named = {name: value for name, value in leaves.items() if name != "x"}

    def layer(x, rows, begins):
        return ours(2 * x, indptr, indices, **named, self_loops=True, dropout=0.2, seed=3, whole=Whole(rows, begins, 200))

    plain, compiled = (f(x, rows, begins) for f in (layer, torch.compile(layer, fullgraph=True, backend="aot_eager")))
    assert torch.equal(plain, compiled)
    assert torch.equal(*(torch.autograd.grad(out.sum(), x)[0] for out in (plain, compiled)))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rows": torch.tensor([0, 1])}, r"whole.rows must be int64 of shape \(3,\), a number per row of indptr, not torch.int64"),
        ({"rows": torch.zeros(3, dtype=torch.int32)}, "whole.rows must be int64"),
        ({"begins": torch.tensor([0, 1, 2, 3])}, "whole.begins must be int64 of shape"),
        ({"begins": torch.zeros(3)}, "whole.begins must be int64"),
        ({"entries": -1}, r"whole.entries must be from 0 to 2\*\*56, not -1"),
        ({"entries": 12}, "whole.begins leads to entry 13 of a whole that has 12"),
        ({"rows": torch.tensor([0, -1, 2])}, "whole.rows and whole.begins must not be negative"),
        ({"begins": torch.tensor([0, -1, 2])}, "whole.rows and whole.begins must not be negative"),
        ({"rows": torch.zeros(3, dtype=torch.int64, device="meta")}, "whole.rows is on meta, indptr is on cpu"),
    ],
)
def test_a_whole_that_does_not_fit_is_named(change, message):
    place = Whole(**({"rows": torch.tensor([4, 0, 2]), "begins": torch.tensor([9, 0, 3]), "entries": 20} | change))
    indptr, indices = graph_of([4, 1, 2], 5)
    leaves = leaves_of("gat", 3, 5, 1, 2)
    with pytest.raises(ValueError, match=message):
        attend(leaves.pop("x"), indptr, indices, **leaves, dropout=0.5, whole=place)
