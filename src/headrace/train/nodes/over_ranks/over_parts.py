"""`SplitData`: node classification over parts, where each rank has its own share of the graph and of the features alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from headrace.cluster import FetchedBatches, Grid, Part, PushPullBatches, Team, cut, rounds_of
from headrace.cluster.structures import SplitStructures
from headrace.cluster.topology import SplitSampler
from headrace.graph import Dataset, Graph
from headrace.graph.saved.fingerprint import fingerprints
from headrace.loader import Batch, Shard
from headrace.ranks import Exchange, Ranks, join
from headrace.store import ArrayStore, ColumnSlice, Remote
from headrace.train.fit import Setup
from headrace.train.inference.layerwise.infer_split import SplitGraph, infer_split, rows_of_all
from headrace.train.nodes.elastic import ElasticRecipe
from headrace.train.nodes.features import Scaling, scaled
from headrace.train.nodes.options import NodeOptions
from headrace.train.nodes.over_ranks.parallel import chosen, closing, exchange_of
from headrace.train.nodes.over_ranks.push_pull import PushPullRecipe
from headrace.train.nodes.recipe import NodeRecipe
from headrace.train.recipe import Progress


@dataclass(frozen=True, eq=False)
class SplitData:
    """A part, and a dataset that has the labels and splits of all parts, no edges, and features that take no memory."""

    part: Part
    data: Dataset
    scaling: Scaling | None = None  # of its features, where they were scaled before it was cut

    @classmethod
    def of(cls, part: Part, options: NodeOptions) -> SplitData:
        """Meet the ranks that have the other parts, and learn labels and splits from them. Collective."""
        _check_options(options, part)
        with join(options.device) as ranks:
            _check_ranks(part, ranks, alone=options.flow != "none")
            y, splits = _told(part, ranks)
        topology = Graph(torch.zeros(part.num_nodes + 1, dtype=torch.int64), torch.empty(0, dtype=part.indices.dtype))
        x = None if part.x is None else torch.empty(1, dtype=part.x.dtype).expand(part.num_nodes, part.num_features)
        info = {**part.info, "num_classes": part.num_classes}
        return cls(part, Dataset(topology, x=x, y=y, splits=splits, info=info))

    def recipe(self, model: nn.Module, setup: Setup) -> NodeRecipe:
        """Push-pull where the parts hold columns; where they hold rows, batches by one rank each."""
        part, options = self.part, setup.options
        if options.flow != "none":
            elastic = ElasticRecipe(self.data, model, part, setup)
            setup.watcher.note(elastic.placed)
            return elastic
        if options.parallel == ("data" if part.columns else "push_pull"):
            how = "by column, for push_pull" if part.columns else "by row, for parallel data"
            raise ValueError(f"these parts hold features {how}: leave parallel out, or partition again")
        graph = _graph(part, options, setup)
        more: dict[str, Any] = {"part": part, "graph": graph, "sampler": _sampler(part, options.fanouts, options, setup)}
        recipe: NodeRecipe
        if part.columns is None:
            assert part.x is not None
            remote = Remote.from_local(part.x, part.owners, device=options.device)
            setup.opened.push(closing(remote.close))
            recipe = SplitRecipe(self.data, model, options, setup.trace, remote=remote, **more, **setup.shared)
        else:
            recipe = self._by_columns(model, setup, more)
        setup.watcher.note(f"{setup.ranks.size} ranks with a part each, {setup.accumulate} batches per step; {recipe.placed}")
        return recipe

    def _by_columns(self, model: nn.Module, setup: Setup, more: dict[str, Any]) -> SplitPushPullRecipe:
        part = self.part
        assert part.columns is not None
        assert part.x is not None
        grid = Grid(setup.ranks.rank, setup.ranks.size)
        recipe = SplitPushPullRecipe(
            self.data,
            model,
            setup.options,
            setup.trace,
            features=ColumnSlice.of(part.x, part.columns[0], of=part.num_features),
            grid=grid,
            team=exchange_of(grid.members, setup),
            replicas=None,
            **more,
            **setup.shared,
        )
        setup.opened.push(closing(recipe.engine.close))
        return recipe


def own_part(data: Dataset, options: NodeOptions, make: Callable[[Dataset], nn.Module]) -> SplitData | None:
    """This rank's part of a dataset that every rank can read, for topology split or a flow, its features scaled. Collective.

    None where one rank alone trains without a flow.
    """
    with join(options.device) as ranks:
        rank, size = ranks.rank, ranks.size
    if size == 1 and options.flow == "none":
        return None
    if data.x is None or data.y is None:
        raise ValueError("parts are trained on by features and labels, and this dataset lacks them: train on the whole of it")
    parallel = "data"
    if options.flow == "none":
        with torch.random.fork_rng(devices=[]):  # the model of the run is made later
            parallel = chosen(data, make(data), options, size)[0]
    scaling = Scaling.of(options.features, data.x)
    part = cut(scaled(data, scaling), rank, parts=size, columns=parallel == "push_pull")
    split = SplitData.of(replace(part, fingerprint=fingerprints(data)), replace(options, features="as_is"))
    return replace(split, scaling=scaling)


def _check_options(options: NodeOptions, part: Part) -> None:
    wrong = {
        "storage": options.storage != "memory",
        "features": options.features != "as_is",
        "full_batch": options.full_batch and options.flow == "none",
        "split": options.split != "0",
        "slices": options.slices != 1,
        "validate": options.validate == "sampled",
        "replicate": options.replicate_share > 0,
        "topology": options.topology == "replicated",
    }
    for name in (name for name, is_wrong in wrong.items() if is_wrong):
        raise ValueError(f"{name} {getattr(options, name)} needs the whole dataset on every rank, and this is a part: leave it out")
    if part.x is None or part.y is None:
        raise ValueError(f"this partition has no {'features' if part.x is None else 'labels'}: node classification needs them")
    if part.weight is not None:
        raise ValueError("sampled batches carry no edge weights: partition the dataset without them")


def _check_ranks(part: Part, ranks: Ranks, *, alone: bool) -> None:
    if part.parts == 1 and not alone:
        raise ValueError("one part is the whole dataset: train on that, or partition it into as many parts as there are ranks")
    if ranks.size != part.parts:
        raise ValueError(
            f"the dataset was cut into {part.parts} parts, and there are {ranks.size} ranks: start {part.parts} of them "
            f"(torchrun --nproc-per-node {part.parts}), or partition it again"
        )
    own = part.owners.fingerprint, part.fingerprint, part.columns is None
    everyone = ranks.all_gather((part.number, own))
    for rank, (number, theirs) in enumerate(everyone):
        if number != rank:
            raise ValueError(f"rank {rank} has part {number}: give every rank the part of its own number")
        if theirs != everyone[0][1]:
            raise ValueError(f"rank {rank} has a part of another partition than rank 0: copy the parts of one partition")


def _told(part: Part, ranks: Ranks) -> tuple[Tensor, dict[str, Tensor]]:
    """Labels of all nodes, and the splits in the order of the whole."""
    assert part.y is not None
    own = {name: (ids.clone(), part.places[name].clone()) for name, ids in part.splits.items()}
    told = ranks.all_gather((part.y.clone(), own))
    y = part.y.new_empty((part.num_nodes, *part.y.shape[1:]))
    splits = {name: torch.empty(size, dtype=torch.int64) for name, size in part.split_sizes.items()}
    for rank, (labels, theirs) in enumerate(told):
        y[part.owners.ids_of(rank)] = labels
        for name, (ids, places) in theirs.items():
            splits[name][places.long()] = ids.long()
    return y, splits


def _sampler(part: Part, fanouts: tuple[int, ...], options: NodeOptions, setup: Setup) -> SplitSampler:
    how: dict[str, Any] = {"seed": options.seed, "group": setup.ranks, "threads": options.threads}
    sampler = SplitSampler(part.indptr, part.indices, part.owners, fanouts, **how)
    setup.opened.push(closing(sampler.close))
    return sampler


def _graph(part: Part, options: NodeOptions, setup: Setup) -> SplitGraph:
    return SplitGraph(setup.ranks, part.owners, _sampler(part, (-1,), options, setup))


class SplitRecipe(NodeRecipe):
    """Batches by one rank each, drawn from a split graph, whose features are fetched from the ranks that own them."""

    def __init__(self, *args: Any, part: Part, graph: SplitGraph, sampler: SplitSampler, **more: Any) -> None:
        self.part, self.split_graph, self.sampler = part, graph, sampler
        super().__init__(*args, **more)

    def batches(self, epoch: int, first: int) -> Iterator[Batch | None]:
        assert self.remote is not None
        rounds = rounds_of(self.num_batches(epoch), first=first, accumulate=self.accumulate, ranks=self.ranks.size)
        self.rounds = FetchedBatches(self.remote, _structures(self, Team(None), epoch, first), rounds, rank=self.ranks.rank)
        return self.rounds

    def _predict(self, nodes: Tensor, progress: Progress) -> Tensor:
        assert self.remote is not None
        own = infer_split(self.model, self.split_graph, self.remote, progress=progress)
        assert self.exchange is not None
        return rows_of_all(own, nodes, self.part.owners, self.exchange)

    def exchanges(self) -> list[Exchange]:
        return super().exchanges() + [e for e in (self.sampler.exchange,) if e is not None]

    @property
    def placed(self) -> str:
        return "graph and features spread over the ranks, fetched by exchanges"


class SplitPushPullRecipe(PushPullRecipe):
    """Push-pull over a split graph: a batch is drawn by all ranks, and its first block pushed to all."""

    def __init__(self, *args: Any, part: Part, graph: SplitGraph, sampler: SplitSampler, **more: Any) -> None:
        self.part, self.split_graph, self.sampler = part, graph, sampler
        super().__init__(*args, **more)

    def batches(self, epoch: int, first: int) -> Iterator[Batch | None]:
        rounds = rounds_of(self.num_batches(epoch), first=first, accumulate=self.accumulate, ranks=self.grid.ranks)
        structures = _structures(self, self.engine.team, epoch, first)
        self.rounds = PushPullBatches(self.engine, structures, rounds, rank=self.grid.rank)
        return self.rounds

    def _predict(self, nodes: Tensor, progress: Progress) -> Tensor:
        own = infer_split(self.model, self.split_graph, self.engine, progress=progress)
        assert self.exchange is not None
        return rows_of_all(own, nodes, self.part.owners, self.exchange)

    def exchanges(self) -> list[Exchange]:
        return super().exchanges() + [e for e in (self.sampler.exchange,) if e is not None]

    def _shard(self) -> Shard:
        return Shard(self.grid.rank, self.grid.ranks, "empty", self.accumulate)


def _structures(recipe: SplitRecipe | SplitPushPullRecipe, team: Team, epoch: int, first: int) -> SplitStructures:
    assert recipe.loader is not None
    labels = ArrayStore(recipe.labels)
    return SplitStructures(recipe.loader.seeds, recipe.sampler, team, recipe.model, labels, epoch=epoch, first=first)
