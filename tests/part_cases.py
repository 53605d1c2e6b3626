"""Datasets that are awkward to cut, and parts put together again."""

import torch

import headrace as hr
from headrace.cluster import Part


def edges(nodes=40, count=160, **beside):
    draw = torch.Generator().manual_seed(3)
    source, target = torch.randint(nodes - 3, (2, count), generator=draw)  # the last three are isolated
    return hr.Graph.from_edges(source, target, nodes, **beside)


def rows(*shape, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(4)).mul(9).to(dtype)


def splits(nodes=40):
    order = torch.randperm(nodes, generator=torch.Generator().manual_seed(5))
    return {"train": order[:15], "val": order[15:20].int(), "none": order[:0]}


def cases():
    labels = torch.randint(5, (40,), generator=torch.Generator().manual_seed(6))
    weight = rows(160).abs()
    wide = edges()
    hub = hr.Graph.from_edges([*range(30), 1, 1], [7] * 31 + [1], 31)
    return {
        "plain": hr.Dataset(edges(), x=rows(40, 7), y=labels, splits=splits(), info={"name": "plain", "class_names": ["ä", "b"]}),
        "weights": hr.Dataset(edges(weight=weight), x=rows(40, 7), y=labels),
        "weights in columns": hr.Dataset(hr.Graph(wide.indptr, wide.indices, weight=rows(160, 2)), x=rows(40, 7)),
        "times and ids": hr.Dataset(edges(time=torch.arange(160), edge_id=True), x=rows(40, 7), splits=splits()),
        "all of an edge": hr.Dataset(edges(weight=weight.double(), time=weight, edge_id=True), x=rows(40, 7), y=labels),
        "many labels": hr.Dataset(edges(), x=rows(40, 7), y=rows(40, 6) > 0, splits=splits()),
        "no labels": hr.Dataset(edges(), x=rows(40, 7)),
        "ids of 64 bits": hr.Dataset(hr.Graph(wide.indptr, wide.indices.long()), x=rows(40, 7)),
        "bfloat16": hr.Dataset(edges(), x=rows(40, 5, dtype=torch.bfloat16), y=labels),
        "bool": hr.Dataset(edges(), x=rows(40, 5) > 0, y=labels),
        "a hub": hr.Dataset(hub, x=rows(31, 4)),
        "no edges": hr.Dataset(hr.Graph.from_edges([], [], 9), x=rows(9, 3), y=torch.arange(9)),
        "as many nodes as parts": hr.Dataset(hr.Graph.from_edges([0, 1, 2], [1, 2, 0]), x=rows(3, 3)),
    }


def featureless():
    labels = torch.arange(40) % 4
    return {
        "no features": hr.Dataset(edges(), y=labels, splits=splits()),
        "nothing but edges": hr.Dataset(edges()),
        "one number": hr.Dataset(edges(), x=rows(40), y=labels),
        "a matrix each": hr.Dataset(edges(), x=rows(40, 2, 3)),
        "no columns": hr.Dataset(edges(), x=rows(40, 0)),
    }


def same_bits(a, b):
    if a is None or b is None:
        return a is b
    same = a.dtype == b.dtype and a.shape == b.shape
    return same and torch.equal(a.contiguous().view(-1).view(torch.uint8), b.contiguous().view(-1).view(torch.uint8))


def together(parts: list[Part]) -> hr.Dataset:
    """The dataset that parts are of, from their own arrays alone."""
    first = parts[0]
    ids = torch.cat([part.ids for part in parts])
    assert ids.sort().values.equal(torch.arange(first.num_nodes))
    degrees = torch.cat([part.indptr.diff() for part in parts])
    indptr = torch.zeros(first.num_nodes + 1, dtype=torch.int64)
    indptr[ids + 1] = degrees
    indptr = indptr.cumsum(0)

    def edge_array(name):
        if getattr(first, name) is None:
            return None
        values = torch.cat([getattr(part, name) for part in parts])
        whole, begin = torch.empty_like(values), 0
        for node, degree in zip(ids.tolist(), degrees.tolist(), strict=True):
            whole[int(indptr[node]) : int(indptr[node + 1])] = values[begin : begin + degree]
            begin += degree
        return whole

    def node_array(name):
        if getattr(first, name) is None:
            return None
        values = torch.cat([getattr(part, name) for part in parts])
        whole = torch.empty_like(values)
        whole[ids] = values
        return whole

    def split(name):
        values, places = (torch.cat([getattr(part, of)[name] for part in parts]) for of in ("splits", "places"))
        whole = torch.empty_like(values)
        whole[places] = values
        return whole

    graph = hr.Graph(indptr, edge_array("indices"), **{name: edge_array(name) for name in ("weight", "time", "edge_id")})
    x = node_array("x") if first.columns is None else torch.cat([part.x for part in parts], dim=1)
    return hr.Dataset(graph, x=x, y=node_array("y"), splits={name: split(name) for name in first.splits}, info=first.info)


def assert_same_dataset(a: hr.Dataset, b: hr.Dataset) -> None:
    left, right = a._arrays(), b._arrays()
    assert left.keys() == right.keys()
    for name in left:
        assert same_bits(left[name], right[name]), name
    assert a.info == b.info
