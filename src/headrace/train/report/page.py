"""Puts the page together: one HTML file that asks the network for nothing.

Styles, scripts and data are all inside. The page also forbids itself every request and every script but its own (a content
security policy with their hashes), so a string from a run can neither run as code nor call home.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
from collections.abc import Sequence
from datetime import datetime
from importlib import resources
from pathlib import Path
from typing import Any

import headrace
from headrace._files import write_whole
from headrace.train.report import curves, figures, forecasts
from headrace.train.report.read import LoggedRun, number, read_runs
from headrace.train.report.timeline import timeline

# In the order in which one builds on another.
_SCRIPTS = ("state", "format", "dom", "axes", "lines", "bars", "timeline", "tables", "series", "sections", "page")
_ABOUT = ("task", "started", "headrace", "negatives_from")


def write_report(runs: Sequence[Path], out: Path) -> None:
    """Write a page about the runs to `out`. What was there stays whole until the new page is complete.

    >>> from pathlib import Path
    >>> from headrace.train.report import write_report
    >>> write_report([Path("runs/sage"), Path("runs/gat")], Path("report.html"))  # doctest: +SKIP
    """
    if out.is_dir():
        raise ValueError(f"{out} is a directory: give the name of an HTML file")
    if not out.parent.is_dir():
        raise FileNotFoundError(f"there is no directory {out.parent} to write {out.name} to")
    write_whole(out, page(read_runs(runs)).encode(errors="replace"), contended=True)


def page(runs: Sequence[LoggedRun]) -> str:
    """The text of the page."""
    style = _file("page.css")
    script = "\n".join(_file(f"{name}.js") for name in _SCRIPTS)
    parts = {
        "policy": f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(script)}; base-uri 'none'; form-action 'none'",
        "title": html.escape(runs[0].name if len(runs) == 1 else f"{len(runs)} runs: {', '.join(run.name for run in runs)}"),
        "style": style,
        "data": _inert(data(runs)),
        "script": script,
    }
    before, *pieces = _file("page.html").split("{{")
    # One pass, so that nothing in a run's data is taken for a place to fill.
    return before + "".join(parts[name] + rest for name, rest in (piece.split("}}", 1) for piece in pieces))


def data(runs: Sequence[LoggedRun]) -> dict[str, Any]:
    """The data that the page's scripts draw."""
    written = datetime.now().isoformat(sep=" ", timespec="minutes")
    return {"written": written, "headrace": headrace.__version__, "runs": [_drawn(run) for run in runs]}


def _drawn(run: LoggedRun) -> dict[str, Any]:
    return {
        "name": run.name,
        "path": str(run.path),
        "about": {name: _as_text(run.about[name]) for name in _ABOUT if name in run.about},
        "dataset": {
            "spec": _as_text(run.dataset.get("spec") or run.dataset.get("name") or ""),
            "multi_label": run.dataset.get("multi_label") is True,
        }
        | {name: number(run.dataset.get(name)) for name in ("nodes", "edges", "features", "classes", "relations")},
        "repeats": [repeat.label for repeat in run.repeats],
        "summary": figures.summary(run),
        "curves": curves.curves(run),
        "batches": curves.batch_losses(run),
        "loads": curves.loads(run),
        "time": figures.time_parts(run),
        "stages": figures.stages(run),
        "sampled": figures.sampled(run),
        "timeline": timeline(run),
        "baselines": forecasts.baselines(run),
        "forecast": forecasts.forecast(run),
        "balance": forecasts.balance(run),
        "options": {str(name): _as_text(value) for name, value in run.options.items()},
    }


def _as_text(value: object) -> str:
    """A value as the command line would have it: lists with commas, the rest as JSON without quotes."""
    if isinstance(value, (list, tuple)):
        return ",".join(map(_as_text, value))
    return value if isinstance(value, str) else json.dumps(value)


def _inert(value: object) -> str:
    """JSON that ends no script element and begins no comment, whatever its strings hold."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _file(name: str) -> str:
    return (resources.files("headrace.train.report") / "web" / name).read_text(encoding="utf-8")
