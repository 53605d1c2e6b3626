"""`headrace plan`: how to train embeddings, or by several ranks, before anything is trained."""

from __future__ import annotations

import json as json_module
import os
import shlex
from dataclasses import asdict, dataclass, field
from typing import Annotated, Literal

import torch
import typer
from rich.console import Console
from rich.markup import escape

from headrace._sizes import parse_size
from headrace.cli.options import refused, takes
from headrace.cli.shown.plan import show_plan
from headrace.cli.train import DATASET
from headrace.graph import Dataset
from headrace.graph.known.named import named
from headrace.plan import LinkPlan, link_plan, ranks_plan, temporal_plan
from headrace.train import NodeOptions, TemporalOptions

_FIRST = "FIRST_MACHINE"  # to be replaced by a name that all machines know


@dataclass(frozen=True)
class PlanOptions:
    """Options of `headrace plan`."""

    nodes: int | None = field(default=None, metadata={"help": "nodes, where there is no dataset yet"})
    edges: int | None = field(default=None, metadata={"help": "training edges, where there is no dataset yet"})
    dim: int = field(default=100, metadata={"help": "floats per node"})
    memory: str | None = field(default=None, metadata={"help": "main memory to use, as in 16GiB (default: three quarters of all)"})
    device_memory: str | None = field(
        default=None,
        metadata={"help": "memory of the GPU, as in 80GiB; 0 for none (default: what is free, if there is one)"},
    )
    disk_rate: str = field(default="1GB", metadata={"help": "bytes a second that the disk reads, and writes meanwhile"})
    write_rate: str | None = field(default=None, metadata={"help": "bytes a second that it writes (default: as it reads)"})
    edge_rate: float | None = field(
        default=None, metadata={"help": "edges a second that the device trains, if known: a run in memory shows it"}
    )
    optimizer: Literal["row_adagrad", "adagrad", "sgd"] = field(
        default="row_adagrad", metadata={"help": "how rows are updated, by one or dim floats of state"}
    )
    row_type: Literal["fp32", "bf16"] = field(default="fp32", metadata={"help": "type that rows are kept in"})
    order: Literal["auto", "beta", "comet", "hilbert", "hilbert_symmetric", "row_major", "best"] = field(
        default="auto", metadata={"help": "in which partitions come together"}
    )
    batch_size: int | None = field(default=None, metadata={"help": "edges per step (default: planned)"})
    chunks: int = field(default=10, metadata={"help": "parts of a batch that have negatives of their own"})
    negatives: int = field(default=100, metadata={"help": "nodes that the edges of a chunk share as negatives"})
    ranks: int | None = field(default=None, metadata={"help": "plan node classification by so many ranks, in place of embeddings"})
    events: bool = field(default=False, metadata={"help": "plan temporal training of a stream of events, by --ranks trainers"})
    machines: int = field(default=1, metadata={"help": "with events, machines that the ranks are on"})
    epochs: int = field(default=10, metadata={"help": "with events, epochs that are to be trained"})
    link_rate: str = field(default="125MB", metadata={"help": "with ranks, bytes a second between them"})
    model: Literal["sage", "gcn", "gin", "gat", "gatv2"] = field(default="sage", metadata={"help": "with ranks, kind of layer"})
    hidden: int = field(default=256, metadata={"help": "with ranks, width of the hidden layers"})
    fanout: tuple[int, ...] = field(default=(), metadata={"help": "with ranks, neighbors sampled per hop (default: 15,10,5)"})


@takes(PlanOptions)
def plan(
    options: PlanOptions,
    dataset: Annotated[str | None, typer.Argument(help=DATASET, show_default=False)] = None,
    json: Annotated[bool, typer.Option("--json", help="print one object in place of the tables")] = False,
) -> None:
    """Say how embeddings are best trained by `train link`: where rows live, partitions, buffer, order, batch size, staleness.

    With --ranks, how `train node` is best spread over machines: by batches or by columns of the features. With --events, batch size
    and trainers of `train temporal`. Predicts bytes and seconds, gives the reasons, and ends with the command to train. Nothing is
    trained.
    """
    if options.events:
        _show_events(options, dataset, json)
        return
    if options.ranks is not None:
        _show_ranks(options, dataset, json)
        return
    try:
        link_plan = _plan(options, dataset)
    except (ValueError, OSError) as error:
        raise refused(str(error), PlanOptions) from None
    command = _command(link_plan, dataset)
    if json:
        print(json_module.dumps(link_plan.as_dict() | {"dataset": dataset, "command": command}))
        return
    console = Console()
    show_plan(link_plan, console)
    console.print(f"\n[bold]{escape(command)}[/bold]", highlight=False, soft_wrap=True)


def _show_ranks(options: PlanOptions, dataset: str | None, json: bool) -> None:
    """A plan for ranks, and its command."""
    try:
        if dataset is None:
            raise ValueError("a plan for ranks draws batches: give a dataset")
        size = options.batch_size or NodeOptions.batch_size
        how = NodeOptions(model=options.model, hidden=options.hidden, fanout=options.fanout, batch_size=size)
        decided = ranks_plan(named(dataset), how, ranks=options.ranks or 0, rate=parse_size(options.link_rate))
    except (ValueError, OSError) as error:
        raise refused(str(error), PlanOptions) from None
    chosen = decided["parallel"].chosen
    words = ["torchrun", "--nproc-per-node", str(options.ranks), "-m", "headrace", "train", "node", dataset, "--share", "ranks"]
    words += ["--parallel", chosen.partition(",")[0], "--model", options.model, "--hidden", str(options.hidden)]
    words += ["--fanout", ",".join(map(str, options.fanout))] if options.fanout else []
    words += ["--batch-size", str(size)] if options.batch_size else []
    words += ["--replicate", "20%"] if "copied" in chosen else []
    if json:
        choices = [asdict(choice) for choice in decided]
        print(json_module.dumps({"ranks": options.ranks, "choices": choices, "dataset": dataset, "command": shlex.join(words)}))
        return
    console = Console()
    show_plan(decided, console)
    console.print(f"\n[bold]{escape(shlex.join(words))}[/bold]", highlight=False, soft_wrap=True)


def _show_events(options: PlanOptions, dataset: str | None, json: bool) -> None:
    """A plan of temporal training, and its command."""
    try:
        if dataset is None:
            raise ValueError("a plan for events counts what batches of them lose: give a dataset")
        memory = parse_size(options.memory) if options.memory is not None else _physical_memory() * 3 // 4
        how = TemporalOptions(epochs=options.epochs, hidden=options.dim)
        sizes = {"ranks": options.ranks or 1, "machines": options.machines, "batch_size": options.batch_size}
        decided = temporal_plan(named(dataset), how, memory=memory, **sizes)  # type: ignore[arg-type]
    except (ValueError, OSError) as error:
        raise refused(str(error), PlanOptions) from None
    words = ["headrace", "train", "temporal", dataset, "--parallel", decided.parallel, "--batch-size", str(decided.batch_size)]
    words += ["--epochs", str(options.epochs), "--hidden", str(options.dim)]
    if decided.ranks > 1:
        several = ["--nnodes", str(decided.machines), "--rdzv-backend", "c10d", "--rdzv-endpoint", f"{_FIRST}:29400"]
        nodes = several if decided.machines > 1 else []
        words = ["torchrun", *nodes, "--nproc-per-node", str(decided.ranks // decided.machines), "-m", *words]
    if json:
        print(json_module.dumps(decided.as_dict() | {"dataset": dataset, "command": shlex.join(words)}))
        return
    console = Console()
    show_plan(decided, console)
    console.print(f"\n[bold]{escape(shlex.join(words))}[/bold]", highlight=False, soft_wrap=True)
    if decided.machines > 1:
        console.print(f"(on each of the {decided.machines} machines; {_FIRST} is the name of one of them)", highlight=False)


def _plan(options: PlanOptions, dataset: str | None) -> LinkPlan:
    nodes, edges = options.nodes, options.edges
    if dataset is not None:
        data = named(dataset)
        nodes, edges = nodes or data.num_nodes, edges or _training_edges(data)
    if nodes is None or edges is None:
        raise ValueError("give a dataset, or its nodes and edges")
    memory = parse_size(options.memory) if options.memory is not None else _physical_memory() * 3 // 4
    return link_plan(
        nodes,
        edges,
        options.dim,
        memory=memory,
        device_memory=_device_memory() if options.device_memory is None else parse_size(options.device_memory) or None,
        disk_rate=parse_size(options.disk_rate),
        write_rate=None if options.write_rate is None else parse_size(options.write_rate),
        edge_rate=options.edge_rate,
        optimizer=options.optimizer,
        row_type=options.row_type,
        order=None if options.order == "auto" else options.order,
        batch_size=options.batch_size,
        chunks=options.chunks,
        negatives=options.negatives,
    )


def _training_edges(data: Dataset) -> int:
    """Triples to train on, or about nine tenths of a graph's edges: the others are held out."""
    train = data.extra.get("train")
    return len(train) if train is not None and train.dim() == 2 and train.shape[1] >= 3 else max(data.num_edges * 9 // 10, 1)


def _physical_memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _device_memory() -> int | None:
    return torch.cuda.mem_get_info()[0] if torch.cuda.is_available() else None


def _command(link_plan: LinkPlan, dataset: str | None) -> str:
    words = ["headrace", "train", "link", dataset or "DATASET"]
    for name, value in link_plan.options().items():
        words += [f"--{name.replace('_', '-')}", str(value)]
    return shlex.join(words)
