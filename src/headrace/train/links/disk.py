"""`DiskLinkRecipe`: link prediction whose rows are partitions on disk, of which some are in a buffer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from time import perf_counter
from typing import Any

from headrace.pipeline.orders import Order
from headrace.store import BufferStep, Partitioned, Walk
from headrace.train.checkpoint import packed, unpacked
from headrace.train.inference.encoded import ENCODED
from headrace.train.links.flow import FlowBatch
from headrace.train.links.recipe import LinkRecipe
from headrace.train.run import Run

_COUNTS = ("loads", "write_backs", "bytes_read", "bytes_written")
_SECONDS = ("read_seconds", "write_seconds", "busy_seconds", "stall_seconds")


class DiskLinkRecipe(LinkRecipe):
    """Rows have checkpoints of their own: all else is saved with those, in one commit, and a run ends with its last rows."""

    keeps_best = False

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        assert self.flow.rows.disk is not None
        self.rows: Partitioned = self.flow.rows.disk
        self._walks = ExitStack()
        self._epoch = 0
        self._epoch_use: dict[str, float] = {}  # what the disk did in that epoch so far
        self._earlier_use: dict[str, float] = {}  # and in the epochs before

    def batches(self, epoch: int, first: int) -> Iterator[FlowBatch]:
        """The batches of an epoch. Bytes that checkpoints write between flights are not counted as the epoch's."""
        if epoch != self._epoch:
            self._earlier_use = _added(self._earlier_use, self._epoch_use)
            self._epoch, self._epoch_use = epoch, {}
        before, begin = self.rows.use(), perf_counter()
        with ExitStack() as self._walks:
            yield from super().batches(epoch, first)
        use = asdict(self.rows.use() - before) | {"seconds": perf_counter() - begin}
        self._epoch_use = _added(self._epoch_use, {name: use[name] for name in (*_COUNTS, *_SECONDS, "seconds")})

    def source(self, epoch: int) -> Iterator[FlowBatch]:
        """Each batch with a hold on the partitions that it needs."""
        order = self.plan(epoch).order
        assert order is not None
        walk: Walk | None = None
        steps: Iterator[BufferStep] = iter(())
        at = -1
        current: tuple[int, ...] = ()
        for batch in super().source(epoch):
            step = batch.edges.step
            if walk is None:  # what is resident stays so from one flight to the next
                at, left = step - 1, Order(order.partitions, order.states[step:], order.buckets[step:])
                walk = self._walks.enter_context(self.rows.walk(left))
                steps = iter(walk)
            while at < step:
                current, at = next(steps).state, at + 1
            batch.hold = walk.hold(current)
            yield batch
        if not self._landed:
            for _ in steps:  # states without edges at the end bring in what the next epoch starts with
                pass

    def _encoded_file(self) -> Path | None:
        return None if self.folder is None else self.folder / ENCODED

    def _saved_rows(self) -> dict[str, Any]:
        return {"epoch": self._epoch, "epoch_use": self._epoch_use, "earlier_use": self._earlier_use}

    def _load_rows(self, state: dict[str, Any]) -> None:
        self._epoch, self._epoch_use, self._earlier_use = (state[name] for name in ("epoch", "epoch_use", "earlier_use"))

    def save(self, run: Run, state: dict[str, Any]) -> None:
        self.rows.checkpoint(packed({**state, "log_position": run.log_position(lasting=True)}))

    def load(self, run: Run) -> dict[str, Any] | None:
        saved = self.rows.extra
        return unpacked(saved, run.path / "rows") if isinstance(saved, bytes) else None

    def facts(self) -> dict[str, Any]:
        return {**super().facts(), "disk": self._shown(self._epoch_use, epochs=1)}

    def finish(self, run: Run | None) -> dict[str, Any]:
        used = _added(self._earlier_use, self._epoch_use)
        return {**super().finish(run), "disk": self._shown(used, epochs=self._epoch + 1)}

    def _shown(self, used: dict[str, float], *, epochs: int) -> dict[str, Any]:
        """For the log and for `--json`.

        bytes_read and bytes_written are of rows and state: for L loads of an order 2 L S / p in all, of S bytes with their padding.
        edge_bytes are those of the edges, which are read through a mapping and may come from the page cache. `busy` is the share of
        the time in which at least one read or write was under way.
        """
        return {
            **{name: int(used.get(name, 0)) for name in _COUNTS},
            "edge_bytes": epochs * self.flow.triples.nbytes,
            "slot_bytes": self.rows.use().slot_bytes,
            **{name: used.get(name, 0.0) for name in _SECONDS},
            "busy": min(used.get("busy_seconds", 0.0) / max(used.get("seconds", 0.0), 1e-9), 1.0),
        }


def _added(sums: dict[str, float], more: dict[str, float]) -> dict[str, float]:
    return sums | {name: sums.get(name, 0) + value for name, value in more.items()}
