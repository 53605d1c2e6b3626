"""Decisions: all configurations are costed, the cheapest are taken, and each choice says what the others would have cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product as combinations
from typing import Any

import torch

from headrace._sizes import format_size
from headrace.graph import Graph, reorder
from headrace.graph.reorder.orders import Progress
from headrace.graph.topology.properties import Properties
from headrace.plan.decided import Candidate, Choice
from headrace.plan.machine import Machine
from headrace.plan.whole.cost import CACHE_SHARE, Cost
from headrace.plan.whole.plan import AS_IT_IS, Configuration, Plan
from headrace.plan.whole.steps import How, forward_cost, step_cost, summed_width, sums_per_step, ways
from headrace.plan.whole.sums import Kernel, Sums
from headrace.plan.whole.workload import Workload

_ORDERED = 0.99  # an order of nodes that is predicted to gain less than a hundredth of a step is not worth other ids
_KEPT = 0.98  # kept sums take memory: they must save a fiftieth of the layer's step at least
_WORTH = 0.9  # bf16 rounds: it is suggested where a step is predicted to take less than this share of the time in fp32


class Costing:
    """Costs of a workload over one graph in one order of its nodes."""

    def __init__(self, workload: Workload, sums: Sums, *, epochs: int) -> None:
        self.workload, self.sums, self.epochs = workload, sums, epochs
        self.may_keep = workload.input_dropout == 0.0

    def ways(self) -> list[tuple[How, ...]]:
        """All combinations of the layers' orders of operations."""
        return list(combinations(*(ways(layer, may_keep=self.may_keep) for layer in self.workload.layers)))

    def layer(self, index: int, how: How, dtype: torch.dtype, *, forward: bool = False) -> Cost:
        """One layer's share of a step, or of a forward pass; its kept sums' making spread over the epochs."""
        layer = self.workload.layers[index]

        def sums(width: int) -> Cost:
            return self.sums.cost(width, dtype, attends=layer.attends)

        of = forward_cost if forward else step_cost
        cost = of(self.sums.machine, layer, how, rows=self.sums.properties.nodes, dtype=dtype, sums=sums)
        if how == "kept" and not forward:
            cost = cost + (1.0 / self.epochs) * sums(layer.wide)
        return cost

    def total(self, hows: Sequence[How], dtype: torch.dtype, *, forward: bool = False) -> Cost:
        """All layers."""
        total = Cost()
        for index, how in enumerate(hows):
            total = total + self.layer(index, how, dtype, forward=forward)
        return total

    def best(self, dtype: torch.dtype) -> tuple[How, ...]:
        """The cheapest way of every layer: they do not depend on one another."""

        def weighed(index: int, how: How) -> float:
            return self.layer(index, how, dtype).seconds / (_KEPT if how == "kept" else 1.0)

        layers = self.workload.layers
        return tuple(min(ways(layer, may_keep=self.may_keep), key=lambda how: weighed(i, how)) for i, layer in enumerate(layers))


def decide(
    graph: Graph,
    workload: Workload,
    machine: Machine,
    figures: Properties,
    *,
    epochs: int,
    dtype: torch.dtype | None,
    orders: Sequence[str],
    progress: Progress | None = None,
    threads: int | None = None,
) -> Plan:
    """The plan: operations and type for the order as it is, then whether another order of nodes pays, then both again for that."""
    costing = Costing(workload, Sums(graph, figures, machine, threads=threads), epochs=epochs)
    kind, _ = _choose_dtype(costing, dtype)
    tried, decision = _orders(graph, costing, costing.best(kind), kind, orders, progress, threads)
    decision = _worth_it(tried, decision, kind)
    chosen = tried[decision.name or AS_IT_IS]
    kind, types = _choose_dtype(chosen, dtype)
    hows = chosen.best(kind)
    steps = {name: c.total(c.best(kind), kind) for name, c in tried.items()}
    reordering = Choice(
        "order of nodes",
        decision.name or AS_IT_IS,
        _candidates(steps),
        decision.reason,
    )
    kernels = {
        f"layer {i + 1}: kernel": tuple(chosen.sums.kernels(summed_width(layer, how), kind))
        for i, (layer, how) in enumerate(zip(workload.layers, hows, strict=True))
        if not layer.attends
    }
    layers = [choice for i in range(len(hows)) for choice in _layer_choices(chosen, i, kind, kernels)]
    allowed = [dtype] if dtype is not None else [torch.float32, torch.bfloat16]
    return Plan(
        choices=(reordering, types, *layers),
        workload=workload,
        properties=figures,
        machine=machine,
        epochs=epochs,
        forward=chosen.total(hows, kind, forward=True),
        step=chosen.total(hows, kind),
        configuration=Configuration(reordering.chosen, kind, hows),
        seconds_of={
            Configuration(name, type_, way): c.total(way, type_).seconds
            for name, c in tried.items()
            for type_ in allowed
            for way in c.ways()
        },
        kernels=kernels,
        order=decision.order,
    )


def _choose_dtype(costing: Costing, asked: torch.dtype | None) -> tuple[torch.dtype, Choice]:
    if asked is not None:
        cost = costing.total(costing.best(asked), asked)
        name = str(asked).removeprefix("torch.")
        return asked, Choice("type", name, _candidates({name: cost}), "as asked")
    costs = {kind: costing.total(costing.best(kind), kind) for kind in (torch.float32, torch.bfloat16)}
    full, half = costs[torch.float32], costs[torch.bfloat16]
    share = _summed_share(costing, torch.float32)
    kind = torch.bfloat16 if half.seconds < _WORTH * full.seconds else torch.float32
    times = full.seconds / half.seconds
    if kind == torch.bfloat16:
        reason = f"half the bytes: a step is predicted to be {times:.2f} x as fast; {100 * share:.0f} % of it in fp32 are sums"
    else:
        reason = f"bfloat16 is predicted to be {times:.2f} x as fast, too little for its rounding; {100 * share:.0f} % are sums"
    named = _candidates({str(k).removeprefix("torch."): c for k, c in costs.items()})
    return kind, Choice("type", str(kind).removeprefix("torch."), named, reason)


def _summed_share(costing: Costing, dtype: torch.dtype) -> float:
    """How much of a step are sums over neighbors."""
    hows = costing.best(dtype)
    spent = 0.0
    for layer, how in zip(costing.workload.layers, hows, strict=True):
        spent += sums_per_step(layer, how) * costing.sums.cost(summed_width(layer, how), dtype, attends=layer.attends).seconds
    return spent / max(costing.total(hows, dtype).seconds, 1e-12)


def _orders(
    graph: Graph,
    costing: Costing,
    hows: Sequence[How],
    dtype: torch.dtype,
    orders: Sequence[str],
    progress: Progress | None,
    threads: int | None,
) -> tuple[dict[str, Costing], reorder.Decision]:
    """The workload in the order as it is and in every other that was worth a look, and which of them pays."""
    machine, sums = costing.sums.machine, costing.sums
    layers = costing.workload.layers
    widths = [(summed_width(layer, how), sums_per_step(layer, how)) for layer, how in zip(layers, hows, strict=True)]
    widest = max((width for width, count in widths if count), default=layers[0].mapped)
    at_once = min(sums.chosen(widest, dtype).columns or widest, widest)  # a kernel that takes slices reads rows of a slice
    passes = max(round(sum(width * count for width, count in widths) / at_once), 1)
    row = at_once * dtype.itemsize
    costings = {AS_IT_IS: costing}
    nearest = machine.near_bytes or machine.cache_bytes
    cache, table = int(CACHE_SHARE * nearest), sums.properties.nodes * row
    more = _miss_seconds(sums, row, dtype) if table > cache and sums.properties.edges else 0.0
    if more <= 0:
        why = (
            f"as it is: all {format_size(table)} of the rows that are summed lie in a cache of {format_size(nearest)} in any order"
        )
        return costings, reorder.Decision(None, None, 0.0, 0.0, 0.0, {}, why)
    decision = reorder.auto(
        graph,
        at_once,
        epochs=costing.epochs,
        passes=passes,
        dtype_bytes=dtype.itemsize,
        cache_bytes=cache,
        bytes_per_second=row / more,
        orders=orders,
        progress=progress,
        threads=threads,
    )
    for name, misses in decision.tried.items():
        if name == decision.name:
            reordered = Sums(graph, sums.properties, machine, order=decision.order, threads=threads)
        else:  # its permutation is gone, and was worth no more simulations: rows of other sizes miss in proportion
            share = misses / max(decision.misses, 1e-9)
            reordered = Sums(graph, sums.properties, machine, misses=lambda *at, share=share: share * sums.missed(*at))  # type: ignore[misc]
        costings[name] = Costing(costing.workload, reordered, epochs=costing.epochs)
    return costings, decision


def _miss_seconds(sums: Sums, row: int, dtype: torch.dtype) -> float:
    """The extra seconds of a read that misses the nearest cache. Some of these reads go to memory, others to a larger cache."""
    machine, table = sums.machine, sums.properties.nodes * row
    close = machine.hit_seconds(row, table_bytes=1 if machine.near_bytes else table, dtype=dtype)
    to_memory = sums.misses(row) if table > CACHE_SHARE * machine.cache_bytes else 0.0
    share = min(to_memory / max(sums.near_misses(row), 1e-9), 1.0)
    far = machine.hit_seconds(row, table_bytes=machine.cache_bytes, dtype=dtype)
    return share * machine.miss_seconds(row, dtype=dtype) + (1 - share) * far - close


def _worth_it(tried: Mapping[str, Costing], decision: reorder.Decision, dtype: torch.dtype) -> reorder.Decision:
    """The decision, unless all that it saves is next to nothing."""
    if decision.name is None:
        return decision
    before, after = (tried[name].total(tried[name].best(dtype), dtype).seconds for name in (AS_IT_IS, decision.name))
    if after < _ORDERED * before:
        return decision
    why = f"as it is: a step is predicted to gain {100 * (1 - after / before):.1f} % by the order {decision.name}, too little"
    return replace(decision, name=None, order=None, reason=f"{why}; {decision.reason}")


def _layer_choices(costing: Costing, index: int, dtype: torch.dtype, kernels: Mapping[str, tuple[Kernel, ...]]) -> list[Choice]:
    layer, name = costing.workload.layers[index], f"layer {index + 1}"
    each = {way: costing.layer(index, way, dtype) for way in ways(layer, may_keep=costing.may_keep)}
    plain: dict[How, Cost] = {way: cost for way, cost in each.items() if way != "kept"}
    best = min(plain, key=lambda way: plain[way].seconds)
    choices = [Choice(f"{name}: operations", best, _candidates(plain), _why_operations(costing, index, best))]
    if layer.first:
        choices.append(_keeping(costing, each, best, dtype))
    of = kernels.get(f"{name}: kernel", ())
    if of:
        weighed = _candidates({kernel.name: kernel.cost for kernel in of})
        why = f"one sum of {of[0].width} columns: {_why_kernel(costing.sums, of[0].width, dtype)}"
        choices.append(Choice(f"{name}: kernel", of[0].name, weighed, why))
    return choices


def _why_operations(costing: Costing, index: int, best: How) -> str:
    layer = costing.workload.layers[index]
    if layer.attends:
        return "attention takes its scores from mapped rows: the map comes first"
    width = f"{summed_width(layer, 'aggregate')} columns summed before the map, {layer.mapped} after it"
    if layer.first:
        width += "; features want no gradient, so that a first sum is made once in a step and a later one twice"
    return f"{width}: {'map, then sum' if best == 'transform' else 'sum, then map'}"


def _keeping(costing: Costing, each: dict[How, Cost], best: How, dtype: torch.dtype) -> Choice:
    layer, name = costing.workload.layers[0], "layer 1: sums of features"
    every = Candidate("at every step", each[best].bytes, each[best].seconds)
    if layer.attends:
        return Choice(name, every.name, (every,), "the rows that are summed are learnt")
    if "kept" not in each:
        rate = costing.workload.input_dropout
        why = f"dropout of the input ({rate:g}) changes the features at every step; without it they could be made once"
        return Choice(name, every.name, (every,), why)
    kept = Candidate("made once", each["kept"].bytes, each["kept"].seconds)
    size = format_size(costing.sums.properties.nodes * layer.wide * dtype.itemsize)
    if kept.seconds < _KEPT * every.seconds:
        why = f"features never change: one sum of {layer.wide} columns for {costing.epochs} epochs, kept in {size}"
        return Choice(name, kept.name, (every, kept), why)
    why = f"{size} of sums of {layer.wide} columns, made once for {costing.epochs} epochs, would save too little or nothing"
    return Choice(name, every.name, (every, kept), why)


def _why_kernel(sums: Sums, width: int, dtype: torch.dtype) -> str:
    figures, machine, reuse = sums.properties, sums.machine, sums.reuse(width * dtype.itemsize)
    table = format_size(figures.nodes * width * dtype.itemsize)
    cached = "fits into" if figures.nodes * width * dtype.itemsize <= CACHE_SHARE * machine.cache_bytes else "is more than"
    text = f"{table} of rows {cached} a cache of {format_size(machine.cache_bytes)}; a fetched row serves {reuse:.3g} times"
    if machine.device == "cuda":
        text += f"; degrees {figures.mean_degree:.3g} on average, {figures.max_degree:,} at most"
    return text


def _candidates(costs: Mapping[Any, Cost]) -> tuple[Candidate, ...]:
    return tuple(Candidate(name, cost.bytes, cost.seconds) for name, cost in costs.items())
