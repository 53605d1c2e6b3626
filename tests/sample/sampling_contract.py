"""The contract of the neighbor sampler, in plain Python: what a draw is, to the last bit."""

import bisect

import numpy as np
import torch

from headrace import _native
from plain_philox import MASK, philox, stream_key

WIDE_ABOVE = 65_536  # rows of a higher degree draw with two words a slot
SAMPLE, LABOR = _native.Purpose.sample, _native.Purpose.labor


def minus_log(words):
    """-log((n + 1/2) / 2^23), n being the upper 23 bits of a word, in float32 additions, subtractions and products only."""
    f32 = np.float32
    n = (np.asarray(words, np.uint32) >> np.uint32(9)).astype(np.int32)
    x = (n.astype(f32) + f32(0.5)) * f32(2.0**-23)
    bits = x.view(np.int32)
    exponent = (bits - np.int32(0x3F3504F3)) >> np.int32(23)
    f = (bits - (exponent << np.int32(23))).view(f32) - f32(1)
    q = np.full_like(f, f32(float.fromhex("0x1.645ea0p-4")))
    for coefficient in (
        "-0x1.2432b8p-3",
        "0x1.317458p-3",
        "-0x1.53824ap-3",
        "0x1.98d7f2p-3",
        "-0x1.000382p-2",
        "0x1.5556d8p-2",
    ):
        q = q * f + f32(float.fromhex(coefficient))
    log_m = f + (f * f) * (q * f - f32(0.5))
    return (-exponent).astype(f32) * f32(float.fromhex("0x1.62e430p-1")) - log_m


def draw_below(key, hop, node, degree, slot, bound):
    """The number below `bound` that slot `slot` of `node` draws."""
    counter = (node & MASK, node >> 32, hop)
    if degree <= WIDE_ABOVE:
        return philox(key, (slot // 4, *counter))[slot % 4] * bound >> 32
    words = philox(key, (slot // 2, *counter))[slot % 2 * 2 :]
    return (words[0] << 32 | words[1]) * bound >> 64


def drawn_uniformly(key, hop, node, degree, fanout, replace):
    """Which of its `degree` entries `node` takes, in order."""
    if degree == 0 or fanout == 0:
        return []
    if fanout < 0 or (not replace and fanout >= degree):
        return list(range(degree))
    if replace:
        return [draw_below(key, hop, node, degree, slot, degree) for slot in range(fanout)]
    taken = {}
    for slot in range(fanout):  # Floyd
        last = degree - fanout + slot
        r = draw_below(key, hop, node, degree, slot, last + 1)
        taken[last if r in taken else r] = None
    return list(taken)


def lowest(numbers, fanout):
    """The `fanout` lowest, in order of their place; of equal ones the first."""
    return sorted(sorted(range(len(numbers)), key=lambda s: (numbers[s], s))[:fanout])


def drawn_by_weight(key, hop, node, weights, fanout, replace):
    degree = len(weights)
    if degree == 0 or fanout == 0:
        return []
    if fanout < 0 or (not replace and fanout >= degree):
        return list(range(degree))
    counter = (node & MASK, node >> 32, hop)
    if not replace:
        words = [w for block in range(-(-degree // 4)) for w in philox(key, (block, *counter))][:degree]
        return lowest((minus_log(words) / np.asarray(weights, np.float32)).tolist(), fanout)
    sums = np.cumsum(np.asarray(weights, np.float64))
    taken = []
    for slot in range(fanout):
        a, b = philox(key, (slot // 2, *counter))[slot % 2 * 2 :][:2]
        wanted = float(a << 21 | b >> 11) * 2.0**-53 * float(sums[-1])
        taken.append(min(bisect.bisect_right(sums.tolist(), wanted), degree - 1))
    return taken


def labor_word(key, hop, batch, node, dependency):
    """The random word that all rows of a hop share for neighbor `node`."""
    low, high = node & MASK, node >> 32
    phase = philox(key, (MASK, low, high, MASK))[0] * dependency >> 32
    return philox(key, ((batch + phase) // dependency, low, high, hop))[0]


class Contract:
    """Draws as `NeighborSampler(graph, fanouts, **options)` must, one entry at a time."""

    def __init__(self, graph, fanouts, *, seed=0, weighted=False, replace=False, **options):
        self.indptr, self.indices = graph.indptr.numpy(), graph.indices.numpy()  # perhaps memory maps
        self.weight = graph.weight.float().tolist() if weighted else None
        self.fanouts, self.seed, self.replace = fanouts, seed, replace
        self.labor = options.get("labor", False)
        self.layer_dependency = options.get("layer_dependency", False)
        self.batch_dependency = options.get("batch_dependency", 1)
        self.temporal, self.inclusive = options.get("temporal"), options.get("inclusive", False)
        self.time = None if self.temporal is None else graph.time.tolist()
        self.by_edge, self.since = options.get("hop_time") == "edge", options.get("since")
        self.disjoint = options.get("disjoint", False) or self.temporal is not None
        self._words = {}

    def row(self, node, hop, tree, *, epoch, batch, until):
        """Positions of the entries that a node takes."""
        entries = range(int(self.indptr[node]), int(self.indptr[node + 1]))
        if self.time is not None:
            entries = [e for e in entries if self.time[e] < until or (self.inclusive and self.time[e] == until)]
            entries = [e for e in entries if self.since is None or self.time[e] >= self.since]
        if self.weight is not None:
            entries = [e for e in entries if self.weight[e] > 0]
        fanout, degree = self.fanouts[hop], len(entries)
        if self.temporal == "last":
            return list(entries[max(degree - fanout, 0) if fanout >= 0 else 0 :])
        if self.labor:
            return [entries[s] for s in self._labor(entries, hop, epoch, batch)]
        key = stream_key(self.seed, epoch, batch, SAMPLE)
        word = hop | (tree + 1) << 8 if self.disjoint else hop
        if self.weight is None:
            return [entries[s] for s in drawn_uniformly(key, word, node, degree, fanout, self.replace)]
        return [entries[s] for s in drawn_by_weight(key, word, node, [self.weight[e] for e in entries], fanout, self.replace)]

    def _labor(self, entries, hop, epoch, batch):
        fanout = self.fanouts[hop]
        if fanout < 0 or fanout >= len(entries):
            return range(len(entries))
        layer = 0 if self.layer_dependency else hop
        key = stream_key(self.seed, epoch, 0, LABOR)
        numbers = []
        for neighbor in (int(self.indices[e]) for e in entries):
            where = (epoch, batch, layer, neighbor)
            if where not in self._words:
                self._words[where] = labor_word(key, layer, batch, neighbor, self.batch_dependency)
            numbers.append(self._words[where])
        if self.weight is not None:
            numbers = (minus_log(numbers) / np.asarray([self.weight[e] for e in entries], np.float32)).tolist()
        return lowest(numbers, fanout)

    def sample(self, seeds, *, epoch=0, batch=0, time=None):
        """(nodes, indptr, indices, positions, trees, node counts, edge counts) of a sample."""
        nodes, trees, local = [int(s) for s in seeds], [], {}
        trees = list(range(len(nodes))) if self.disjoint else [0] * len(nodes)
        for i, key in enumerate(zip(trees, nodes, strict=True)):
            local.setdefault(key, i)
        starts, edges, positions, node_counts, edge_counts, begin = [0], [], [], [len(nodes)], [], 0
        for hop in range(len(self.fanouts)):
            end, before = len(nodes), len(edges)
            for row, node, tree in zip(range(begin, end), nodes[begin:end], trees[begin:end], strict=True):
                until = None if time is None else time[tree]
                if self.by_edge and hop:
                    until = self.time[positions[row - len(seeds)]]  # of the edge that led here
                for position in self.row(node, hop, tree, epoch=epoch, batch=batch, until=until):
                    key = (tree, int(self.indices[position]))
                    if self.by_edge or key not in local:
                        local[key] = len(nodes)
                        nodes.append(key[1])
                        trees.append(tree)
                    edges.append(local[key])
                    positions.append(position)
                starts.append(len(edges))
            node_counts.append(len(nodes) - end)
            edge_counts.append(len(edges) - before)
            begin = end
        return nodes, starts, edges, positions, trees if self.disjoint else None, tuple(node_counts), tuple(edge_counts)


_OPTIONS = ("replace", "weighted", "labor", "layer_dependency", "batch_dependency", "disjoint", "temporal", "inclusive", "seed")
_OPTIONS += ("hop_time", "since")


def assert_equals_reference(sampler, seeds, *, epoch=0, batch=0, threads=None, time=None):
    graph = sampler.graph
    timed = sampler.temporal is not None
    sample = sampler.sample(seeds, epoch, batch, edge_ids=True, edge_times=timed, threads=threads, time=time)
    contract = Contract(graph, sampler.fanouts, **{name: getattr(sampler, name) for name in _OPTIONS})
    nodes, indptr, indices, positions, trees, node_counts, edge_counts = contract.sample(seeds, epoch=epoch, batch=batch, time=time)
    assert sample.num_sampled_nodes == node_counts
    assert sample.num_sampled_edges == edge_counts
    assert sample.nodes.tolist() == nodes
    assert sample.indptr.tolist() == indptr
    assert sample.indices.tolist() == indices
    if timed and graph.weight is None:
        assert torch.equal(sample.edge_time, graph.time[torch.tensor(positions, dtype=torch.int64)])
    if graph.edge_id is None:
        assert sample.edge_id.tolist() == positions
    else:
        assert sample.edge_id.tolist() == graph.edge_id[positions].tolist()
    if trees is None:
        assert sample.tree is None
    else:
        assert sample.tree.dtype == torch.int32
        assert sample.tree.tolist() == trees
    return sample


def assert_same_sample(a, b):
    assert a.num_sampled_nodes == b.num_sampled_nodes
    assert a.num_sampled_edges == b.num_sampled_edges
    for name in ("nodes", "indptr", "indices", "tree"):
        if getattr(a, name) is None:
            assert getattr(b, name) is None
            continue
        assert getattr(a, name).dtype == getattr(b, name).dtype
        assert torch.equal(getattr(a, name), getattr(b, name)), name
