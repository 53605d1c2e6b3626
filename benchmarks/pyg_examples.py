"""Runs PyG's own examples as they are and with two lines changed: `python benchmarks/pyg_examples.py PATH_TO_PYG_CHECKOUT`.

    python benchmarks/pyg_examples.py CHECKOUT [--only reddit,to_hetero_mag] [--epochs 5] [--json]

The two lines are the loaders' import and `headrace.pyg.accelerate(model)`, before the optimizer is made. Where PyG cannot sample
(it needs pyg-lib or torch-sparse), the example "as it is" has the first of them too, and only the layers are compared. Datasets
that have to be fetched are replaced by ones of their form that are made here (`pyg_example_data.py`), and Cora is read from
HEADRACE_DATA. Needs what the examples need: tqdm, scikit-learn, and for the last pytorch-lightning and torchmetrics.

Printed are each example's own measure at its end, and the median seconds of its epochs, validation included.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SAMPLES = any(importlib.util.find_spec(name) for name in ("pyg_lib", "torch_sparse"))  # whether PyG's own loaders can


@dataclass(frozen=True)
class Example:
    """A script of PyG's, and which of the numbers that it prints says how good its model is."""

    path: str
    measure: str  # what stands before the number
    largest: bool = True  # whether more is better

    @property
    def name(self) -> str:
        return f"lightning_{Path(self.path).stem}" if "lightning" in self.path else Path(self.path).stem


EXAMPLES = [
    Example("reddit.py", "Test: "),
    Example("graph_sage_unsup.py", "Test: "),
    Example("hetero/to_hetero_mag.py", "Val: "),
    Example("hetero/hierarchical_sage.py", "Val: "),
    Example("hetero/recommender_system.py", "Recall@20: "),
    Example("hetero/temporal_link_pred.py", "Test RMSE: ", largest=False),
    Example("pytorch_lightning/graph_sage.py", "val_acc="),
]
# Lightning's data module makes PyG's loaders itself; loaders are given to its Trainer in place of it.
_LIGHTNING = """
    how = dict(num_neighbors=[25, 10], batch_size=1024)
    train_loader = NeighborLoader(data, input_nodes=data.train_mask, shuffle=True, **how)
    val_loader = NeighborLoader(data, input_nodes=data.val_mask, **how)
"""


def written(source: str, *, ours: bool, epochs: int) -> str:
    """The example with its datasets replaced, its epochs as many as asked for, and with `ours` the two lines changed."""
    source = re.sub(r"from torch_geometric\.datasets import", "from pyg_example_data import", source)
    source = source.replace("import MIPSKNNIndex, SAGEConv", "import SAGEConv").replace(
        "from torch_geometric.metrics import", "from pyg_example_data import MIPSKNNIndex\nfrom torch_geometric.metrics import", 1
    )
    source = re.sub(r"for epoch in range\(1, \d+\)", f"for epoch in range(1, {epochs + 1})", source)
    if "LightningNodeData" in source:
        source = source.replace("from torch_geometric.data.lightning import LightningNodeData", _import_of("NeighborLoader", ours))
        source = re.sub(r"\n    datamodule = LightningNodeData\(.*?\n    \)\n", _LIGHTNING, source, flags=re.DOTALL)
        source = re.sub(r"\n    strategy = .*", _trainer(ours, epochs), source, flags=re.DOTALL)
    elif ours or not SAMPLES:
        source = source.replace("import HGTLoader, NeighborLoader", "import NeighborLoader")
        source = source.replace("from torch_geometric.loader import", "from headrace.loader import")
    if ours and "LightningModule" not in source:
        line = "from headrace.pyg import accelerate\nprint(accelerate(model))\n"
        source = re.sub(r"^optimizer = ", f"{line}optimizer = ", source, count=1, flags=re.MULTILINE)
    return f"import torch\ntorch.manual_seed(0)\n{source}"


def _import_of(name: str, ours: bool) -> str:
    return f"from {'headrace' if ours or not SAMPLES else 'torch_geometric'}.loader import {name}"


def _trainer(ours: bool, epochs: int) -> str:
    line = "    from headrace.pyg import accelerate\n    print(accelerate(model))\n" if ours else ""
    return f"""
{line}    class Shown(pl.Callback):
        def on_validation_epoch_end(self, trainer, module):
            print(f"Epoch val_acc={{float(trainer.callback_metrics['val_acc']):.4f}}", flush=True)

    trainer = pl.Trainer(
        accelerator="cpu", max_epochs={epochs}, logger=False, enable_checkpointing=False, enable_progress_bar=False,
        num_sanity_val_steps=0, callbacks=[Shown()],
    )
    trainer.fit(model, train_loader, val_loader)
"""


def run(example: Example, checkout: Path, *, ours: bool, epochs: int, threads: int) -> dict[str, Any]:
    """The measure after the last epoch and the median seconds of an epoch, of one script in a process of its own."""
    here = Path(__file__).resolve().parent
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "example.py"
        script.write_text(written((checkout / "examples" / example.path).read_text(), ours=ours, epochs=epochs))
        path = os.pathsep.join([str(here), *filter(None, [os.environ.get("PYTHONPATH")])])
        environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": str(threads), "PYTHONWARNINGS": "ignore"}
        command = [sys.executable, "-u", str(script)]
        with (
            (Path(folder) / "errors").open("w+") as errors,
            subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=errors, text=True) as process,
        ):
            assert process.stdout is not None
            moments, values = [], []
            for line in process.stdout:
                if (found := re.search(re.escape(example.measure) + r"\s*([\d.]+)", line)) is not None:
                    values.append(float(found[1].rstrip(".")))
                    moments.append(time.perf_counter())
            if process.wait() or not values:
                errors.seek(0)
                raise RuntimeError(f"{example.name} {'with' if ours else 'without'} the two lines:\n{errors.read()[-3000:]}")
    gaps = [after - before for before, after in itertools.pairwise(moments)]
    best = max(values) if example.largest else min(values)
    return {"last": values[-1], "best": best, "epoch_s": statistics.median(gaps) if gaps else None}


def main() -> None:
    """Run what the command line asks for and print it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path, help="folder of PyG's source, with its examples in examples/")
    parser.add_argument("--only", default=",".join(example.name for example in EXAMPLES))
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", action="store_true", help="a JSON object a line")
    options = parser.parse_args()
    if not (options.checkout / "examples" / EXAMPLES[0].path).is_file():
        parser.error(f"{options.checkout} is no checkout of PyG: it has no examples/{EXAMPLES[0].path}")
    for example in (example for example in EXAMPLES if example.name in options.only.split(",")):
        how = {"epochs": options.epochs, "threads": options.threads}
        theirs, ours = (run(example, options.checkout, ours=ours, **how) for ours in (False, True))
        peer = "PyG" if SAMPLES else "PyG's layers, our loader"
        if options.json:
            row = {"example": example.name, "measure": example.measure, "ours": ours, "peers": {peer: theirs}}
            print(json.dumps(row), flush=True)
            continue
        seconds = f"{ours['epoch_s']:.2f} | {theirs['epoch_s']:.2f} | {theirs['epoch_s'] / ours['epoch_s']:.2f} x"
        print(f"| {example.name} | {example.measure.strip(' :=')} {ours['best']} | {theirs['best']} | {seconds} |", flush=True)


if __name__ == "__main__":
    main()
