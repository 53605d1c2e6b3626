"""What a run trains, and on what, in a few words. A task of one's own may have neither a model by name nor a graph."""

from __future__ import annotations

from typing import Any


def model_name(header: dict[str, Any]) -> str:
    """The model or decoder that the options name; otherwise the task."""
    options = header["options"]
    return str(options.get("model") or options.get("decoder") or header["task"])


def model_size(header: dict[str, Any]) -> str:
    """`206,895 parameters`; empty where that is not known."""
    parameters = header.get("parameters")
    return f"{parameters:,} parameters" if parameters else ""


def data_size(header: dict[str, Any]) -> str:
    """`600 nodes, 9,000 edges`; empty where the data is no graph."""
    data = header["dataset"]
    return ", ".join(f"{data[noun]:,} {noun}" for noun in ("nodes", "edges") if data.get(noun))
