from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

level: str

class Purpose(IntEnum):  # of native/philox.h
    sample = ...
    shuffle = ...
    generate = ...
    dropout = ...
    attend = ...
    labor = ...
    negative = ...
    rounding = ...
    initial = ...
    residence = ...
    node_order = ...
    step = ...
    community = ...
    knowledge = ...
    events = ...

def stream_key(seed: int, epoch: int, batch: int, purpose: Purpose) -> int: ...
def random_words(seed: int, epoch: int, purpose: Purpose, count: int, threads: int) -> NDArray[np.uint64]: ...
def id_range(ids: Any, threads: int) -> tuple[int, int]: ...
def build_csr(
    src: Any,
    dst: Any,
    num_nodes: int,
    *,
    wide_index: bool,
    undirected: bool,
    deduplicate: bool,
    self_loops: str,
    positions: bool,
    threads: int,
) -> tuple[NDArray[np.int64], NDArray[Any], NDArray[Any] | None]: ...
def transpose_csr(
    indptr: Any, indices: Any, columns: int, *, positions: bool, threads: int
) -> tuple[NDArray[np.int64], NDArray[Any], NDArray[Any] | None]: ...
def check_csr(indptr: Any, indices: Any, columns: int, threads: int) -> None: ...
def expand_csr(indptr: Any, indices: Any, out: Any, threads: int) -> None: ...
def summarize(indptr: Any, indices: Any, hub: float, threads: int) -> dict[str, float]: ...
def window_reuse(indptr: Any, indices: Any, order: Any | None, *, window: int, sample: int, threads: int) -> tuple[int, int]: ...
def simulate_lru(indptr: Any, indices: Any, order: Any | None, *, capacity: int, windows: int, threads: int) -> tuple[int, int]: ...
def invert_order(order: Any, threads: int) -> NDArray[np.int64]: ...
def permute_csr(indptr: Any, indices: Any, order: Any, threads: int) -> tuple[NDArray[np.int64], NDArray[Any]]: ...
def permute_entries(indptr: Any, permuted: Any, order: Any, values: Any, out: Any, threads: int) -> None: ...
def least_columns(indptr: Any, indices: Any, threads: int) -> NDArray[np.int64]: ...
def rabbit_order(
    indptr: Any, indices: Any, out_indptr: Any | None, out_indices: Any | None, *, progress: Any | None, threads: int
) -> NDArray[np.int64]: ...

class Pool:
    @staticmethod
    def create(limit: int) -> Pool: ...
    def empty(self, bytes: int) -> NDArray[np.uint8]: ...
    def stats(self) -> dict[str, int]: ...
    def clear(self) -> None: ...

def gather(rows: Any, ids: Any, out: Any, threads: int) -> None: ...
def aggregate(
    x: Any,
    indptr: Any,
    indices: Any,
    out: Any,
    reduce: str,
    *,
    ids: Any | None,
    weight: Any | None,
    position: Any | None,
    scale: Any | None,
    where: Any | None,
    threads: int,
    row_scale: Any | None = None,
    tile: int | None = None,
) -> None: ...
def column_tile(rows: int, width: int, element_bytes: int, cache_bytes: int, mean_degree: float) -> int: ...
def last_level_cache() -> int: ...
def max_gradient(
    grad: Any,
    indptr: Any,
    indices: Any,
    position: Any,
    forward: Any,
    where: Any,
    out: Any,
    *,
    weight: Any | None,
    threads: int,
) -> None: ...
def weight_gradient(
    x: Any,
    indptr: Any,
    indices: Any,
    grad: Any,
    out: Any,
    *,
    ids: Any | None,
    row_scale: Any | None,
    where: Any | None,
    threads: int,
) -> None: ...
def dropout(
    x: Any,
    out: Any,
    *,
    seed: int,
    dropped: int,
    scale: float,
    relu: bool,
    gate: Any | None,
    threads: int,
    rows: Any | None = None,
    first: int = 0,
    stride: int = 0,
) -> None: ...
def keep_freed_memory(keep: bool) -> None: ...
def share_one_heap() -> None: ...
def attend(
    x: Any,
    indptr: Any,
    indices: Any,
    out: Any,
    peak: Any,
    *,
    source: Any | None,
    target: Any,
    attention: Any | None,
    slope: float,
    self_loops: bool,
    dropout: float,
    seed: int,
    threads: int,
    shift: Any | None = None,
    whole_rows: Any | None = None,
    whole_entries: int = 0,
) -> None: ...
def attend_gradient(
    grad: Any,
    out: Any,
    peak: Any,
    x: Any,
    indptr: Any,
    indices: Any,
    *,
    t_indptr: Any | None,
    t_indices: Any | None,
    t_position: Any | None,
    source: Any | None,
    target: Any,
    attention: Any | None,
    grad_x: Any | None,
    grad_source: Any | None,
    grad_target: Any | None,
    grad_attention: Any | None,
    slope: float,
    self_loops: bool,
    dropout: float,
    seed: int,
    threads: int,
    shift: Any | None = None,
    whole_rows: Any | None = None,
    whole_entries: int = 0,
) -> None: ...
def attend_time(
    query: Any,
    indptr: Any,
    indices: Any,
    dt: Any,
    x: Any,
    time_weight: Any,
    time_bias: Any,
    edge_x: Any | None,
    edge_id: Any | None,
    *,
    out: Any,
    score: Any,
    peak: Any,
    slope: float,
    dropout: float,
    seed: int,
    threads: int,
) -> None: ...
def attend_time_gradient(
    grad: Any,
    out: Any,
    score: Any,
    peak: Any,
    query: Any,
    indptr: Any,
    indices: Any,
    dt: Any,
    x: Any,
    time_weight: Any,
    time_bias: Any,
    edge_x: Any | None,
    edge_id: Any | None,
    *,
    t_indptr: Any | None,
    t_indices: Any | None,
    t_position: Any | None,
    grad_query: Any,
    grad_x: Any | None,
    grad_time: Any | None,
    slope: float,
    dropout: float,
    seed: int,
    threads: int,
) -> None: ...
def gru(input: Any, hidden: Any, memory: Any, gates: Any, out: Any, *, threads: int) -> None: ...
def gru_gradient(
    grad: Any,
    gates: Any,
    hidden: Any,
    memory: Any,
    grad_input: Any,
    grad_hidden: Any,
    grad_memory: Any | None,
    *,
    threads: int,
) -> None: ...

class Sampler:
    def __init__(
        self,
        indptr: Any,
        indices: Any,
        fanouts: list[int],
        *,
        replace: bool,
        hash: bool,
        disjoint: bool = False,
        weight: Any | None = None,
        cumulative: Any | None = None,
        time: Any | None = None,
        since: Any | None = None,
        last: bool = False,
        inclusive: bool = False,
        edge_time: bool = False,
        labor: bool = False,
        layer_dependency: bool = False,
        batch_dependency: int = 1,
    ) -> None: ...
    def sample(
        self,
        seeds: Any,
        pool: Pool,
        *,
        seed: int,
        epoch: int,
        batch: int,
        positions: bool,
        threads: int,
        time: Any | None = None,
    ) -> tuple[
        NDArray[Any],
        NDArray[np.int64],
        NDArray[np.int32],
        NDArray[np.int64] | None,
        NDArray[np.int32] | None,
        list[int],
        list[int],
    ]: ...
    @property
    def workspace_bytes(self) -> int: ...

def draw_part(
    indptr: Any,
    indices: Any,
    nodes: Any,
    rows: Any,
    *,
    sizes: Any,
    keys: Any,
    pool: Pool,
    fanout: int,
    hop: int,
    replace: bool,
    threads: int,
    num_nodes: int,
) -> tuple[NDArray[Any], NDArray[np.int64]]: ...

class Hops:
    def __init__(self, num_nodes: int, *, wide: bool, hash: bool) -> None: ...
    def begin(self, seeds: Any, pool: Pool) -> None: ...
    def frontier(self) -> NDArray[Any]: ...
    def add(self, drawer: Any, drawn: list[Any], *, threads: int) -> None: ...
    def finish(
        self,
    ) -> tuple[NDArray[Any], NDArray[np.int64], NDArray[np.int32], None, None, list[int], list[int]]: ...
    @property
    def workspace_bytes(self) -> int: ...

def cumulative_weights(indptr: Any, weight: Any, threads: int) -> NDArray[np.float64]: ...

class HeteroSampler:
    def __init__(
        self,
        num_nodes: list[int],
        indptr: list[Any],
        indices: list[Any],
        *,
        source: list[int],
        target: list[int],
        fanouts: list[list[int]],
        hops: int,
        replace: bool,
        hash: list[bool],
    ) -> None: ...
    def sample(
        self, seeds: list[Any], pool: Pool, *, seed: int, epoch: int, batch: int, positions: bool, threads: int
    ) -> tuple[
        list[NDArray[np.int64]],
        list[NDArray[np.int64]],
        list[NDArray[np.int32]],
        list[NDArray[np.int64]] | None,
        list[list[int]],
        list[list[int]],
    ]: ...
    @property
    def workspace_bytes(self) -> int: ...

def negatives(
    count: int,
    *,
    seed: int,
    epoch: int,
    batch: int,
    num_src: int,
    num_dst: int,
    src: Any | None,
    src_cumulative: Any | None,
    dst_cumulative: Any | None,
    indptr: Any | None,
    indices: Any | None,
    rounds: int,
    threads: int,
) -> tuple[NDArray[np.int64] | None, NDArray[np.int64], int]: ...
def shared_negatives(
    ends: int,
    *,
    seed: int,
    epoch: int,
    batch: int,
    chunks: int,
    amount: int,
    own: int,
    starts: Any,
    before: Any,
    cumulative: Any | None,
    threads: int,
) -> NDArray[np.int64]: ...
def numbered_edges(
    triples: Any,
    positions: Any,
    *,
    seed: int,
    epoch: int,
    batch: int,
    chunks: int,
    amount: int,
    own: int,
    starts: Any,
    before: Any,
    cumulative: Any | None,
    threads: int,
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], int]: ...

class Checksum:
    def __init__(self) -> None: ...
    def update(self, data: Any) -> None: ...
    def digest(self) -> int: ...

def read_rows(
    fd: int, offset: int, num_rows: int, row_bytes: int, ids: Any, out: Any, *, positions: Any | None, threads: int
) -> None: ...
def gather_trained(
    row_bases: Any,
    state_bases: Any,
    ids: Any,
    rows: Any,
    state: Any,
    *,
    rows_per_part: int,
    num_rows: int,
    half: bool,
    threads: int,
) -> int: ...
def add_trained(
    row_bases: Any,
    state_bases: Any,
    ids: Any,
    rows: Any,
    state: Any,
    touched: Any,
    *,
    rows_per_part: int,
    num_rows: int,
    half: bool,
    seed: int,
    call: int,
    threads: int,
) -> int: ...
def count_scores(scores: Any, low: Any, high: Any, above: Any, level: Any, *, threads: int) -> None: ...
def shared_softmax(
    query: Any, answer: Any, candidates: Any, *, hidden: Any | None, to_query: Any, to_answer: Any, to_candidates: Any, threads: int
) -> float: ...
def row_updates(
    optimizer: str, grad: Any, state: Any, delta: Any, squares: Any, *, lr: float, eps: float, threads: int
) -> None: ...

class LinkWorkspace:
    def __init__(self) -> None: ...
    def step(
        self,
        decoder: str,
        *,
        rows: Any,
        state: Any,
        ids: Any | None,
        place: Any,
        relation: Any,
        parameters: Any,
        parameter_state: Any,
        hidden: Any | None,
        delta: Any | None,
        delta_state: Any | None,
        chunks: int,
        reciprocal: bool,
        optimizer: str,
        relation_optimizer: str,
        lr: float,
        eps: float,
        threads: int,
    ) -> float: ...

def normal_rows(seed: int, begin: int, scale: float, out: Any, *, threads: int) -> None: ...
def power_law_weights(seed: int, exponent: float, most: float, nodes: int, threads: int) -> NDArray[np.float64]: ...
def candidate_edges(
    cumulative: Any,
    class_ends: Any,
    class_of: Any,
    *,
    block: int,
    within_block: float,
    within_class: float,
    mean_degree: float,
    seed: int,
    round: int,
    wanted: float,
    undirected: bool,
    wide: bool,
    threads: int,
) -> tuple[NDArray[Any], NDArray[Any]]: ...
def thin_edges(indptr: Any, indices: Any, keep: int, id: Any, threads: int) -> tuple[NDArray[Any], NDArray[Any]]: ...
def noisy_rows(seed: int, center: Any, label: Any, out: Any, threads: int) -> None: ...

class Access:
    @property
    def source(self) -> NDArray[np.int32]: ...
    @property
    def fetch(self) -> NDArray[np.int64]: ...
    @property
    def fill(self) -> NDArray[np.int32]: ...
    @property
    def evicted(self) -> NDArray[np.int64]: ...
    @property
    def hits(self) -> int: ...

class Cache:
    def access(self, ids: Any) -> Access: ...
    def finish(self, access: Access, filled: bool) -> None: ...
    def find(self, ids: Any) -> Access: ...
    def forget(self, slots: Any) -> None: ...
    @property
    def rows_held(self) -> int: ...

class OnlineCache(Cache):
    def __init__(self, policy: str, nodes: int, capacity: int) -> None: ...

class PlannedCache(Cache):
    def __init__(self, nodes: int, capacity: int, lookahead: int) -> None: ...
    def announce(self, ids: Any) -> None: ...
    def restart(self) -> None: ...
    def first_difference(self, ids: Any) -> int: ...
    @property
    def announced(self) -> int: ...

def merge_rows(cached: Any, fetched: Any, source: Any, out: Any, threads: int) -> None: ...
def keep_rows(fetched: Any, slots: Any, cached: Any, threads: int) -> None: ...
def bare_sample(
    indptr: Any,
    indices: Any,
    stamp: Any,
    seeds: Any,
    fanouts: Any,
    sources: Any,
    targets: Any,
    nodes: Any,
    seed: int,
) -> tuple[int, int]: ...
def bare_gather(rows: Any, ids: Any, out: Any, threads: int) -> None: ...
def bare_sum(x: Any, indptr: Any, indices: Any, out: Any, threads: int) -> None: ...
