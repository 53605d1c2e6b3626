"""A dataset directory: saved atomically, opened by memory map."""

import tempfile
from pathlib import Path

import headrace as hr

with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / "tiny"
    hr.generate.preset("products", scale=0.001).save(path)
    data = hr.open(path, verify=True)
    print(data)
    print(sorted(f.name for f in path.iterdir()))
