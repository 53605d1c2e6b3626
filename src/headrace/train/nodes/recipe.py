"""`NodeRecipe`: node classification, as the training loop sees it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import asdict
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn

from headrace.cluster import FetchedBatches, OwnBatches, RoundBatches, rounds_of
from headrace.graph import Dataset
from headrace.loader import Batch, NeighborLoader, Shard, WholeBatch
from headrace.loader.padded import Shape
from headrace.nn import GNN, Layer
from headrace.nn.node_losses import count_right, loss_weight, node_loss
from headrace.pipeline import Trace
from headrace.ranks import Alone, Exchange, Ranks
from headrace.store import Remote, Store, Tiered, hot_order, rows_for
from headrace.train.captured import CapturedStep, captures, normalizes_batches
from headrace.train.inference.layerwise.infer import infer
from headrace.train.inference.layerwise.walk import layers_of
from headrace.train.nodes.checks import check_weights
from headrace.train.nodes.options import NodeOptions
from headrace.train.nodes.own_rows import with_rows_of
from headrace.train.nodes.score import class_weights, measures_of, per_class, score
from headrace.train.recipe import Progress, Recipe, Step
from headrace.train.watching.clock import Clock


class NodeRecipe(Recipe):
    """Node classification, as the training loop sees it.

    A step takes `accumulate` batches over all `ranks`, and each rank makes its own of them. All of them share a validation.
    `remote`: features that are spread over the ranks, in place of the data's.
    """

    pulls = False  # whether a step waits for sums of other ranks

    def __init__(
        self,
        data: Dataset,
        model: nn.Module,
        options: NodeOptions,
        trace: Trace | None = None,
        *,
        ranks: Ranks | None = None,
        accumulate: int = 1,
        exchange: Exchange | None = None,
        remote: Remote | None = None,
    ) -> None:
        assert data.y is not None
        self.ranks, self.accumulate, self.exchange, self.remote = ranks or Alone(), accumulate, exchange, remote
        self.device = torch.device(options.device)
        self.data, self.model, self.options = data, model.to(self.device), options
        self.labels: Tensor = data.y
        self.measures = measures_of(data.y, data.num_classes)
        self.train_nodes = data.splits["train"]
        check_weights(data, model, sampled=not options.full_batch)
        self.weight = None
        if options.class_weights == "balanced":
            self.weight = class_weights(self.labels[self.train_nodes], data.num_classes).to(self.device)
        self.rows = self._placed_rows()
        self._told: dict[str, dict[str, float]] = {}  # by phase, what was sent up to the last epoch
        self.rounds: RoundBatches | None = None  # of the epoch, where ranks make batches together
        self.loader: NeighborLoader | None = None
        self.whole: WholeBatch | None = None
        if options.full_batch:
            self._take_whole()
        else:
            self.loader = self._loader(self.train_nodes, shuffle=True, trace=trace)
        if options.capture == "always" and normalizes_batches(model):
            raise ValueError("capture pads batches, and this model normalizes over them: train it without capture")
        steps = options.epochs * self.num_batches(0) // self.accumulate
        how = {"on_gpu": self.device.type == "cuda", "sampled": self.loader is not None, "pulls": self.pulls}
        begins, self.capture_reason = captures(self.model, options.capture, steps=steps, **how)
        self.captured = CapturedStep(self.model, self._loss_of, Shape) if begins else None
        self.exact = options.validate != "sampled" and layers_of(model) is not None
        if options.validate == "exact" and not self.exact and self.whole is None:
            raise ValueError(
                f"validate exact needs a model with layers, and {type(model).__name__} has none: choose auto or sampled"
            )

    def _take_whole(self) -> None:
        """Hold the whole graph as one batch."""
        data, model, options = self.data, self.model, self.options
        if self.ranks.size > 1:
            raise ValueError(
                f"full_batch is one batch per step, and there are {self.ranks.size} ranks: train it on one, or use flow pipe"
            )
        self.whole = WholeBatch(data, options.depth, uses=_uses(options), keep_sum=options.keep_sum).to(self.device)
        if isinstance(model, GNN) and self.whole.x is not None:
            self.whole.first_sum.decide(cast(Layer, model.layers[0]), self.whole.x, self.whole.data.graph)
        self.seeds, self.seed_labels = (rows.to(self.device) for rows in (self.train_nodes, self.labels[self.train_nodes]))

    def num_batches(self, epoch: int) -> int:
        return 1 if self.loader is None else super().num_batches(epoch)

    def batches(self, epoch: int, first: int) -> Iterator[Batch | None]:
        """Sampled batches; or one None, for the whole graph."""
        if self.loader is None:
            return iter([None][first:])
        batches = super().batches(epoch, first)
        if self.remote is None:
            return batches
        rounds = rounds_of(self.num_batches(epoch), first=first, accumulate=self.accumulate, ranks=self.ranks.size)
        self.rounds = FetchedBatches(self.remote, OwnBatches(batches, self.ranks.rank), rounds, rank=self.ranks.rank)
        return self.rounds

    def end_batches(self) -> None:
        if self.rounds is not None:
            self.rounds.end_rounds()

    def close_step(self, weight: float) -> None:
        if self.rounds is not None:
            self.rounds.close_step()

    def loss(self, batch: Batch | None, clock: Clock) -> Step:
        return self._whole_loss(clock) if batch is None else self._batch_loss(batch, clock)

    def _whole_loss(self, clock: Clock) -> Step:
        with clock("forward"), self._precision():
            rows = self.model(self.whole).index_select(0, self.seeds)
            loss = node_loss(rows, self.seed_labels, self.weight)
        return Step(loss, len(rows), {self.measures[0].name: count_right(rows.detach(), self.seed_labels)})

    def _batch_loss(self, batch: Batch, clock: Clock) -> Step:
        placed = batch.to(self.device)  # where the loader has put it already, unless a model of one's own takes it elsewhere
        in_place = placed.table is not None and getattr(self.model, "reads_table", False)
        if not in_place:
            with clock("gather", batch.index):
                placed.x  # noqa: B018 - gathers the rows
        with clock("forward", batch.index):
            replayed = None if self.captured is None else self.captured(placed)
            loss, right = replayed or self._loss_of(placed)
        sample = batch.sample
        read = sample.num_edges + batch.blocks[-1].num_dst if in_place else sample.nodes.numel()
        return Step(
            loss,
            batch.batch_size,
            {self.measures[0].name: right},
            None if self.weight is None else loss_weight(placed.y, self.weight),  # type: ignore[arg-type]
            sample.num_sampled_nodes,
            sample.num_sampled_edges,
            0 if self.data.x is None else read * self.data.num_features * self.data.x.element_size(),
            ready=replayed is not None,
        )

    def _loss_of(self, batch: Any) -> tuple[Tensor, Tensor]:
        with self._precision():
            rows = self.model(batch)
            return node_loss(rows, batch.y, self.weight), count_right(rows.detach(), batch.y)

    def state_dict(self) -> dict[str, Any]:
        return {} if self.captured is None else {"captured": self.captured.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if self.options.capture == "auto":  # as the run began, however many steps it has by now
            self.captured = CapturedStep(self.model, self._loss_of, Shape) if "captured" in state else None
        if self.captured is not None and "captured" in state:
            self.captured.load_state_dict(state["captured"])

    def validate(self, progress: Progress) -> dict[str, Any] | None:
        if self.options.validate == "none" or "val" not in self.data.splits:
            return None
        return self._scores(("val",), progress)["val"]

    def test(self, progress: Progress) -> dict[str, dict[str, Any] | None]:
        names = [name for name in ("train", "val", "test") if name in self.data.splits]
        scores = self._scores(tuple(names), progress, with_classes="test")
        return {name: scores.get(name) for name in ("train", "val", "test")}

    def facts(self) -> dict[str, Any]:
        memory: dict[str, int] = {"data": self.data.nbytes}
        facts: dict[str, Any] = {"memory": memory, "cache": None}
        if self.device.type == "cuda":
            memory["gpu"], memory["gpu_peak"] = (
                measure(self.device) for measure in (torch.cuda.memory_allocated, torch.cuda.max_memory_allocated)
            )
        if self.whole is not None:
            memory["first_sum"], facts["first_sum"] = self.whole.first_sum.nbytes, self.whole.first_sum.reason
        if self.loader is not None:
            use = self.loader.memory()
            memory["buffers"], memory["buffers_peak"] = use.in_use + use.idle, use.peak
            facts["cache"] = {"hits": use.hits, "misses": use.misses}
        if self.ranks.size > 1:
            facts["ranks"] = {"size": self.ranks.size, "parallel": "data", "phases": self._moved()}
        if isinstance(self.rows, Tiered):
            facts["tiers"] = [asdict(tier) for tier in self.rows.use().tiers]  # since the run began
        return facts

    def exchanges(self) -> list[Exchange]:
        """The exchanges of this rank: for gradients and for features."""
        used = [self.exchange, None if self.remote is None else self.remote.exchange]
        return [exchange for exchange in used if exchange is not None]

    def _moved(self) -> dict[str, dict[str, float]]:
        """Bytes that this rank sent in an epoch and seconds that it took, by phase; since the last call."""
        now: dict[str, dict[str, float]] = {}
        for exchange in self.exchanges():
            for phase, traffic in exchange.traffic.items():
                sums = now.setdefault(phase, {"sent": 0, "seconds": 0.0})
                sums["sent"] += traffic.sent
                sums["seconds"] += traffic.seconds
        before, self._told = self._told, now
        nothing: dict[str, float] = {}
        return {
            phase: {name: value - before.get(phase, nothing).get(name, 0) for name, value in sums.items()}
            for phase, sums in now.items()
        }

    def _scores(self, names: tuple[str, ...], progress: Progress, with_classes: str = "") -> dict[str, dict[str, Any]]:
        nodes = {name: self.data.splits[name] for name in names}
        together = torch.cat(list(nodes.values()))
        with self._precision():
            rows = self._predict(together, progress)
        parts = rows.float().split([len(ids) for ids in nodes.values()])
        scores: dict[str, dict[str, Any]] = {}
        for (name, ids), part in zip(nodes.items(), parts, strict=True):
            scores[name] = dict(score(part, self.labels[ids]))
            if name == with_classes and (classes := per_class(part, self.labels[ids])):
                scores[name]["classes"] = classes
        return scores

    def _predict(self, nodes: Tensor, progress: Progress) -> Tensor:
        """The model's rows of some nodes, as in evaluation."""
        if self.exact and self.whole is None:
            data = with_rows_of(self.model, self.data)
            return infer(self.model, data, nodes, progress=progress, ranks=self.ranks, exchange=self.exchange)
        self.model.eval()
        with torch.no_grad():
            if self.whole is not None:
                rows: Tensor = self.model(self.whole)
                return rows[nodes.to(self.device)].cpu()
            loader = self._loader(nodes, shuffle=False)
            parts = []
            for batch in self._each(loader):
                parts.append(self.model(batch.to(self.device)).cpu())
                progress(min((batch.index + 1) * self.options.batch_size, len(nodes)), len(nodes))
            return torch.cat(parts)

    def _each(self, loader: NeighborLoader) -> Iterator[Batch]:
        return iter(loader)

    def _loader(self, nodes: Tensor, *, shuffle: bool, trace: Trace | None = None) -> NeighborLoader:
        data = Dataset(self.data.graph, y=self.data.y) if shuffle and not self._reads_rows else self.data
        return self._loader_over(data, nodes, shuffle=shuffle, trace=trace)

    def _loader_over(
        self, data: Dataset, nodes: Tensor, *, shuffle: bool, trace: Trace | None, on_cpu: bool = False
    ) -> NeighborLoader:
        options = self.options
        # A batch of one node has no variance to normalize by: of a training epoch it is left out.
        lone = shuffle and len(nodes) > 1 and len(nodes) % options.batch_size == 1 and normalizes_batches(self.model)
        return NeighborLoader(
            data,
            options.fanouts,
            nodes,
            batch_size=options.batch_size,
            shuffle=shuffle,
            drop_last=lone,
            seed=options.seed,
            threads=options.threads,
            staleness=self._ahead,
            device="cpu" if on_cpu else self.device,
            mode="cpu" if on_cpu else options.mode,
            rows=self.rows if data.x is not None else None,
            trace=trace,
            shard=self._shard() if shuffle else None,
        )

    @property
    def placed(self) -> str:
        """Where the ranks have their features, in words."""
        if self.remote is not None:
            return "spread over the ranks, fetched by exchanges"
        if not isinstance(self.rows, Tiered):
            return "in host memory, once per machine" if self.rows is None else "all on every GPU"
        spread = {"clique": "hot ones spread over GPUs that read each other", "replicate": "hot ones copied to every GPU"}
        return f"{spread[self.rows.placement]}, the rest in host memory, once per machine"

    @property
    def _reads_rows(self) -> bool:
        """Whether the loader of training batches gathers their features; otherwise ranks bring them together."""
        return self.remote is None and not self.pulls

    @property
    def _ahead(self) -> int:
        """Batches that are sampled ahead."""
        return self.options.staleness

    def _shard(self) -> Shard:
        """The batches of a training epoch that are made here."""
        return Shard(self.ranks.rank, self.ranks.size, tail="empty", accumulate=self.accumulate)

    def _placed_rows(self) -> Store | None:
        """Features where the GPU reads them, if there is one and it samples."""
        if self.data.x is None or self.device.type == "cpu" or self.options.full_batch or not self._reads_rows:
            return None
        return rows_on(self.device, self.data.x, self.data, self.options, self.ranks if self.ranks.size > 1 else None)

    def _precision(self) -> AbstractContextManager[Any]:
        cached = self.captured is None  # weights that were cast once must be cast again at every replay
        enabled = self.options.precision == "bf16"
        return torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=enabled, cache_enabled=cached)


def rows_on(device: torch.device, x: Tensor, data: Dataset, options: NodeOptions, ranks: Ranks | None = None) -> Store:
    """Rows of `x` where a GPU reads them: on it as far as the options say, the hottest nodes' first."""
    order = partial(
        hot_order,
        data.graph,
        by=options.hot,
        seeds=data.splits["train"],
        fanouts=options.fanouts,
        batch_size=options.batch_size,
    )
    return rows_for(device, x, cache=options.cache_budget, order=order, ranks=ranks)


def _uses(options: NodeOptions) -> int:
    """How many times a run computes the whole graph: for every step, every validation, and the test."""
    validations = 0 if options.validate == "none" else -(-options.epochs // (options.validate_every or options.epochs))
    return options.epochs + validations + 1
