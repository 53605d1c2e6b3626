"""Arguments that once ended the process: sizes whose bytes overflow, arrays without dimensions, rows that do not rise."""

import numpy as np
import pytest
import torch

from headrace import _native, generate

SOME = np.arange(4)
NONE = np.zeros(0, np.int32)
ZERO = np.array(3)  # no dimension
MATRIX = np.zeros((4, 2), np.float32)


def test_features_that_fit_no_memory_are_refused():
    with pytest.raises(ValueError, match=r"a graph of 1000 nodes, 4000 edges and \d+ features would take .* of memory"):
        generate.community(1000, 4000, classes=4, features=2**60)


@pytest.mark.parametrize("size", [2**48, 2**55, 2**56])
def test_sizes_that_fit_no_memory_are_memory_errors(size):
    with pytest.raises(MemoryError):
        _native.random_words(0, 0, _native.Purpose.generate, size, 1)
    with pytest.raises(MemoryError):
        _native.power_law_weights(0, 2.8, 10.0, size, 1)
    with pytest.raises(MemoryError):
        _native.Pool.create(0).empty(size)
    with pytest.raises(MemoryError):
        _native.PlannedCache(size, 1, 1)
    with pytest.raises(MemoryError):
        _native.transpose_csr(np.zeros(1, np.int64), NONE, size, positions=False, threads=1)
    with pytest.raises(MemoryError):
        _native.build_csr(SOME, SOME, size, wide_index=True, undirected=False, deduplicate=False, self_loops="keep",
                          positions=False, threads=1)  # fmt: skip


@pytest.mark.parametrize("size", [2**60, 2**61, 2**62, 2**63 - 1])
def test_sizes_that_fit_no_machine_are_named(size):
    with pytest.raises(ValueError, match=f"count must be at most .* is {size}"):
        _native.random_words(0, 0, _native.Purpose.generate, size, 1)
    with pytest.raises(ValueError, match="nodes must be at most"):
        _native.power_law_weights(0, 2.8, 10.0, size, 1)
    with pytest.raises(ValueError, match="columns must be at most"):
        _native.transpose_csr(np.zeros(1, np.int64), NONE, size, positions=False, threads=1)
    shared = {"seed": 0, "epoch": 0, "batch": 0, "own": 0, "starts": SOME[:1], "before": SOME[:2], "cumulative": None, "threads": 1}
    with pytest.raises((MemoryError, ValueError)):
        _native.shared_negatives(4, chunks=size, amount=size, **shared)


def test_arrays_without_dimensions_are_refused():
    with pytest.raises(ValueError, match="at least one dimension"):
        _native.expand_csr(np.zeros(1, np.int64), ZERO, np.zeros((2, 0), np.int64), 1)
    row = np.zeros(0)
    for cached, fetched, out in [(ZERO, ZERO, ZERO), (ZERO, row, row), (row, ZERO, row), (row, row, ZERO)]:
        with pytest.raises(ValueError, match="at least one dimension"):
            _native.merge_rows(cached, fetched, NONE, out, 1)
    for fetched, cached in [(ZERO, ZERO), (np.zeros(0), np.array(1.0))]:
        with pytest.raises(ValueError, match="at least one dimension"):
            _native.keep_rows(fetched, NONE, cached, 1)
    with pytest.raises(ValueError):
        _native.gather_trained(SOME, SOME, ZERO, MATRIX, MATRIX, rows_per_part=1, num_rows=4, half=False, threads=1)
    with pytest.raises(ValueError):
        _native.read_rows(0, 0, 4, 8, ZERO, MATRIX, positions=SOME, threads=1)


def test_attend_gradient_refuses_a_transpose_without_dimensions():
    x, scores, indptr, indices = np.ones((2, 1, 2), np.float32), np.ones((2, 1), np.float32), np.array([0, 1, 2]), np.array([1, 0])
    peak = np.ones((2, 2, 1), np.float32)
    how = {"slope": 0.2, "self_loops": False, "dropout": 0.0, "seed": 0, "threads": 1}
    grads = {"grad_x": np.zeros_like(x), "grad_source": None, "grad_target": None, "grad_attention": None}
    for transpose in ({"t_indices": ZERO, "t_position": indices}, {"t_indices": indices, "t_position": ZERO}):
        with pytest.raises(ValueError, match="at least one dimension"):
            _native.attend_gradient(
                x.copy(), x.copy(), peak, x, indptr, indices, source=scores, target=scores, attention=None, t_indptr=indptr,
                **transpose, **grads, **how,
            )  # fmt: skip


@pytest.mark.parametrize(
    ("indptr", "permuted"), [([0, 3, 1, 4], [0, 3, 1, 4]), ([0, 9, 9, 4], [0, 9, 9, 4]), ([1, 1, 1, 4], [1, 1, 1, 4])]
)
def test_permuted_entries_must_rise(indptr, permuted):
    values = np.arange(4.0)
    with pytest.raises(ValueError, match="indptr and permuted must"):
        _native.permute_entries(np.array(indptr), np.array(permuted), np.arange(3), values, np.zeros(4), 1)


def test_the_last_entries_are_taken_once():
    with pytest.raises(ValueError, match="`last` goes with no replacement"):
        _native.Sampler(np.array([0, 2]), np.array([0, 0]), [5], replace=True, hash=False, last=True)


def test_a_step_of_no_columns_is_refused():
    rows, state = np.zeros((2, 0), np.float32), np.zeros((2, 1), np.float32)
    with pytest.raises(ValueError, match="at least one column"):
        _native.LinkWorkspace().step(
            "dot", rows=rows, state=state, ids=None, place=np.array([0, 1, 0]), relation=np.array([0]),
            parameters=rows, parameter_state=rows, hidden=None, delta=None, delta_state=None, chunks=1, reciprocal=False,
            optimizer="row_adagrad", relation_optimizer="sgd", lr=0.1, eps=0.0, threads=1,
        )  # fmt: skip


def test_an_access_is_finished_once_and_by_its_cache():
    cache, other = (_native.OnlineCache("lru", 10, 4) for _ in range(2))
    access = cache.access(SOME)
    with pytest.raises(ValueError, match="none of this cache"):
        other.finish(access, True)
    cache.finish(access, True)
    with pytest.raises(ValueError, match="finished before"):
        cache.finish(access, True)
    with pytest.raises(ValueError):
        cache.finish(cache.find(SOME), True)


def test_weights_that_add_up_to_nothing_are_refused():
    how = {"block": 1, "within_block": 0.5, "within_class": 0.5, "mean_degree": 2.0, "seed": 0, "round": 0, "wanted": 4.0}
    more = {"undirected": True, "wide": False, "threads": 1}
    with pytest.raises(ValueError, match="add up to more than 0"):
        _native.candidate_edges(np.zeros(3), np.array([0, 2]), np.zeros(2, np.int32), **how, **more)
    with pytest.raises(ValueError, match="do not agree"):
        _native.candidate_edges(np.arange(3.0), np.array([0, 1, 2]), np.array([1, 0], np.int32), **how, **more)
    with pytest.raises(ValueError, match="do not agree"):  # to which 1 cannot be added in 32 bits
        _native.candidate_edges(np.arange(3.0), np.array([0, 1, 2]), np.array([0, 2**31 - 1], np.int32), **how, **more)


def test_rows_too_wide_to_count_are_refused():
    wide = torch.empty(0, 2**31, 2**31)
    with pytest.raises(ValueError, match="less than"):
        _native.gather(wide, np.zeros(0, np.int64), wide, 1)
