"""`PushPullRecipe`: node classification whose features are cut by columns: the first layer is computed by all ranks together."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from headrace.cluster import Grid, PushPull, PushPullBatches, Redrawn, Team, TeamShard, first_layer, parallelise, rounds_of
from headrace.cluster.batches import in_order
from headrace.cluster.rounds import IN_FLIGHT
from headrace.graph import Dataset
from headrace.loader import Batch, Shard
from headrace.pipeline import Trace, Versions
from headrace.ranks import Exchange, Ranks
from headrace.store import ColumnSlice
from headrace.train.nodes.options import NodeOptions
from headrace.train.nodes.recipe import NodeRecipe
from headrace.train.options import LoopOptions
from headrace.train.recipe import Step
from headrace.train.steps.optimize import Update
from headrace.train.watching.clock import Clock


class PushPullRecipe(NodeRecipe):
    """Node classification by push-pull (`headrace.cluster.PushPull`).

    The model is whole on every rank. Of the maps of its first layer a rank updates its own columns; `assemble` brings the others.
    team: the ranks that hold all columns together; replicas: those that hold the columns of this one.
    """

    pulls = True

    def __init__(
        self,
        data: Dataset,
        model: nn.Module,
        options: NodeOptions,
        trace: Trace | None = None,
        *,
        features: ColumnSlice,
        grid: Grid,
        team: Exchange | None,
        replicas: Exchange | None,
        ranks: Ranks,
        accumulate: int,
        exchange: Exchange | None,
    ) -> None:
        self.grid, self.replicas = grid, replicas
        self.layer = first_layer(model)
        if options.full_batch or options.capture == "always":
            what = "full_batch" if options.full_batch else "capture"
            raise ValueError(f"push-pull computes sampled batches with other ranks: it does not go with {what}")
        super().__init__(data, model, options, trace, ranks=ranks, accumulate=accumulate, exchange=exchange)
        wire = torch.bfloat16 if options.wire == "bf16" else None
        versions = _versions_of(options, accumulate, grid)
        more: dict[str, Any] = {"team": Team(team, wire=wire), "versions": versions, "precision": self._precision}
        engine = parallelise(model, "push_pull", features=features, **more)
        assert engine is not None
        self.engine: PushPull = engine
        self.own_gradients = [*self.engine.maps, *self.engine.shared]
        self._whole_stash: dict[int, tuple[list[Tensor], list[Tensor]]] = {}

    def batches(self, epoch: int, first: int) -> Iterator[Batch | None]:
        drawn = super().batches(epoch, first)
        structures = Redrawn(drawn, self.grid, self.layer, seed=self.options.seed, epoch=epoch)  # type: ignore[arg-type]
        rounds = rounds_of(self.num_batches(epoch), first=first, accumulate=self.accumulate, ranks=self.grid.ranks)
        self.rounds = PushPullBatches(self.engine, structures, rounds, rank=self.grid.rank)
        return self.rounds

    def gradients(self, batch: Any, clock: Clock) -> Step:
        done = super().gradients(batch, clock)
        assert isinstance(self.rounds, PushPullBatches)
        with clock("push"):
            weight = float(done.seeds if done.weight is None else done.weight)
            self.rounds.push([part.grad * weight for part in batch.pulled])
        return done

    def close_step(self, weight: float) -> None:
        assert isinstance(self.rounds, PushPullBatches)
        engine, rounds = self.engine, self.rounds.returned()
        own = in_order(rounds, 0) or [torch.zeros_like(weight[:, engine.columns]) for weight in engine.maps]
        for parameter, gradient in zip(engine.maps, summed_over("replicas", own, self.replicas), strict=True):
            parameter.grad = torch.zeros_like(parameter)
            parameter.grad[:, engine.columns] = gradient / weight
        if engine.shared:
            mine = in_order(rounds, 1) or [torch.zeros_like(parameter) for parameter in engine.shared]
            for parameter, gradient in zip(engine.shared, summed_over("shared", mine, self.exchange), strict=True):
                parameter.grad = gradient / weight
        engine.keep()
        super().close_step(weight)

    def make_update(self, options: LoopOptions) -> Update | None:
        update = super().make_update(options)
        assert update is not None
        update.norm = self._norm
        return update

    def _norm(self, parameters: Sequence[nn.Parameter]) -> Tensor:
        """Of the whole gradient: every slice counts, once."""
        maps = {id(parameter) for parameter in self.engine.maps}
        squares = sum(
            (p.grad.double().square().sum() for p in parameters if p.grad is not None and id(p) not in maps), torch.zeros(())
        )
        mine = sum((p.grad.double().square().sum() for p in self.engine.maps if p.grad is not None), torch.zeros(()))
        counted = mine if self.grid.rank < self.grid.size else torch.zeros_like(mine)
        (slices,) = summed_over("norm", [counted.reshape(1)], self.exchange)
        return (squares + slices.sum()).sqrt().to(parameters[0].dtype)

    def assemble(self) -> None:
        """Bring the columns of all ranks: of the maps, and of what the optimizer keeps of them."""
        assert self.update is not None
        whole: list[Tensor] = []
        for parameter in self.engine.maps:
            kept = self.update.optimizer.state.get(parameter, {}).values()
            whole += [parameter.detach(), *(t for t in kept if isinstance(t, Tensor) and t.shape == parameter.shape)]
        self._bring([tensor[:, self.engine.columns] for tensor in whole], whole)
        self._whole_stash = {}
        for version, (own, shared) in self.engine.stashed().items():
            into = [torch.empty_like(parameter) for parameter in self.engine.maps]
            self._bring([tensor.detach() for tensor in own], into)
            self._whole_stash[version] = into, [tensor.detach() for tensor in shared]

    def _bring(self, own: Sequence[Tensor], whole: Sequence[Tensor]) -> None:
        """Fill `whole` with the columns of every place of the team: `own` are those of this rank."""
        if self.exchange is None:
            for tensor, part in zip(whole, own, strict=True):
                tensor[:, self.engine.columns] = part
            return
        features = whole[0].shape[1]
        widest = -(-features // self.grid.size)
        mine = torch.cat([nn.functional.pad(part, (0, widest - part.shape[1])) for part in own])
        gathered = self.exchange.all_gather("assemble", mine.to(self.exchange.wire)).view(self.grid.ranks, *mine.shape)
        for place in range(self.grid.size):
            begin, end = self.grid.columns(features, place)
            parts = gathered[place, :, : end - begin].to(whole[0].device).split([len(tensor) for tensor in whole])
            for tensor, part in zip(whole, parts, strict=True):
                tensor[:, begin:end] = part

    def state_dict(self) -> dict[str, Any]:
        versions = {str(version): kept for version, kept in self._whole_stash.items() if version != self.engine.updates}
        return {**super().state_dict(), "updates": self.engine.updates, "versions": versions}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.engine.restore(state.get("updates", 0), {int(v): kept for v, kept in state.get("versions", {}).items()})

    def facts(self) -> dict[str, Any]:
        facts, engine = super().facts(), self.engine
        slices = sum(weight[:, engine.columns].nbytes for weight in engine.maps)
        versions = {"versions": engine.most_versions, "version_bytes": engine.most_versions * slices}
        more = {"parallel": "push_pull", "columns": list(engine.features.columns), "partial_bytes": engine.most_partial_bytes}
        facts["ranks"] = {"size": self.grid.ranks, "phases": {}, **facts.get("ranks", {}), **versions, **more}
        return facts

    def exchanges(self) -> list[Exchange]:
        return super().exchanges() + [e for e in (self.engine.team.exchange, self.replicas) if e is not None]

    @property
    def placed(self) -> str:
        held = f"{self.grid.held} of {self.grid.ranks} slices" if self.grid.held > 1 else "a slice"
        return f"cut by columns, {held} on every rank; push-pull with versions {self.options.versions}"

    @property
    def _ahead(self) -> int:
        return self.options.staleness * self.grid.size  # a round takes a batch of every member

    def _shard(self) -> Shard:
        grid = self.grid
        return TeamShard(grid.rank, grid.ranks, "empty", self.accumulate, grid.members)


def _versions_of(options: NodeOptions, accumulate: int, grid: Grid) -> Versions:
    versions = Versions.of(options.versions, m=accumulate // grid.ranks)
    if versions.kind == "double_buffer" and versions.m < IN_FLIGHT:
        raise ValueError(
            f"double_buffer has {IN_FLIGHT} batches of a rank in flight, which must be of one step, and accumulate {accumulate} "
            f"makes {versions.m} for each of {grid.ranks} ranks: use accumulate {IN_FLIGHT * grid.ranks} or more, or versions stash"
        )
    return versions


def summed_over(phase: str, mine: Sequence[Tensor], exchange: Exchange | None) -> list[Tensor]:
    """Sums over ranks, in their order."""
    if exchange is None:
        return list(mine)
    flat = torch.cat([tensor.reshape(-1) for tensor in mine]).to(exchange.wire)
    rows = exchange.all_gather(phase, flat).view(exchange.size, len(flat))
    total = rows[0].clone()
    for row in rows[1:]:
        total += row
    parts = total.to(mine[0].device).split([math.prod(tensor.shape) for tensor in mine])
    return [part.view(tensor.shape) for part, tensor in zip(parts, mine, strict=True)]
