"""A run on a terminal: progress, loss and measures, throughput, who waits for whom, and memory."""

from __future__ import annotations

import time
from collections import deque
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from headrace._memory import process_memory
from headrace.train import Measure, StepEvent, Watcher
from headrace.train.watching.named_run import data_size, model_name, model_size

_BARS = "▁▂▃▄▅▆▇█"
_COLORS = {  # of parts of the time, in the order in which they are drawn; others follow
    "wait": "yellow",
    "gather": "cyan",
    "load": "cyan",
    "forward": "green",
    "compute": "green",
    "backward": "blue",
    "exchange": "red",
    "step": "magenta",
    "validate": "white",
}


class LiveView(Watcher):
    """Redraws a few times a second, from the training thread's own events: nothing runs beside it but the redraw."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.live: Live | None = None
        self.bars = Progress(
            TextColumn("{task.description:>8}"),
            BarColumn(None),
            TextColumn("{task.completed:.0f}/{task.total:.0f}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=console,
            expand=True,
        )
        self.title = ""
        self.epochs: list[dict[str, Any]] = []
        self.losses: deque[float] = deque(maxlen=400)
        self.recent: deque[tuple[float, StepEvent]] = deque(maxlen=200)
        self.clock: dict[str, float] = {}
        self.flow: list[dict[str, Any]] = []
        self.measures: list[Measure] = []
        self.possible: dict[str, float] = {}  # the best that a measure can be, where the dataset knows

    def begin(self, header: dict[str, Any], *, epochs: int, batches: int, epoch: int, batch: int) -> None:
        data = header["dataset"]
        spec = data.get("spec") or data.get("name") or "dataset"
        dataset = ": ".join(filter(None, (spec, data_size(header))))
        parts = (model_name(header), model_size(header), dataset, f"seed {header['options']['seed']}")
        self.title = " · ".join(dict.fromkeys(filter(None, parts)))  # a task of one's own has one name for all
        self.measures = [Measure(**facts) for facts in header.get("measures", ())]
        self.possible = data.get("best_possible") or {}
        self.epochs.clear()
        self.losses.clear()
        self.recent.clear()
        for task in list(self.bars.task_ids):
            self.bars.remove_task(task)
        self.epoch_bar = self.bars.add_task("epochs", total=epochs, completed=epoch)
        self.batch_bar = self.bars.add_task("batches", total=batches, completed=batch)
        self.check_bar = self.bars.add_task("validate", total=1, visible=False)
        if self.live is None:
            self.live = Live(get_renderable=self._view, console=self.console, refresh_per_second=4, transient=True)
            self.live.start()

    def step(self, event: StepEvent, clock: dict[str, float]) -> None:
        self.losses.append(event.loss)
        self.recent.append((time.monotonic(), event))
        self.clock = dict(clock)
        self.bars.update(self.batch_bar, completed=event.batch)
        self.bars.update(self.check_bar, visible=False)

    def stages(self, stages: list[dict[str, Any]]) -> None:
        self.flow = stages

    def validating(self, done: int, total: int) -> None:
        self.bars.update(self.check_bar, completed=done, total=total, visible=True)

    def epoch(self, facts: dict[str, Any]) -> None:
        self.epochs.append(facts)
        self.bars.update(self.epoch_bar, completed=facts["epoch"] + 1)
        self.bars.update(self.check_bar, visible=False)

    def note(self, text: str) -> None:
        self.console.print(text, markup=False)

    def close(self) -> None:
        if self.live is not None:
            self.live.stop()
            self.live = None

    def _view(self) -> RenderableType:
        return Panel(Group(self.bars, self._figures(), self._waits()), title=Text(self.title), title_align="left")

    def _figures(self) -> Table:
        table = Table.grid(padding=(0, 2))
        table.add_column(style="bold", justify="right", min_width=8)
        table.add_column()
        if self.losses:
            table.add_row("loss", f"{self.losses[-1]:.4f}  {sparkline(list(self.losses))}")
        recent = list(self.recent)  # a copy: the training thread goes on while this one draws
        for measure in self.measures:
            if line := self._measured(measure, [event for _, event in recent]):
                table.add_row(Text(measure.name), line)
        table.add_row("speed", _speed(recent))
        memory = process_memory()
        line = f"{memory['resident'] / 2**30:.2f} GiB resident, {memory['peak'] / 2**30:.2f} GiB at most"
        held = self.epochs[-1]["memory"] if self.epochs else {}
        if "buffers" in held:
            line += f"; data {held['data'] / 2**30:.2f}, batch buffers {held['buffers'] / 2**30:.2f}"
        table.add_row("memory", line)
        return table

    def _measured(self, measure: Measure, recent: list[StepEvent]) -> str:
        """A measure over the recent batches, in the last validation and in the best one."""
        words, name = [], measure.name
        sums = [(event.measures[name] * event.seeds, event.seeds) for event in recent if name in event.measures]
        if sums:
            words.append(f"train {measure.shown(sum(value for value, _ in sums) / max(sum(seeds for _, seeds in sums), 1))}")
        values = [facts[f"val_{name}"] for facts in self.epochs if facts.get(f"val_{name}") is not None]
        if values:
            best = max(values) if measure.better == "higher" else min(values)
            words.append(f"val {measure.shown(values[-1])} (best {measure.shown(best)})")
        if name in self.possible and words:
            words.append(f"best possible {measure.shown(self.possible[name])}")
        return "   ".join(words)

    def _waits(self) -> Table:
        table = Table.grid(padding=(0, 2))
        table.add_column(style="bold", justify="right", min_width=8)
        table.add_column()
        clock = self.clock
        total = sum(clock.values())
        if total:
            bar, words = Text(), Text()
            for part in [*(name for name in _COLORS if name in clock), *(name for name in clock if name not in _COLORS)]:
                share, color = clock[part] / total, _COLORS.get(part, "bright_black")
                bar.append("█" * round(40 * share), style=color)
                if share >= 0.005:
                    words.append(part, style=color).append(f" {100 * share:.0f} %   ")
            table.add_row("time", bar)
            table.add_row("", words)
        for stage in self.flow or (self.epochs[-1]["stages"] if self.epochs else []):
            whole = max(stage["busy"] + stage["starved"] + stage["held"], 1e-9)
            busy, starved, held = (100 * stage[k] / whole for k in ("busy", "starved", "held"))
            name = "training" if stage["name"] == "consumer" else stage["name"]
            table.add_row(Text(name), f"busy {busy:.0f} %, waits for input {starved:.0f} %, held back {held:.0f} %")
        return table


def _speed(recent: list[tuple[float, StepEvent]]) -> str:
    if len(recent) < 2:
        return "..."
    (begin, _), (end, _) = recent[0], recent[-1]
    seconds = max(end - begin, 1e-9)
    events = [e for _, e in recent][1:]
    line = f"{sum(e.seeds for e in events) / seconds:,.0f} seeds/s"
    edges, read = sum(e.edges for e in events), sum(e.bytes for e in events)
    if edges:
        line += f"   {edges / seconds / 1e6:.2f} M sampled edges/s   {read / seconds / 1e9:.2f} GB/s of features"
    return line


def sparkline(values: list[float], width: int = 40) -> str:
    """A row of bars, as many as `width`, each the mean of its share of the values."""
    size = max(len(values) / width, 1)
    means = []
    for i in range(min(width, len(values))):
        part = values[int(i * size) : max(int((i + 1) * size), int(i * size) + 1)]
        means.append(sum(part) / len(part))
    low, high = min(means), max(means)
    return "".join(_BARS[round((m - low) / (high - low) * 7) if high > low else 0] for m in means)
