"""`planned_link`: the options of a training of links, as somebody gave them and as a plan made the rest."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from headrace.graph import Dataset
from headrace.plan.links.asked import LinkAsked
from headrace.plan.links.plan import DISK_RATE, LINK_RATE, LinkPlan, decide
from headrace.plan.links.probe import disk_rate, edge_rate
from headrace.plan.links.setting import LinkSetting
from headrace.train import LinkOptions
from headrace.train.links.data import LinkData
from headrace.train.links.flow.row_optimizer import RowOptimizer
from headrace.train.links.memory import LinkMemory

PLANNED = ("storage", "partitions", "buffer", "buffer_on", "order", "batch_size", "staleness")


@dataclass(frozen=True)
class PlannedLink:
    """Options to train with and the plan that they come from. `record` is for `hr.train.link`, which keeps it with the run."""

    options: LinkOptions
    plan: LinkPlan
    chosen: tuple[str, ...]  # names of options that were not planned

    def record(self) -> dict[str, Any]:
        """The plan as JSON has it; `predicted` is of an epoch after the first, which also fills the buffer."""
        plan = self.plan
        predicted = {"read": plan.disk.read, "written": plan.disk.written, "seconds": plan.seconds}
        return {**plan.as_dict(), "given": list(self.chosen), "predicted": predicted}


def planned_link(
    data: Dataset,
    chosen: Mapping[str, Any] | None = None,
    *,
    folder: str | Path | None = None,
    device_memory: int | None = None,
    disk: float | None = None,
    edges_per_second: float | None = None,
    progress: Callable[[str], None] = lambda text: None,
) -> PlannedLink:
    """Options of `hr.train.link` for `data`: those that were `chosen`, by their names, and what `link_plan` makes of the others.

    Planned are storage, partitions, buffer, buffer_on, order, batch_size and staleness, for `memory` bytes (of the given options;
    three quarters of the machine's without). A few batches are trained, and a disk that is needed is read and written, to know
    how fast they are; `disk` (bytes a second each way) and `edges_per_second` say it without. `folder` is where the run will be.

    >>> import headrace as hr
    >>> data = hr.generate.community(nodes=300, edges=6000, classes=3, features=4)
    >>> planned = hr.plan.planned_link(data, {"dim": 16, "epochs": 3, "memory": "1GiB"}, edges_per_second=1e5)
    >>> planned.options.storage, planned.options.batch_size
    ('host', 100)
    >>> result = hr.train.link(data, planned.options, plan=planned.record())
    """
    chosen = dict(chosen or {})
    base = LinkOptions(**{name: value for name, value in chosen.items() if name not in PLANNED})
    if base.negatives == 0:
        raise ValueError(
            "negatives 0 scores every node, which needs all rows in one place: there is nothing to plan, give negatives"
        )
    edges = LinkData.of(data, held_out=base.held_out, seed=base.seed)
    if device_memory is None and torch.device(base.device).type == "cuda":
        device_memory = torch.cuda.mem_get_info()[0]
    memory = base.memory_bytes or os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") * 3 // 4
    sizes = {"nodes": edges.num_nodes, "train": len(edges.train), "others": len(edges.val) + len(edges.test)}
    state = RowOptimizer(base.optimizer).state_width(base.dim)
    run = LinkMemory.of(base, **sizes, edge_bytes=edges.train[:1].nbytes, state=state)
    run = replace(run, limit=memory, gpu=device_memory is not None)
    asked = LinkAsked(**{name: chosen[name] for name in PLANNED if name in chosen})

    def planned(disk_rate: float, edge_rate: float | None) -> PlannedLink:
        plan = decide(LinkSetting(run, device_memory, disk_rate, None, LINK_RATE, edge_rate), asked)
        decided = {name: value for name, value in plan.options().items() if name in PLANNED}
        return PlannedLink(LinkOptions(**{**decided, **chosen}), plan, tuple(sorted(chosen)))

    first = planned(disk or DISK_RATE, None)
    if edges_per_second is None:
        progress("trying a few batches")
        edges_per_second = edge_rate(edges, first.options)
    if first.plan.storage == "disk" and disk is None:
        progress("measuring the disk")
        disk = _rate_of(folder)
    return planned(disk or DISK_RATE, edges_per_second)


def _rate_of(folder: str | Path | None) -> float:
    """Bytes a second each way, of the disk of the nearest folder that is there."""
    place = Path.cwd() if folder is None else Path(folder).absolute()
    while not place.is_dir():
        place = place.parent
    with tempfile.TemporaryDirectory(dir=place) as aside:
        return disk_rate(Path(aside), times=3) / 2
