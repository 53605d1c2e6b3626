"""`ranks_plan`: how ranks train one model together: whose bytes are fewer, and what a delay of the first layer keeps in memory."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.cluster.rounds import IN_FLIGHT
from headrace.cluster.traffic import Block, fetched, pulled_by, structure_bytes, summed
from headrace.graph import Dataset
from headrace.pipeline import Versions
from headrace.plan.decided import Candidate, Choice, Decided
from headrace.train import NodeOptions
from headrace.train.nodes.node import make_model
from headrace.train.nodes.over_ranks.parallel import hit_rate, mean_block

_COPIES = 0.2  # of the rows, that data-parallel training is planned with too


@dataclass(frozen=True)
class RanksPlan(Decided):
    """Choices `parallel` and `versions`, with bytes that a rank sends in a step, or keeps, and seconds on the link."""

    ranks: int
    rate: float  # bytes a second
    block: Block
    choices: tuple[Choice, ...]

    @property
    def summary(self) -> str:
        block = self.block
        sizes = f"{block.num_src:,.0f} nodes, {block.num_dst:,.0f} targets, {block.edges:,.0f} edges"
        return f"{self.ranks} ranks, {self.rate / 1e6:,.0f} MB/s between them; the first layer's block of a batch: {sizes}"


def ranks_plan(data: Dataset, options: NodeOptions, *, ranks: int, rate: float) -> RanksPlan:
    """Choose for batches like those of `options`, over a link of `rate` bytes a second, from blocks that are drawn for it.

    >>> import headrace as hr
    >>> data = hr.generate.community(nodes=2000, edges=20000, classes=4, features=512)
    >>> plan = ranks_plan(data, hr.train.NodeOptions(hidden=16, fanout=(5, 5), batch_size=100), ranks=4, rate=125e6)
    >>> plan["parallel"].chosen
    'push_pull'
    """
    if ranks < 2:
        raise ValueError(f"a plan for ranks needs at least 2 of them, not {ranks}")
    if not rate > 0:
        raise ValueError(f"rate must be a positive number of bytes a second, not {rate}")
    if data.x is None:
        raise ValueError("this dataset has no features: nothing of them is sent")
    model, block = make_model(data, options), mean_block(data, options)
    split, weights = model.layers[0].split(), sum(p.numel() for p in model.parameters())  # type: ignore[operator]
    size = data.x.element_size()
    maps = sum(model.layers[0].get_parameter(name).numel() for name in split.names)
    hot = hit_rate(data, options, share=_COPIES)

    def candidate(name: str, sent: float) -> Candidate:
        return Candidate(name, sent, sent / rate)

    def rows(hits: float) -> float:
        return fetched(block, ranks=ranks, features=data.num_features, itemsize=size, hit_rate=hits) + summed(weights, ranks=ranks)

    def sums(structure: float) -> float:
        return pulled_by(split, block, team=ranks, structure=structure) + summed(weights - maps, ranks=ranks)

    degrees = bool(getattr(model.layers[0].conv, "wants_degree", False))
    ways = [candidate("data", rows(0.0)), candidate(f"data, {_COPIES:.0%} copied", rows(hot))]
    if data.num_features >= ranks:
        pushed = structure_bytes(block, id_size=data.graph.indices.element_size(), degrees=degrees)
        ways += [candidate("push_pull", sums(0.0)), candidate("push_pull, graph split", sums(pushed))]
    best = min(ways, key=lambda way: way.bytes)
    reason = f"it sends {best.bytes / 1e6:.2f} MB of a batch; features {data.num_features} wide, sums {split.shapes(block)[0][1]}"
    parallel = Choice("parallel", best.name, tuple(ways), reason)
    return RanksPlan(ranks, rate, block, (parallel, _versions(split.shapes(block), maps // ranks)))


def _versions(shapes: list[tuple[int, int]], slices: int) -> Choice:
    """Memory of each policy: versions of a rank's columns of the maps, and sums of its batches in flight."""
    partials = sum(rows * width for rows, width in shapes) * 4.0
    policies = (Versions.flush(), Versions.double_buffer(IN_FLIGHT), Versions.stash())
    kept = [
        Candidate(policy.kind, 4.0 * policy.live * slices + (1 if policy.kind == "flush" else IN_FLIGHT) * partials, 0.0)
        for policy in policies
    ]
    reason = "exact; double_buffer and stash hide sending behind computing, with weights of the first layer that are behind"
    return Choice("versions", "flush", tuple(kept), reason)
