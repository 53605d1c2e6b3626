"""`link`: embeddings of nodes and relations, trained to tell edges from pairs that are none."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

import headrace
from headrace.graph import Dataset
from headrace.nn import GNN, Decoder
from headrace.store import Partitioned, PinnedBuffers, TrainedArray, TrainedRows
from headrace.train.inference.encoded import evaluated_with
from headrace.train.links.data import LinkData
from headrace.train.links.edges import BucketedEdges
from headrace.train.links.encoder import LinkEncoder, make_encoder
from headrace.train.links.flow import LinkFlow
from headrace.train.links.loop import LinkTrainer
from headrace.train.links.memory import ROW_TYPES, SPARE, spare_slots
from headrace.train.links.options import LinkOptions, decoder_of
from headrace.train.links.predicted import beside_measured
from headrace.train.links.row_optimizer import RowOptimizer
from headrace.train.links.state import SavedRows
from headrace.train.nodes.node import check_same, torch_threads
from headrace.train.options import as_plain
from headrace.train.run import Run
from headrace.train.watch import Watcher

# What may differ when a run goes on: it does not change what the run computes.
_FREE = {"threads", "checkpoint_seconds", "log_every", "memory"}


@dataclass(frozen=True)
class LinkResult:
    """What training gave: how true ends of the test edges rank, the relations, and the rows of nodes.

    `test` holds mrr, hits@1, hits@3, hits@10 and mean_rank, filtered, of the full ranking unless only a sampled one was asked for
    (`ranking` and `measure` say so); and each that was asked for by name: full_filtered, full_raw, sampled_filtered, sampled_raw.
    """

    test: dict[str, Any]
    val_mrr: float | None
    seconds: float
    decoder: Decoder
    rows: TrainedArray | None  # None where they are on disk, in the folder `rows` of the run
    bytes: int  # of rows and optimizer state
    run: Path | None = None
    disk: dict[str, Any] | None = None  # loads, bytes and seconds of all epochs, where rows are on disk
    peak_memory: int = 0  # bytes of the process at its peak
    encoder: GNN | None = None  # the network between rows and decoder, if the options ask for one
    encoded: TrainedArray | None = None  # what it makes of the rows, which the decoder scores; on disk, the run's encoded.npy
    plan: dict[str, Any] | None = None  # bytes and seconds of an epoch, predicted and measured, where the run has a plan

    def summary(self) -> dict[str, Any]:
        """As `result.json` and `--json` have it."""
        run = None if self.run is None else str(self.run)
        facts = {"bytes": self.bytes, "disk": self.disk, "peak_memory": self.peak_memory, "run": run}
        facts |= {} if self.plan is None else {"plan": self.plan}
        return {"test": self.test, "val_mrr": self.val_mrr, "seconds": self.seconds, **facts}


def link(
    data: Dataset,
    options: LinkOptions | None = None,
    *,
    out: str | Path | None = None,
    resume: bool = False,
    watcher: Watcher | None = None,
    spec: str | None = None,
    plan: dict[str, Any] | None = None,
) -> LinkResult:
    """Train embeddings of the nodes of `data`, a knowledge graph or any graph, to predict its edges.

    out: the run's directory: options, metrics, a timeline, checkpoints, and the rows where they live on disk.
    resume: go on with the run at `out` from its last checkpoint. With staleness 1 the end is the same, bit by bit, as if it had
        never stopped.
    plan: what the options come from (`PlannedLink.record`), kept with the run; its predictions stand beside what was measured.

    With an encoder, the decoder scores what a graph neural network makes of a node's row and those of its neighbors by training
    edges (in partitions: by those between resident nodes). To be ranked, all nodes are encoded over the whole training graph.

    Ctrl-C lets the batches in flight land, writes a checkpoint and raises KeyboardInterrupt.

    >>> import headrace as hr
    >>> data = hr.generate.community(nodes=300, edges=6000, classes=3, features=4)
    >>> result = hr.train.link(data, hr.train.LinkOptions(dim=16, epochs=3, batch_size=200, negatives=50))
    >>> result.test["ranking"], result.test["mrr"] > 0.02
    ('full', True)
    """
    options = options or LinkOptions()
    if resume and out is None:
        raise ValueError("resume goes on with the run at out: say which")
    if options.storage == "disk" and out is None:
        raise ValueError("storage disk keeps rows in the run's directory: pass out")
    edges = LinkData.of(data, held_out=options.held_out, seed=options.seed)
    if options.decoder == "auto":
        options = replace(options, decoder="complex" if edges.labeled else "dot")
    spare = spare_slots(
        options,
        nodes=edges.num_nodes,
        train=len(edges.train),
        others=len(edges.valid) + len(edges.test),
        edge_bytes=edges.train[:1].nbytes,
        state=RowOptimizer(options.optimizer).state_width(options.dim),
    )
    torch.manual_seed(options.seed)
    decoder = make_decoder(edges, options)
    header = header_of(data, edges, options, spec, decoder) | ({} if plan is None else {"plan": plan})
    run = None if out is None else _open_run(out, header, resume)
    with torch_threads(options.threads), ExitStack() as opened:
        folder = None if run is None else run.path
        trainer = make_trainer(edges, options, decoder, opened, folder=folder, run=run, watcher=watcher, spare=spare)
        rows = trainer.flow.rows
        if resume:
            trainer.restore()
        end = trainer.fit(run.header if run is not None else header)
        encoder = trainer.flow.encoder
        encoded = trainer.scored() if encoder is not None and isinstance(rows, TrainedArray) else None
    path = None if out is None else Path(out)
    kept = rows if isinstance(rows, TrainedArray) else None
    result = LinkResult(
        end["test"],
        end["val_mrr"],
        end["seconds"],
        decoder.eval(),
        kept,
        rows.nbytes,
        path,
        disk=end.get("disk"),
        peak_memory=end.get("memory", {}).get("peak", 0),
        encoder=None if encoder is None else encoder.model.eval(),
        encoded=encoded if isinstance(encoded, TrainedArray) else None,
        plan=None if run is None or "plan" not in run.header else beside_measured(run.header["plan"], run.metrics("epoch")),
    )
    if run is not None:
        run.save_result(result.summary())
    return result


def make_trainer(
    edges: LinkData,
    options: LinkOptions,
    decoder: Decoder,
    opened: ExitStack,
    *,
    folder: Path | None = None,
    run: Run | None = None,
    watcher: Watcher | None = None,
    spare: int = SPARE,
) -> LinkTrainer:
    """All that trains: with storage disk, rows and edges are in `folder`, and open until `opened` ends. Without a run nothing is
    logged or saved."""
    file: BucketedEdges | None = None
    if options.storage == "disk":
        assert folder is not None
        place = folder / "edges.bin"
        file = BucketedEdges.write(
            place, edges.train, num_nodes=edges.num_nodes, partitions=options.partitions, threads=options.threads
        )
    rows = _rows(edges, options, folder, opened, spare)
    triples = edges.train if file is None else file.triples
    encoder = None if options.encoder == "none" else LinkEncoder(triples, edges.num_nodes, options)
    flow = LinkFlow(
        triples,
        rows,
        decoder,
        options,
        weight=edges.degrees() if options.negative_weights == "degree" else None,
        known=edges.known("train") if options.filter_negatives else None,
        encoder=encoder,
    )
    return LinkTrainer(edges, flow, SavedRows(rows, decoder, encoder), run, watcher or Watcher(), file=file)


def make_decoder(edges: LinkData, options: LinkOptions) -> Decoder:
    """The decoder that the options describe, on their device."""
    made = decoder_of(edges.num_relations, options)
    made.reset_parameters(options.init, torch.Generator().manual_seed(options.seed))
    return made.to(options.device)


def _rows(edges: LinkData, options: LinkOptions, folder: Path | None, opened: ExitStack, spare: int) -> TrainedRows:
    """New rows, or those of a run that goes on."""
    state = RowOptimizer(options.optimizer).state_width(options.dim)
    init, dtype = (options.init, options.seed), ROW_TYPES[options.row_type]
    pool = PinnedBuffers() if torch.device(options.device).type == "cuda" else None
    if options.storage != "disk":
        place = options.device if options.storage == "device" else "cpu"
        return TrainedArray.create(
            edges.num_nodes,
            options.dim,
            state=state,
            dtype=dtype,
            init=init,
            device=place,
            seed=options.seed,
            pool=pool,
            threads=options.threads,
        )
    assert folder is not None
    path, where = folder / "rows", options.device if options.buffer_on == "device" else "cpu"
    if not path.exists():
        Partitioned.create(
            path,
            edges.num_nodes,
            options.dim,
            partitions=options.partitions,
            state=state,
            dtype=dtype,
            init=init,
            seed=options.seed,
            threads=options.threads,
        )
    store = Partitioned.open(path, capacity=options.buffer, spare=spare, device=where, pool=pool, threads=options.threads)
    return opened.enter_context(store)


def _open_run(out: str | Path, header: dict[str, Any], resume: bool) -> Run:
    if not resume:
        return Run.create(out, header)
    run = Run(out)
    if run.header["task"] != "link":
        raise ValueError(f"{run.path} is a run of task {run.header['task']}, not of link")
    check_same(run.header["options"], header["options"], run.path, free=_FREE)
    for name in ("nodes", "edges", "relations"):
        begun, now = run.header["dataset"][name], header["dataset"][name]
        if begun != now:
            raise ValueError(f"{run.path} was begun on another dataset: it had {name} {begun}, this one has {now}")
    return run


def header_of(data: Dataset, edges: LinkData, options: LinkOptions, spec: str | None, decoder: Decoder) -> dict[str, Any]:
    """What `options.json` says of a run."""
    if options.negatives == 0:
        negatives = "all nodes"
    elif options.partitions:
        negatives = f"nodes of the {options.buffer} of {options.partitions} partitions that are resident"
    else:
        negatives = "any nodes"
    near = f"edges between the {options.buffer} resident partitions" if options.partitions else "all training edges"
    encoder = {"neighbors_from": near, "evaluated_with": evaluated_with(options)} if options.encoder != "none" else {}
    weights = sum(weight.numel() for weight in make_encoder(options).parameters()) if options.encoder != "none" else 0
    return {
        "task": "link",
        "headrace": headrace.__version__,
        "dataset": {
            "spec": spec,
            "name": data.info.get("name"),
            "nodes": edges.num_nodes,
            "edges": len(edges.train),
            "relations": edges.num_relations,
            "valid": len(edges.valid),
            "test": len(edges.test),
            "best_accuracy": None,
        },
        "options": as_plain(options),
        "negatives_from": negatives,
        **encoder,
        "parameters": edges.num_nodes * options.dim + decoder.relation.numel() + weights,
    }
