"""`Flight`: batches on their way into the pipeline, each with a hold on the partitions that it needs."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import ExitStack
from time import perf_counter
from typing import TYPE_CHECKING

from headrace.pipeline.orders import Order
from headrace.store import BufferStep, Partitioned, Walk
from headrace.train.interrupt import Interrupt
from headrace.train.links.batches import EpochPlan
from headrace.train.links.flow import FlowBatch
from headrace.train.optimize import learning_rate

if TYPE_CHECKING:
    from headrace.train.links.loop import LinkTrainer


class Flight:
    """The batches of an epoch from where it stands: the source of a pipeline, which may be iterated once more after each pause."""

    def __init__(self, trainer: LinkTrainer, plan: EpochPlan, interrupt: Interrupt) -> None:
        self.trainer, self.plan, self.interrupt = trainer, plan, interrupt
        self.due, self.opened = math.inf, ExitStack()

    def __iter__(self) -> Iterator[FlowBatch]:
        state, options, rows, order = self.trainer.state, self.trainer.options, self.trainer.flow.rows, self.plan.order
        epoch, first, step, count = state.epoch, state.step, state.step, self.plan.num_batches
        walk: Walk | None = None
        steps: Iterator[BufferStep] = iter(())
        at = -1
        current: tuple[int, ...] = ()
        for edges in self.plan.batches(state.batch):
            if step > first and (self.interrupt.asked or perf_counter() >= self.due):
                return
            batch = FlowBatch(edges, epoch, learning_rate(options, step, count))
            if isinstance(rows, Partitioned):
                assert order is not None
                if walk is None:  # what is resident stays so from one flight to the next
                    at, left = edges.step - 1, Order(order.partitions, order.states[edges.step :], order.buckets[edges.step :])
                    walk = self.opened.enter_context(rows.walk(left))
                    steps = iter(walk)
                while at < edges.step:
                    current, at = next(steps).state, at + 1
                batch.hold = walk.hold(current)
            step += 1
            yield batch
        for _ in steps:  # states without edges at the end bring in what the next epoch starts with
            pass
