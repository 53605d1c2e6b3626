"""`headrace advise`: how to train a model on a dataset, and why."""

from __future__ import annotations

import json as json_module
import os
import shlex
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import torch
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from headrace._arrays import thread_count
from headrace._device import device_of
from headrace.cli.options import refused, takes
from headrace.cli.shown.plan import show_plan
from headrace.cli.shown.progress import progress_shown, terminable
from headrace.cli.train import DATASET, short_name
from headrace.graph import Dataset
from headrace.graph.known.named import named
from headrace.nn.gnn import KINDS
from headrace.plan import Machine, Plan, Verification, advise, probe, verify
from headrace.plan.decided import seconds
from headrace.plan.whole.plan import AS_IT_IS

_TYPES = {"auto": None, "fp32": torch.float32, "bf16": torch.bfloat16}


@dataclass(frozen=True)
class AdviseOptions:
    """Options of `headrace advise`."""

    model: Literal["gcn", "gin", "sage", "gat", "gatv2"] = field(default="gcn", metadata={"help": "kind of layer"})
    hidden: int = field(default=64, metadata={"help": "width of hidden layers, over all heads"})
    layers: int = field(default=2, metadata={"help": "layers"})
    heads: int = field(default=8, metadata={"help": "attention heads (gat, gatv2)"})
    dims: tuple[int, ...] = field(
        default=(), metadata={"help": "widths from the features to the classes, in place of the dataset's: 128,64,10"}
    )
    dropout: float = field(default=0.5, metadata={"help": "dropout between layers"})
    input_dropout: float | None = field(
        default=None, metadata={"help": "dropout of the features (default: as dropout for gcn and attention, else none)"}
    )
    device: str = field(default="cpu", metadata={"help": "cpu or cuda"})
    epochs: int = field(default=100, metadata={"help": "planned epochs, which costs that are paid once are weighed against"})
    dtype: Literal["auto", "fp32", "bf16"] = field(default="auto", metadata={"help": "type to compute in (auto: a suggestion)"})

    def __post_init__(self) -> None:
        if self.model not in KINDS:
            raise ValueError(f"model must be one of {', '.join(KINDS)}, not {self.model!r}")
        if self.dtype not in _TYPES:
            raise ValueError(f"dtype must be one of {', '.join(_TYPES)}, not {self.dtype!r}")


@takes(AdviseOptions)
def advise_command(
    options: AdviseOptions,
    dataset: Annotated[str, typer.Argument(help=DATASET, show_default=False)],
    check: Annotated[
        bool, typer.Option("--verify", help="run the choices and the alternatives, and show what was measured")
    ] = False,
    fresh: Annotated[
        bool, typer.Option("--probe", help="measure the machine again, in place of what an earlier run found")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="print one object in place of the tables")] = False,
) -> None:
    """Say how a model is best trained on a whole graph: order of nodes, type, operations, kernels; with predictions and reasons.

    The machine is measured once, in about a second, and remembered in the user's cache folder.
    """
    try:
        with terminable(), progress_shown() as show:
            data = named(dataset)
            show("measuring the machine", 0, None)
            machine = _machine(options.device, fresh=fresh)
            show("planning", 0, None)
            plan = _advise(data, options, machine, lambda done, total: show("ordering", done, total))
            verification = verify(plan, data, progress=lambda text: show(text, 0, None)) if check else None
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    except (OSError, ValueError) as error:
        raise refused(str(error), AdviseOptions) from None
    if json:
        print(
            json_module.dumps(
                plan.as_dict() | {"dataset": dataset} | ({} if verification is None else {"verified": verification.as_dict()})
            )
        )
        return
    console = Console()
    show_plan(plan, console)
    if verification is not None:
        show_verification(verification, console)
    console.print("\n[bold]to train so[/bold]")
    for line in commands(dataset, options, plan):
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def commands(dataset: str, options: AdviseOptions, plan: Plan) -> list[str]:
    """The commands that train as planned: one that reorders the nodes, where they are to be, and one that trains."""
    chosen, lines = plan.configuration, []
    if chosen.order != AS_IT_IS:
        moved = f"{short_name(dataset)}-{chosen.order}"
        lines.append(shlex.join(["headrace", "reorder", dataset, moved, "--order", chosen.order]))
        dataset = moved
    wanted: dict[str, object] = {"model": options.model, "hidden": options.hidden, "layers": options.layers}
    wanted |= {"heads": options.heads} if options.model.startswith("gat") else {}
    wanted |= {"dropout": options.dropout, "epochs": options.epochs, "keep-sum": chosen.keep_sum}
    wanted |= {} if options.input_dropout is None else {"input-dropout": options.input_dropout}
    wanted |= {"precision": "bf16" if chosen.dtype == torch.bfloat16 else "fp32", "device": options.device}
    words = [word for name, value in wanted.items() for word in (f"--{name}", str(value))]
    return [*lines, shlex.join(["headrace", "train", "node", dataset, "--full-batch", *words])]


def _advise(data: Dataset, options: AdviseOptions, machine: Machine, progress: object) -> Plan:
    return advise(
        data,
        list(options.dims) if options.dims else options.model,
        options.device,
        epochs=options.epochs,
        hidden=options.hidden,
        layers=options.layers,
        heads=options.heads,
        conv=options.model,
        dropout=options.dropout,
        input_dropout=options.input_dropout,
        dtype=_TYPES[options.dtype],
        machine=machine,
        progress=progress,  # type: ignore[arg-type]
    )


def _machine(device: str, *, fresh: bool) -> Machine:
    """The measured speeds of this device: of an earlier run with as many threads, or measured now and saved if possible."""
    where = device_of(device)
    file = _folder() / f"machine-{where.type}{'' if where.index is None else where.index}.json"
    if not fresh and file.is_file():
        try:
            known = Machine.load(file)
        except ValueError:
            known = None  # of another version of this program: as good as none
        if known is not None and known.threads == thread_count(None):
            return known
    machine = probe(where)
    try:
        machine.save(file)
    except OSError as error:
        typer.echo(f"what was measured is not remembered: {error}", err=True)
    return machine


def _folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "headrace"


def show_verification(verification: Verification, console: Console) -> None:
    """A table of variants: as predicted and as measured."""
    table = Table(title="predicted and measured", title_justify="left")
    table.add_column("what")
    table.add_column("variant")
    for name in ("predicted", "measured", "of the best"):
        table.add_column(name, justify="right")
    for row in verification.rows:
        best = verification.best(row.what).measured
        cells = [row.what, row.name, seconds(row.predicted), seconds(row.measured), f"{row.measured / best:.2f} x"]
        table.add_row(*(f"[bold]{escape(cell)}[/bold]" if row.chosen else escape(cell) for cell in cells))
    console.print(table)
    console.print(
        f"what was chosen took at most {verification.worst_ratio:.2f} x the time of the best variant"
        f"{'' if verification.within else ': more than a tenth longer'}",
        highlight=False,
    )
