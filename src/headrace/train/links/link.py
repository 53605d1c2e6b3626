"""`link`: embeddings of nodes and relations, trained to tell edges from pairs that are none."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from headrace.graph import Dataset
from headrace.graph.convert import as_dataset
from headrace.graph.saved.fingerprint import fingerprint
from headrace.nn import GNN, Decoder
from headrace.ranks import Alone, Ranks
from headrace.store import Partitioned, PinnedBuffers, TrainedArray, TrainedRows
from headrace.train.fit import FREE, Setup, describe, fit
from headrace.train.inference.encoded import evaluated_with
from headrace.train.links.data import LinkData
from headrace.train.links.disk import DiskLinkRecipe
from headrace.train.links.edges import BucketedEdges
from headrace.train.links.encoder import LinkEncoder, make_encoder
from headrace.train.links.flow import flow_class
from headrace.train.links.flow.row_optimizer import RowOptimizer
from headrace.train.links.memory import ROW_TYPES, SPARE, LinkMemory, require_room, spare_slots
from headrace.train.links.options import LinkOptions, decoder_of
from headrace.train.links.predicted import beside_measured
from headrace.train.links.recipe import LinkRecipe
from headrace.train.links.suited import chosen_words, suited_options
from headrace.train.loop import Trainer
from headrace.train.measure import spreads
from headrace.train.options import LoopOptions
from headrace.train.recipe import Recipe
from headrace.train.run import Run
from headrace.train.watching.watch import Watcher


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
    repeats: dict[str, Any] | None = None  # mean and spread of the MRR over several seeds; the rest is of the last

    def summary(self) -> dict[str, Any]:
        """The result as `result.json` and `--json` write it."""
        run = None if self.run is None else str(self.run)
        facts = {"bytes": self.bytes, "disk": self.disk, "peak_memory": self.peak_memory, "run": run}
        facts |= {} if self.plan is None else {"plan": self.plan}
        facts |= {} if self.repeats is None else {"repeats": self.repeats}
        return {"test": self.test, "val_mrr": self.val_mrr, "seconds": self.seconds, **facts}


def link(
    data: Dataset,
    options: LinkOptions | Mapping[str, Any] | None = None,
    *,
    model: Decoder | Callable[[], Decoder] | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    watcher: Watcher | None = None,
    spec: str | None = None,
    plan: dict[str, Any] | None = None,
) -> LinkResult:
    """Train embeddings of the nodes of `data`, a knowledge graph or any graph, to predict its edges.

    options: all of them; or some by name, in a dict, and the others are chosen to suit the data, which a note says.
    model: a decoder of `options.dim`, of a class that is registered (`hr.nn.register_decoder`); or a function that makes one
        (each repeat makes its own); or None for the one that the options name.
    out: the run's directory: options, metrics, a timeline, checkpoints, and the rows where they live on disk.
    resume: go on with the run at `out` from its last checkpoint. With staleness 0 the end is the same, bit by bit, as if it had
        never stopped.
    plan: what the options come from (`PlannedLink.record`), kept with the run; its predictions stand beside what was measured.

    watcher: is told what happens; `Watcher()` shows nothing. Without one, lines are shown in a terminal or a notebook.

    With an encoder, the decoder scores what a graph neural network makes of a node's row and those of its neighbors by training
    edges (in partitions: by those between resident nodes). To be ranked, all nodes are encoded over the whole training graph.

    Ctrl-C lets the batches in flight land, writes a checkpoint and raises KeyboardInterrupt.

    >>> import headrace as hr
    >>> data = hr.generate.community(nodes=300, edges=6000, classes=3, features=4)
    >>> result = hr.train.link(data, hr.train.LinkOptions(dim=16, epochs=3, batch_size=200, negatives=50))
    >>> result.test["ranking"], result.test["mrr"] > 0.02
    ('full', True)
    """
    data = as_dataset(data)
    note = ""
    if options is None or isinstance(options, Mapping):
        chosen = {} if options is None else options
        options = suited_options(data, chosen)
        note = chosen_words(options, chosen)
    if not isinstance(options, LinkOptions):
        raise TypeError(f"options must be LinkOptions, not {type(options).__name__}: a decoder is passed as model=")
    if options.storage == "disk" and out is None:
        raise ValueError("storage disk keeps rows in the run's directory: pass out")
    edges = LinkData.of(data, held_out=options.held_out, seed=options.seed)
    make = _maker(model, edges, options)
    if options.decoder == "auto":
        named = "complex" if edges.labeled else "dot"
        options = replace(options, decoder=named if make is None else make().name)
    sizes = {
        "nodes": edges.num_nodes,
        "train": len(edges.train),
        "others": len(edges.val) + len(edges.test),
        "edge_bytes": edges.train[:1].nbytes,
        "state": RowOptimizer(options.optimizer).state_width(options.dim),
    }
    require_room(LinkMemory.of(options, **sizes))
    spare = spare_slots(options, **sizes)
    ends, recipe = fit(
        partial(_recipe, edges, spare, make, note),
        options,
        header=_header(data, edges, spec, plan, None if out is None else _fingerprint(edges)),
        out=out,
        resume=resume,
        watcher=watcher,
        free=FREE | {"memory"},
        folder_first=True,
    )
    assert isinstance(recipe, LinkRecipe)
    end, flow = ends[-1], recipe.flow
    run = None if out is None else Run(out)
    last = run if run is None or options.repeats == 1 else Run(run.path / f"repeat-{options.repeats - 1}")
    encoded = recipe.scored() if flow.encoder is not None and isinstance(flow.rows, TrainedArray) else None
    result = LinkResult(
        end.get("test", {}),
        end["val_mrr"],
        sum(e["seconds"] for e in ends),
        flow.decoder.eval(),
        flow.rows if isinstance(flow.rows, TrainedArray) else None,
        flow.rows.nbytes,
        None if run is None else run.path,
        disk=end.get("disk"),
        peak_memory=end.get("memory", {}).get("peak", 0),
        encoder=None if flow.encoder is None else flow.encoder.model.eval(),
        encoded=encoded if isinstance(encoded, TrainedArray) else None,
        plan=None if last is None or "plan" not in last.header else beside_measured(last.header["plan"], last.metrics("epoch")),
        repeats=None if options.repeats == 1 else {name: s.plain() for name, s in spreads(recipe.measures, ends).items()},
    )
    if run is not None:
        run.save_result(result.summary())
    return result


def check_ranks(ranks: Ranks) -> None:
    """Refuse several ranks."""
    if ranks.size > 1:
        raise ValueError(f"train link works on one rank, and there are {ranks.size}: start it without torchrun")


def _maker(model: Decoder | Callable[[], Decoder] | None, edges: LinkData, options: LinkOptions) -> Callable[[], Decoder] | None:
    """What makes the decoder of each repeat, if it was passed; a ValueError says what does not fit."""
    if model is None:
        return None
    if isinstance(model, Decoder) and options.repeats > 1:
        raise ValueError("repeats need a decoder each: pass a function that makes one")
    make = partial(_itself, model) if isinstance(model, Decoder) else model
    decoder = make()
    if not isinstance(decoder, Decoder):
        raise TypeError(f"model must be a decoder (headrace.nn.Decoder) or a function that makes one, not {type(decoder).__name__}")
    usual = decoder_of(edges.num_relations, replace(options, decoder=decoder.name, reciprocal=decoder.reciprocal))
    if decoder.relation.shape != usual.relation.shape or decoder.dim != options.dim:
        raise ValueError(
            f"the decoder has dim {decoder.dim} and parameters {list(decoder.relation.shape)}: "
            f"the options ask for dim {options.dim}, and the data for {list(usual.relation.shape)}"
        )
    if options.decoder not in ("auto", decoder.name):
        raise ValueError(f"the options name decoder {options.decoder}, and the model is {decoder.name}: leave one of them out")
    return make


def _itself(decoder: Decoder) -> Decoder:
    return decoder


def _recipe(edges: LinkData, spare: int, make: Callable[[], Decoder] | None, note: str, setup: Setup) -> LinkRecipe:
    check_ranks(setup.ranks)
    if note:
        setup.watcher.note(f"chosen to suit this dataset: {note}")
    if edges.held_out_by == "time":
        parts = f"the latest {len(edges.test):,} are for testing, {len(edges.val):,} before them for validation"
        setup.watcher.note(f"edges have times: {parts}")
    decoder = None if make is None else make().to(setup.options.device)
    return make_recipe(edges, setup.options, setup, decoder=decoder, spare=spare)


def make_recipe(
    edges: LinkData, options: LinkOptions, setup: Setup, *, decoder: Decoder | None = None, spare: int = SPARE
) -> LinkRecipe:
    """All that trains: with storage disk, rows and edges are in the folder, and open until `setup.opened` ends."""
    file: BucketedEdges | None = None
    if options.storage == "disk":
        assert setup.folder is not None
        place = setup.folder / "edges.bin"
        file = BucketedEdges.write(
            place, edges.train, num_nodes=edges.num_nodes, partitions=options.partitions, threads=options.threads
        )
    rows = _rows(edges, options, setup, spare)
    triples = edges.train if file is None else file.triples
    flow = flow_class(rows, options)(
        triples,
        rows,
        decoder or make_decoder(edges, options),
        options,
        weight=edges.degrees() if options.negative_weights == "degree" else None,
        known=edges.known("train") if options.filter_negatives else None,
        encoder=None if options.encoder == "none" else LinkEncoder(triples, edges.num_nodes, options),
    )
    kind = DiskLinkRecipe if options.storage == "disk" else LinkRecipe
    return kind(edges, flow, watcher=setup.watcher, trace=setup.trace, folder=setup.folder, file=file)


def make_trainer(
    edges: LinkData, options: LinkOptions, opened: ExitStack, *, folder: Path | None = None, watcher: Watcher | None = None
) -> Trainer:
    """A trainer without a run: nothing is logged or saved. What it opens is closed with `opened`."""
    watcher = watcher or Watcher()
    recipe = make_recipe(edges, options, Setup(options, folder, None, Alone(), 1, watcher, opened))
    return Trainer(recipe, options, None, watcher)


def make_decoder(edges: LinkData, options: LinkOptions) -> Decoder:
    """The decoder that the options describe, on their device."""
    decoder = decoder_of(edges.num_relations, options)
    decoder.reset_parameters(options.init, torch.Generator().manual_seed(options.seed))
    return decoder.to(options.device)


def _rows(edges: LinkData, options: LinkOptions, setup: Setup, spare: int) -> TrainedRows:
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
    assert setup.folder is not None
    path, where = setup.folder / "rows", options.device if options.buffer_on == "device" else "cpu"
    if not Partitioned.is_complete(path):  # a process that was killed while it wrote them leaves some
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
    return setup.opened.enter_context(store)


def _header(
    data: Dataset, edges: LinkData, spec: str | None, plan: dict[str, Any] | None, known: dict[str, str] | None
) -> Callable[[LoopOptions, Recipe | None], dict[str, Any]]:
    def header(options: LoopOptions, recipe: Recipe | None) -> dict[str, Any]:
        assert isinstance(options, LinkOptions)
        about = header_of(data, edges, options, spec) | ({} if plan is None else {"plan": plan})
        return about | {"dataset": about["dataset"] | {"fingerprint": known}}

    return header


def _fingerprint(edges: LinkData) -> dict[str, str]:
    """What tells the edges of a run from others."""
    splits = {"training edges": edges.train, "validation edges": edges.val, "test edges": edges.test}
    return {name: fingerprint(triples) for name, triples in splits.items()}


def header_of(data: Dataset, edges: LinkData, options: LinkOptions, spec: str | None) -> dict[str, Any]:
    """What `options.json` says of a run."""
    if options.negatives == 0:
        negatives = "all nodes"
    elif options.partitions:
        negatives = f"nodes of the {options.buffer} of {options.partitions} partitions that are resident"
    else:
        negatives = "any nodes"
    neighbors = f"edges between the {options.buffer} resident partitions" if options.partitions else "all training edges"
    encoder = {"neighbors_from": neighbors, "evaluated_with": evaluated_with(options)} if options.encoder != "none" else {}
    weights = sum(weight.numel() for weight in make_encoder(options).parameters()) if options.encoder != "none" else 0
    dataset = {
        "spec": spec,
        "name": data.info.get("name"),
        "nodes": edges.num_nodes,
        "edges": len(edges.train),
        "relations": edges.num_relations,
        "val": len(edges.val),
        "test": len(edges.test),
    }
    parameters = edges.num_nodes * options.dim + decoder_of(edges.num_relations, options).relation.numel() + weights
    return describe("link", dataset, options, parameters, negatives_from=negatives, **encoder)
