"""Where the launches that `tune` found on a device are kept, and how they are read."""

from __future__ import annotations

import json
import os
from pathlib import Path

import torch

from headrace._files import write_whole
from headrace.kernels._aggregate.launch import H200, Launch, Table


def tuning_path(device: torch.device) -> Path:
    """The file of a GPU, in the user's cache folder."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    name = "".join(c if c.isalnum() else "-" for c in torch.cuda.get_device_name(device))
    return cache / "headrace" / f"tuning-{name}.json"


def tuned(device: torch.device, path: Path | None = None) -> Table:
    """The launches found on this device, over those that come with the package."""
    if path is None:
        if device.type != "cuda":
            return H200
        path = tuning_path(device)
    return H200 if not path.is_file() else read_table(path)


def read_table(path: Path) -> Table:
    """The table of a file, completed by what comes with the package."""
    try:
        launches = {bucket: Launch.unpacked(packed) for bucket, packed in json.loads(path.read_text())["launches"].items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} holds no table of launches ({error}): delete it, or run headrace.kernels.tune again") from None
    return {**H200, **{bucket: launch for bucket, launch in launches.items() if bucket in H200}}


def write_table(path: Path, table: Table, device: str) -> None:
    """The table as a file, all of it or none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"device": device, "launches": {bucket: launch.packed() for bucket, launch in table.items()}}, indent=1)
    write_whole(path, text, contended=True)
