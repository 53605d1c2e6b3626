"""Good arguments for every function of the native module, by name; stateful classes as short sequences of calls.

Left out: `keep_freed_memory` and `share_one_heap`, which are about the whole process. The bare loops of benchmarks follow indices
without a look, and `gather_trained` and `add_trained` follow addresses: those are always good here.
"""

import tempfile
from collections.abc import Callable
from typing import Any

import numpy as np
from hostile import EXACT, FLOATS, IDS, Draws

Arguments = dict[str, Any]
_TABLE = {"row_bases", "state_bases", "rows_per_part", "num_rows", "half", "rows", "state"}
GOOD = {  # arguments that are left as they are
    "bare_gather": {"rows", "ids", "threads"},
    "bare_sum": {"x", "indptr", "indices", "threads"},
    "bare_sample": {"indptr", "indices", "seeds", "stamp"},
    "gather_trained": _TABLE,
    "add_trained": _TABLE,
    "negatives": {"rounds"},  # a budget: any number of them is allowed
    "rabbit_order": {"progress"},
} | ({"cache": {"nodes", "capacity", "lookahead"}} if EXACT else {})  # AddressSanitizer's `new` ends the process for want of memory
_FILE = tempfile.TemporaryFile()  # noqa: SIM115
_FILE.write(bytes(4096))
_FILE.flush()


def random_words(d: Draws) -> Arguments:
    return {"seed": 1, "epoch": 2, "purpose": d.pick((1, 2, 3)), "count": d.size(), "threads": d.threads()}


def stream_key(d: Draws) -> Arguments:
    return {"seed": 1, "epoch": 2, "batch": 3, "purpose": 1}


def id_range(d: Draws) -> Arguments:
    return {"ids": d.ints(d.size(), 100, d.pick(IDS)), "threads": d.threads()}


def build_csr(d: Draws) -> Arguments:
    nodes, edges, kind = d.size(least=1), d.size(), d.pick(IDS)
    return {
        "src": d.ints(edges, nodes, kind), "dst": d.ints(edges, nodes, kind), "num_nodes": nodes, "wide_index": d.chance(0.5),
        "undirected": d.chance(0.5), "deduplicate": d.chance(0.5), "self_loops": d.pick(("keep", "add", "drop")),
        "positions": d.chance(0.5), "threads": d.threads(),
    }  # fmt: skip


def transpose_csr(d: Draws) -> Arguments:
    columns = d.size()
    indptr, indices = d.graph(d.size(), columns)
    return {"indptr": indptr, "indices": indices, "columns": columns, "positions": d.chance(0.5), "threads": d.threads()}


def check_csr(d: Draws) -> Arguments:
    return {name: value for name, value in transpose_csr(d).items() if name != "positions"}


def expand_csr(d: Draws) -> Arguments:
    indptr, indices = d.graph(d.size(), 9)
    return {"indptr": indptr, "indices": indices, "out": d.empty((2, len(indices)), "int64"), "threads": d.threads()}


def _square(d: Draws) -> Arguments:
    nodes = d.size()
    indptr, indices = d.graph(nodes, nodes)
    return {"indptr": indptr, "indices": indices, "threads": d.threads()}


def _ordered(d: Draws) -> Arguments:
    given = _square(d)
    rows = len(given["indptr"]) - 1
    return {**given, "order": d.filled(d.rng.permutation(rows), "int64") if d.chance(0.7) else None}


def summarize(d: Draws) -> Arguments:
    return {**_square(d), "hub": 3.0}


def window_reuse(d: Draws) -> Arguments:
    return {**_ordered(d), "window": 1 + d.size(), "sample": 1 + d.size()}


def simulate_lru(d: Draws) -> Arguments:
    return {**_ordered(d), "capacity": 1 + d.size(), "windows": 1 + d.size()}


def invert_order(d: Draws) -> Arguments:
    return {"order": d.filled(d.rng.permutation(d.size()), "int64"), "threads": d.threads()}


def permute_csr(d: Draws) -> Arguments:
    given = _square(d)
    return {**given, "order": d.filled(d.rng.permutation(len(given["indptr"]) - 1), "int64")}


def permute_entries(d: Draws) -> Arguments:
    given = permute_csr(d)
    degrees = np.diff(given["indptr"])[given["order"]]
    entries, shape = len(given.pop("indices")), d.pick(((), (2,), (0,)))
    return {
        **given, "permuted": d.filled(np.concatenate([[0], np.cumsum(degrees)]), "int64"),
        "values": d.reals((entries, *shape)), "out": d.empty((entries, *shape), "float32"),
    }  # fmt: skip


least_columns = _square


def rabbit_order(d: Draws) -> Arguments:
    given = _square(d)
    whole = (
        {"out_indptr": given["indptr"], "out_indices": given["indices"]}
        if d.chance(0.5)
        else dict.fromkeys(("out_indptr", "out_indices"))
    )
    return {**given, **whole, "progress": None}


def gather(d: Draws) -> Arguments:
    rows, count, shape, kind = d.size(least=1), d.size(), d.pick(((), (1,), (7,), (33,), (2, 3), (0,))), d.pick((*FLOATS, "int8"))
    x = d.filled(np.ones((rows, *shape)), kind)
    return {"rows": x, "ids": d.ints(count, rows, d.pick(IDS)), "out": d.empty((count, *shape), kind), "threads": d.threads()}


def _entries(d: Draws) -> tuple[Arguments, int, int, str]:
    rows, columns, width, kind = d.size(), d.size(least=1), d.pick((0, 1, 3, 16, 17, 70, 300)), d.pick(FLOATS)
    indptr, indices = d.graph(rows, columns)
    return {"indptr": indptr, "indices": indices, "threads": d.threads()}, columns, width, kind


def _sums(kind: str) -> str:
    return "float64" if kind == "float64" else "float32"


def aggregate(d: Draws) -> Arguments:
    given, columns, width, kind = _entries(d)
    rows, entries, reduce = len(given["indptr"]) - 1, len(given["indices"]), d.pick(("sum", "mean", "max"))
    wide, ids = _sums(kind), d.ints(columns, columns, d.pick(IDS)) if d.chance(0.4) else None
    return {
        **given, "x": d.reals((columns, width), kind), "out": d.empty((rows, width), kind), "reduce": reduce, "ids": ids,
        "weight": d.reals(entries, wide) if d.chance(0.4) else None,
        "position": d.ints(entries, entries, d.pick(IDS)) if d.chance(0.4) else None,
        "scale": d.reals(columns, wide) if d.chance(0.4) else None,
        "where": d.empty((rows, width), "int32") if reduce == "max" or d.chance(0.1) else None,
        "row_scale": d.reals(rows, wide) if d.chance(0.4) else None,
        "tile": 16 if reduce != "max" and d.chance(0.3) else None,
    }  # fmt: skip


def column_tile(d: Draws) -> Arguments:
    return {"rows": d.size(), "width": d.size(), "element_bytes": 4, "cache_bytes": 1 << 20, "mean_degree": 8.0}


def last_level_cache(d: Draws) -> Arguments:
    return {}


def max_gradient(d: Draws) -> Arguments:
    given, columns, width, kind = _entries(d)
    entries = len(given["indices"])
    return {
        **given, "grad": d.reals((columns, width), kind), "position": d.ints(entries, entries, d.pick(IDS)),
        "forward": d.ints(columns + 1, entries), "where": d.ints((columns, width), 4, "int32"),
        "out": d.empty((len(given["indptr"]) - 1, width), kind), "weight": d.reals(entries, _sums(kind)) if d.chance(0.5) else None,
    }  # fmt: skip


def weight_gradient(d: Draws) -> Arguments:
    given, columns, width, kind = _entries(d)
    rows = len(given["indptr"]) - 1
    return {
        **given, "x": d.reals((columns, width), kind), "grad": d.reals((rows, width), kind),
        "out": d.empty(len(given["indices"]), _sums(kind)), "ids": d.ints(columns, columns) if d.chance(0.5) else None,
        "row_scale": d.reals(rows, _sums(kind)) if d.chance(0.5) else None,
        "where": d.ints((rows, width), 4, "int32") if d.chance(0.5) else None,
    }  # fmt: skip


def dropout(d: Draws) -> Arguments:
    shape, kind = (d.size(), d.pick((0, 1, 7, 70))), d.pick(FLOATS)
    return {
        "x": d.reals(shape, kind), "out": d.empty(shape, kind), "seed": 1, "dropped": 30000, "scale": 2.0, "relu": d.chance(0.5),
        "gate": d.reals(shape, kind) if d.chance(0.4) else None, "threads": d.threads(),
        "rows": d.ints(shape[0], 2**40) if d.chance(0.5) else None, "first": d.pick((0, 3)), "stride": d.pick((0, 90)),
    }  # fmt: skip


def _attention(d: Draws) -> tuple[Arguments, tuple[int, int, int, int], str]:
    columns, heads, channels, kind = d.size(least=1), d.pick((1, 2, 3, 8, 20)), d.pick((1, 2, 8, 16, 19, 40)), d.pick(FLOATS)
    rows, wide = min(columns, d.size()), _sums(kind)
    indptr, indices = d.graph(rows, columns)
    pairs, part = d.chance(0.5), d.chance(0.5)
    return {
        "x": d.reals((columns, heads, channels), kind), "indptr": indptr, "indices": indices,
        "shift": d.ints(rows, 2**40) if part else None, "whole_rows": d.ints(rows, 2**40) if part else None, "whole_entries": 2**40,
        "source": None if pairs else d.reals((columns, heads), wide),
        "target": d.reals((rows, heads, channels), kind) if pairs else d.reals((rows, heads), wide),
        "attention": d.reals((heads, channels), wide) if pairs else None, "slope": 0.2, "self_loops": d.chance(0.5),
        "dropout": d.pick((0.0, 0.3)), "seed": 1, "threads": d.threads(),
    }, (rows, columns, heads, channels), kind  # fmt: skip


def attend(d: Draws) -> Arguments:
    given, (rows, _, heads, channels), kind = _attention(d)
    return {**given, "out": d.empty((rows, heads, channels), kind), "peak": d.empty((rows, 2, heads), _sums(kind))}


def attend_gradient(d: Draws) -> Arguments:
    given, (rows, columns, heads, channels), kind = _attention(d)
    wide, pairs = _sums(kind), given["attention"] is not None
    first, t_indices, position = d.transposed(given["indptr"], given["indices"], columns)
    return {
        **given, "grad": d.reals((rows, heads, channels), kind), "out": d.reals((rows, heads, channels), kind),
        "peak": d.reals((rows, 2, heads), wide), "t_indptr": first, "t_indices": t_indices, "t_position": position,
        "grad_x": d.empty((columns, heads, channels), kind) if d.chance(0.7) else None,
        "grad_source": d.empty((columns, heads), wide) if not pairs and d.chance(0.7) else None,
        "grad_target": d.empty(given["target"].shape, given["target"].dtype) if d.chance(0.7) else None,
        "grad_attention": d.empty((heads, channels), wide) if pairs and d.chance(0.7) else None,
    }  # fmt: skip


def _events(d: Draws) -> tuple[Arguments, tuple[int, int, int, int, int], str]:
    columns, heads, channels, times = d.size(least=1), d.pick((1, 2, 3)), d.pick((0, 1, 3, 17)), d.pick((1, 2, 9, 33))
    kind, rows, room = d.pick(("float32", "float64")), d.size(), d.pick((0, 0, 3))
    indptr, indices = d.graph(rows, columns)
    indices = d.filled(np.concatenate([indices, indices[:1].repeat(room)]))
    entries, table, wide = len(indices), d.chance(0.5), d.pick((0, 1, 5))
    named = d.chance(0.5) and len(indices) > 0
    width = channels + times + (wide if table else 0)
    return {
        "query": d.reals((heads, rows, width), kind), "indptr": indptr, "indices": indices, "dt": d.reals(entries, kind),
        "x": d.reals((columns, channels), kind), "time_weight": d.reals(times, kind), "time_bias": d.reals(times, kind),
        "edge_x": d.reals((7 if named else entries, wide), kind) if table else None,
        "edge_id": d.ints(entries, 7, d.pick(IDS)) if table and named else None,
        "slope": 0.2, "dropout": d.pick((0.0, 0.3)), "seed": 1, "threads": d.threads(),
    }, (rows, columns, heads, width, entries), kind  # fmt: skip


def attend_time(d: Draws) -> Arguments:
    given, (rows, _, heads, width, entries), kind = _events(d)
    out, score, peak = (heads, rows, width), (entries, heads), (rows, 2, heads)
    return {**given, "out": d.empty(out, kind), "score": d.empty(score, kind), "peak": d.empty(peak, kind)}


def attend_time_gradient(d: Draws) -> Arguments:
    given, (rows, columns, heads, width, entries), kind = _events(d)
    named = given["indices"][: int(given["indptr"][-1])]
    transpose = d.transposed(given["indptr"], named, columns) if d.chance(0.7) else (None, None, None)
    return {
        **given, "grad": d.reals((heads, rows, width), kind), "out": d.reals((heads, rows, width), kind),
        "score": d.reals((entries, heads), kind), "peak": d.reals((rows, 2, heads), kind),
        **dict(zip(("t_indptr", "t_indices", "t_position"), transpose, strict=True)),
        "grad_query": d.empty((heads, rows, width), kind),
        "grad_x": d.empty(given["x"].shape, kind) if transpose[0] is not None else None,
        "grad_time": d.empty((2, len(given["time_weight"])), kind) if d.chance(0.7) else None,
    }  # fmt: skip


def _gates(d: Draws) -> tuple[Arguments, tuple[int, int], str]:
    rows, width, kind = d.size(), d.pick((1, 2, 7, 16, 33)), d.pick(("float32", "float64"))
    products = {name: d.reals((rows, 3 * width), kind) for name in ("input", "hidden")}
    return {**products, "memory": d.reals((rows, width), kind), "threads": d.threads()}, (rows, width), kind


def gru(d: Draws) -> Arguments:
    given, (rows, width), kind = _gates(d)
    return {**given, "gates": d.empty((rows, 3 * width), kind), "out": d.empty((rows, width), kind)}


def gru_gradient(d: Draws) -> Arguments:
    given, (rows, width), kind = _gates(d)
    given["gates"] = given.pop("input")
    return {
        **given, "grad": d.reals((rows, width), kind),
        **{name: d.empty((rows, 3 * width), kind) for name in ("grad_input", "grad_hidden")},
        "grad_memory": d.empty((rows, width), kind) if d.chance(0.7) else None,
    }  # fmt: skip


def cumulative_weights(d: Draws) -> Arguments:
    indptr, indices = d.graph(d.size(), 5)
    return {"indptr": indptr, "weight": d.reals(len(indices)), "threads": d.threads()}


def negatives(d: Draws) -> Arguments:
    nodes, count = d.size(least=1), d.size()
    indptr, indices = d.graph(nodes, nodes) if d.chance(0.5) else (None, None)
    sums = d.sums(nodes)
    return {
        "count": count, "seed": 1, "epoch": 2, "batch": 3, "num_src": nodes, "num_dst": nodes,
        "src": d.ints(count, nodes) if d.chance(0.5) else None, "src_cumulative": sums if d.chance(0.5) else None,
        "dst_cumulative": sums if d.chance(0.5) else None, "indptr": indptr, "indices": indices, "rounds": d.pick((0, 1, 5)),
        "threads": d.threads(),
    }  # fmt: skip


def _shared(d: Draws) -> Arguments:
    sizes = d.rng.integers(1, 9, 3)
    before, amount = d.filled(np.concatenate([[0], np.cumsum(sizes)]), "int64"), 1 + d.below(20)
    return {
        "seed": 1, "epoch": 2, "batch": 3, "chunks": d.below(5), "amount": amount, "own": d.below(amount + 1),
        "starts": d.ints(3, 50), "before": before,
        "cumulative": d.sums(int(before[-1])) if d.chance(0.5) else None, "threads": d.threads(),
    }  # fmt: skip


def shared_negatives(d: Draws) -> Arguments:
    return {**_shared(d), "ends": 1 + d.size()}


def numbered_edges(d: Draws) -> Arguments:
    triples = 1 + d.size()
    return {**_shared(d), "triples": d.ints((triples, 3), 60, d.pick(IDS)), "positions": d.ints(d.size(), triples)}


def read_rows(d: Draws) -> Arguments:
    rows, size, count = 1 + d.below(60), d.pick((1, 4, 7, 64)), d.size()
    return {
        "fd": d.pick((_FILE.fileno(), -1, 9999)) if d.chance(0.1) else _FILE.fileno(), "offset": d.below(100), "num_rows": rows,
        "row_bytes": size, "ids": d.ints(count, rows, d.pick(IDS)), "out": d.empty((count, size), "uint8"),
        "positions": d.ints(count, count) if d.chance(0.4) else None, "threads": d.threads(),
    }  # fmt: skip


def _trained(d: Draws) -> tuple[Arguments, int, int, int]:
    parts, per_part, width, state, half = 1 + d.below(3), 1 + d.below(6), d.pick((1, 3, 16)), d.pick((0, 1, 3)), d.chance(0.5)
    tables = [d.reals((per_part, width)).astype(np.uint16 if half else np.float32) for _ in range(parts)]
    states = [d.reals((per_part, max(state, 1))) for _ in range(parts)]
    d.kept = (tables, states)  # type: ignore[attr-defined]  # addresses keep nothing alive
    bases = [[array.ctypes.data if d.chance(0.9) else 0 for array in arrays] for arrays in (tables, states)]
    return {
        "row_bases": d.filled(bases[0], "int64"), "state_bases": d.filled(bases[1], "int64"), "rows_per_part": per_part,
        "num_rows": parts * per_part, "half": half, "threads": d.threads(),
    }, parts * per_part, width, state  # fmt: skip


def gather_trained(d: Draws) -> Arguments:
    given, rows, width, state = _trained(d)
    count = d.size()
    out = {"rows": d.empty((count, width), "float32"), "state": d.empty((count, state), "float32")}
    return {**given, "ids": d.ints(count, rows, d.pick(IDS)), **out}


def add_trained(d: Draws) -> Arguments:
    given = gather_trained(d)
    return {**given, "touched": d.empty(len(given["row_bases"]), "uint8"), "seed": 1, "call": 2}


def normal_rows(d: Draws) -> Arguments:
    return {"seed": 1, "begin": d.size(), "scale": 1.0, "out": d.empty((d.size(), d.size()), "float32"), "threads": d.threads()}


def count_scores(d: Draws) -> Arguments:
    rows = d.size()
    return {
        "scores": d.reals((rows, d.size())), "low": d.reals(rows), "high": d.reals(rows), "above": d.ints(rows, 3),
        "level": d.ints(rows, 3), "threads": d.threads(),
    }  # fmt: skip


def shared_softmax(d: Draws) -> Arguments:
    chunks, questions, candidates, width = d.below(4), d.pick((0, 1, 2, 7, 40, 300)), d.pick((0, 1, 5, 33)), d.pick((1, 3, 16, 20))
    query, few = (chunks, questions, width), (chunks, candidates, width)
    most = chunks * questions * candidates
    return {
        "query": d.reals(query), "answer": d.reals(query), "candidates": d.reals(few), "to_query": d.empty(query, "float32"),
        "to_answer": d.empty(query, "float32"), "to_candidates": d.empty(few, "float32"), "threads": d.threads(),
        "hidden": d.ints(d.size(), most) if most and d.chance(0.5) else None,
    }  # fmt: skip


def row_updates(d: Draws) -> Arguments:
    rows, width, optimizer = d.size(), d.pick((0, 1, 3, 16, 35)), d.pick(("sgd", "adagrad", "row_adagrad"))
    state = (rows, {"sgd": 0, "adagrad": width, "row_adagrad": 1}[optimizer])
    return {
        "optimizer": optimizer, "grad": d.reals((rows, width)), "state": d.reals(state), "delta": d.empty((rows, width), "float32"),
        "squares": d.empty(state, "float32"), "lr": 0.1, "eps": 1e-6, "threads": d.threads(),
    }  # fmt: skip


def step(d: Draws) -> Arguments:
    decoder, optimizer, relation_optimizer = (
        d.pick(("dot", "distmult", "complex")),
        d.pick(("sgd", "adagrad", "row_adagrad")),
        d.pick(("sgd", "adagrad")),
    )
    width, chunks, reciprocal = d.pick((2, 8, 16, 22)), d.pick((1, 1, 2)), d.chance(0.5)
    edges, negatives, rows, relations = chunks * d.pick((0, 1, 3, 20)), d.pick((0, 1, 4, 19)), 1 + d.size(), 1 + d.below(4)
    widths = {"sgd": 0, "adagrad": width, "row_adagrad": 1}
    ids = d.filled(d.rng.permutation(rows)[: 1 + d.below(rows)], "int64") if d.chance(0.5) else None
    used = rows if ids is None else len(ids)
    apart, parameters = d.chance(0.5), relations * (2 if reciprocal else 1)
    hidden = 2 * edges * negatives
    return {
        "decoder": decoder, "rows": d.reals((rows, width)), "state": d.reals((rows, widths[optimizer])), "ids": ids,
        "place": d.ints(2 * edges + chunks * negatives, used), "relation": d.ints(edges, relations),
        "parameters": d.reals((parameters, width)), "parameter_state": d.reals((parameters, widths[relation_optimizer])),
        "hidden": d.ints(d.size(), hidden) if hidden and d.chance(0.3) else None,
        "delta": d.empty((used, width), "float32") if apart else None,
        "delta_state": d.empty((used, widths[optimizer]), "float32") if apart else None, "chunks": chunks, "reciprocal": reciprocal,
        "optimizer": optimizer, "relation_optimizer": relation_optimizer, "lr": 0.1, "eps": 1e-6, "threads": d.threads(),
    }  # fmt: skip


def power_law_weights(d: Draws) -> Arguments:
    return {"seed": 1, "exponent": 2.5, "most": 10.0, "nodes": d.size(), "threads": d.threads()}


def candidate_edges(d: Draws) -> Arguments:
    nodes, classes = 2 + d.size(), 2
    ends = np.array([0, nodes // 2, nodes])
    return {
        "cumulative": d.filled(np.concatenate([[0], np.cumsum(d.rng.random(nodes))]), "float64"),
        "class_ends": d.filled(ends, "int64"),
        "class_of": d.filled(np.repeat(np.arange(classes), np.diff(ends)), "int32"), "block": 1 + d.size(), "within_block": 0.5,
        "within_class": 0.3, "mean_degree": 4.0, "seed": 1, "round": 0, "wanted": float(d.size()), "undirected": d.chance(0.5),
        "wide": d.chance(0.5), "threads": d.threads(),
    }  # fmt: skip


def thin_edges(d: Draws) -> Arguments:
    given = _square(d)
    rows = len(given["indptr"]) - 1
    return {**given, "keep": d.below(len(given["indices"]) + 1), "id": d.filled(d.rng.permutation(rows), "int64")}


def noisy_rows(d: Draws) -> Arguments:
    classes, rows, width = 1 + d.below(4), d.size(), d.pick((0, 1, 4, 30))
    return {
        "seed": 1,
        "center": d.reals((classes, width)),
        "label": d.ints(rows, classes),
        "out": d.empty((rows, width), "float32"),
        "threads": d.threads(),
    }


def merge_rows(d: Draws) -> Arguments:
    cached, fetched, width, count = 1 + d.size(), 1 + d.size(), d.pick((0, 1, 5, 40)), d.size()
    source = d.filled(d.rng.integers(-fetched, cached, count), "int32")
    return {
        "cached": d.reals((cached, width)),
        "fetched": d.reals((fetched, width)),
        "source": source,
        "out": d.empty((count, width), "float32"),
        "threads": d.threads(),
    }


def keep_rows(d: Draws) -> Arguments:
    cached, fetched, width = 1 + d.size(), d.size(), d.pick((0, 1, 5, 40))
    return {
        "fetched": d.reals((fetched, width)),
        "slots": d.filled(d.rng.permutation(max(cached, fetched))[:fetched] % cached, "int32"),
        "cached": d.empty((cached, width), "float32"),
        "threads": d.threads(),
    }


def bare_gather(d: Draws) -> Arguments:
    given = gather(d)
    return {**given, "ids": given["ids"].astype("int64"), "threads": 1}


def bare_sum(d: Draws) -> Arguments:
    columns = d.size(least=1)
    indptr, indices = d.graph(d.size(), columns, "int32")
    return {
        "x": d.reals((columns, 64)),
        "indptr": indptr,
        "indices": indices,
        "out": d.empty((len(indptr) - 1, 64), "float32"),
        "threads": 1,
    }


def bare_sample(d: Draws) -> Arguments:
    nodes = d.size(least=1)
    indptr, indices = d.graph(nodes, nodes, "int32")
    seeds, fanouts = d.filled(d.rng.permutation(nodes)[:4], "int64"), d.filled([3, 2], "int32")
    most = len(seeds) * 9
    return {
        "indptr": indptr, "indices": indices, "stamp": d.filled(np.full(nodes, -1), "int32"), "seeds": seeds, "fanouts": fanouts,
        "sources": d.empty(most, "int32"), "targets": d.empty(most, "int32"), "nodes": d.empty(most + len(seeds), "int64"),
        "seed": 1,
    }  # fmt: skip


FUNCTIONS: dict[str, Callable[[Draws], Arguments]] = {
    f.__name__: f
    for f in (
        random_words, stream_key, id_range, build_csr, transpose_csr, check_csr, expand_csr, summarize, window_reuse, simulate_lru,
        invert_order, permute_csr, permute_entries, rabbit_order, gather, aggregate, column_tile, last_level_cache, max_gradient,
        weight_gradient, dropout, attend, attend_gradient, attend_time, attend_time_gradient, gru, gru_gradient, cumulative_weights,
        negatives, shared_negatives,
        numbered_edges, read_rows, gather_trained, add_trained, normal_rows, count_scores, shared_softmax, row_updates,
        power_law_weights, candidate_edges, thin_edges, noisy_rows, merge_rows, keep_rows, bare_gather, bare_sum, bare_sample,
    )
}  # fmt: skip
FUNCTIONS["least_columns"] = least_columns
