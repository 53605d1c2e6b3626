"""`Accumulator`: one update from several batches, made by one rank or by many, with the same bits.

The batches of a step are numbered; rank r of n makes those with number i % n == r, or those that its recipe deals to it.
Each batch's gradient of its mean loss, times
what that is a mean over, is added in the order of batches, and the sum is divided by what all of them are means over. So the loss
of a step is the sum over its seeds divided by their number, however they were dealt.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from headrace.ranks import Exchange, Ranks, gradient_bytes, sum_gradients
from headrace.train.recipe import Recipe, Step
from headrace.train.steps.statistics import RunningStatistics
from headrace.train.watching.clock import Clock

_HOPS = 16  # that a report has room for


@dataclass(frozen=True)
class WideStep:
    """The outcome of a step: its batches in order, and the requests of all ranks."""

    batches: list[Step]
    asked: int  # bits, of all ranks

    @property
    def not_finite(self) -> int | None:
        """The number of the first batch whose loss is not finite."""
        return next((number for number, done in enumerate(self.batches) if not math.isfinite(float(done.loss))), None)


class Accumulator:
    """Makes the wide steps of a recipe on one of `ranks`, which speak through `exchange` where there are several."""

    def __init__(self, recipe: Recipe, ranks: Ranks, exchange: Exchange | None) -> None:
        if recipe.update is None:
            raise ValueError(f"{type(recipe).__name__} updates its weights by itself, batch by batch: it trains on one rank")
        self.recipe, self.update, self.ranks, self.exchange = recipe, recipe.update, ranks, exchange
        self.statistics = RunningStatistics(recipe.model)
        self._names = [measure.name for measure in recipe.measures]
        self._dtype = torch.float32
        brought = {id(parameter) for parameter in recipe.own_gradients}
        self._parameters = [parameter for parameter in self.update.parameters if id(parameter) not in brought]
        for parameter in self._parameters:
            self._dtype = torch.promote_types(self._dtype, parameter.dtype)
        self._size = sum(parameter.numel() for parameter in self._parameters)

    def step(self, batches: Iterator[Any], count: int, *, epoch: int, first: int, rate: float, ask: int, clock: Clock) -> WideStep:
        """Batches `first` to `first + count` of an epoch, of which this rank's are the next of `batches`; then one update.

        ask: bits that all ranks learn of. If a loss is not finite, nothing is updated.
        """
        parts: list[Tensor] = []
        reports: list[Tensor] = []
        self.update.begin(rate)
        self.statistics.begin()
        asked_owners = self.recipe.owners(epoch, first, count)
        owners = [number % self.ranks.size for number in range(count)] if asked_owners is None else list(asked_owners)
        for index in (first + number for number in range(count) if owners[number] == self.ranks.rank):
            with clock("wait", index):
                batch = next(batches)
            self.update.seed(epoch, index)
            self.update.optimizer.zero_grad(set_to_none=True)
            self.statistics.before()
            done = self.recipe.gradients(batch, clock)
            del batch  # its buffers serve the next one
            weight = _number(done.seeds if done.weight is None else done.weight)
            parts.append(self._flat().mul_(weight))
            reports.append(self._report(done, weight))
        with clock("exchange", first):
            self.recipe.end_batches()
            exchanged = self._exchanged(reports, owners, ask)  # while gradients travel
            gradient = self._like()
            if self._size:
                gradient = sum_gradients(parts, batches=count, exchange=self.exchange, like=gradient, owners=owners)
            asked, rows = exchanged()
            total = math.fsum(rows[:, 2].tolist())
            self.recipe.close_step(total)
        wide = WideStep([self._read(row) for row in rows.tolist()], asked)
        self.statistics.fold(rows[:, rows.shape[1] - self.statistics.width :])
        if wide.not_finite is None:
            self._spread(gradient.div_(total))
            with clock("step", first):
                self.update()
        return wide

    def bytes_sent(self, count: int, owners: Sequence[int] | None = None) -> int:
        """Bytes that this rank sends in a step of `count` batches: the slices of gradients, and a report of each batch."""
        size, rank = self.ranks.size, self.ranks.rank
        dealt = [number % size for number in range(count)] if owners is None else list(owners)
        gradients = gradient_bytes(self._size, self._dtype.itemsize, count, size, rank, own=dealt.count(rank))
        reports = 8 * (size - 1) * max(dealt.count(other) for other in range(size)) * (1 + self._width)
        return reports + sum(traffic.sent for traffic in gradients.values())

    @property
    def _width(self) -> int:
        """Numbers of a report: loss, seeds, weight, bytes, measures, nodes and edges by hop, running statistics."""
        return 4 + len(self._names) + 2 * (_HOPS + 1) + self.statistics.width

    def _like(self) -> Tensor:
        return torch.empty(self._size, dtype=self._dtype, device=self.update.parameters[0].device)

    def _flat(self) -> Tensor:  # -> [size]
        parameters = self._parameters
        flat = [(torch.zeros_like(p) if p.grad is None else p.grad).reshape(-1).to(self._dtype) for p in parameters]
        return torch.cat([self._like()[:0], *flat])

    def _spread(self, gradient: Tensor) -> None:
        for parameter, part in zip(self._parameters, gradient.split([p.numel() for p in self._parameters]), strict=True):
            parameter.grad = part.view_as(parameter).to(parameter.dtype)

    def _report(self, done: Step, weight: float) -> Tensor:
        """All that the log and the other ranks want to know of a batch.  # -> [width] float64"""
        if max(len(done.nodes), len(done.edges)) > _HOPS:
            raise ValueError(f"a step of several batches counts at most {_HOPS - 1} hops, not {len(done.nodes) - 1}")
        numbers = [
            _number(done.loss),
            done.seeds,
            weight,
            done.bytes,
            *(_number(done.sums.get(name, math.nan)) for name in self._names),
        ]
        for sizes in (done.nodes, done.edges):
            numbers += [len(sizes), *sizes, *[0] * (_HOPS - len(sizes))]
        return torch.cat([torch.tensor(numbers, dtype=torch.float64), self.statistics.after()])

    def _read(self, row: list[float]) -> Step:
        loss, seeds, weight, read, *rest = row
        sums: dict[str, Tensor | float] = {
            name: value for name, value in zip(self._names, rest, strict=False) if not math.isnan(value)
        }
        nodes, edges = (rest[len(self._names) + begin :] for begin in (0, _HOPS + 1))
        sizes = [tuple(int(n) for n in numbers[1 : 1 + int(numbers[0])]) for numbers in (nodes, edges)]
        return Step(loss, int(seeds), sums, weight, sizes[0], sizes[1], int(read))

    def _exchanged(self, reports: list[Tensor], owners: list[int], ask: int) -> Callable[[], tuple[int, Tensor]]:
        """Send reports; what this returns waits for what all ranks asked for, and for those of all batches.  # [count, width]"""
        if self.exchange is None:
            return lambda: (ask, torch.stack(reports))
        each = max(owners.count(rank) for rank in range(self.ranks.size))
        width = self._width
        mine = torch.zeros(each, 1 + width, dtype=torch.float64)
        mine[:, 0] = ask
        for number, report in enumerate(reports):
            mine[number, 1:] = report
        transfer = self.exchange.gathering("reports", mine)

        def arrived() -> tuple[int, Tensor]:
            gathered = transfer.wait().view(self.ranks.size, each, 1 + width)
            asked = 0
            for bits in gathered[:, 0, 0].tolist():
                asked |= int(bits)
            of_rank = [iter(rows) for rows in gathered[:, :, 1:]]
            return asked, torch.stack([next(of_rank[owner]) for owner in owners])

        return arrived


def _number(value: Tensor | float) -> float:
    return float(value.detach() if isinstance(value, Tensor) else value)
