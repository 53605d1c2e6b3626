"""`open_links`: the rows and the decoder that a finished run of `train link` ended with, without reading them into memory."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from headrace.graph import Dataset
from headrace.nn import Decoder
from headrace.store import Partitioned, TrainedArray
from headrace.train.checkpoint import CheckpointError, unpacked
from headrace.train.inference.encoded import ENCODED, EncodedRows
from headrace.train.inference.ranking import ReadRows
from headrace.train.links.options import LinkOptions, decoder_of
from headrace.train.options import from_plain
from headrace.train.run import Run


@dataclass(frozen=True)
class TrainedLinks:
    """What a run ended with. `rows` are scanned in pieces: from the run's files of partitions, or mapped from its checkpoint.

    Of a run with an encoder they are the encoded rows, which is what its decoder scores.
    """

    rows: ReadRows
    decoder: Decoder
    relations: int
    options: LinkOptions

    def check(self, data: Dataset) -> None:
        """A dataset that names the rows must have as many nodes."""
        if data.num_nodes != self.rows.num_rows:
            raise ValueError(f"the dataset has {data.num_nodes:,} nodes, the run trained {self.rows.num_rows:,}: give its own")


@contextmanager
def open_links(path: str | os.PathLike[str]) -> Iterator[TrainedLinks]:
    """The end of the run at `path`. A run that trains meanwhile, has not finished or is none of `train link` is refused.

    >>> import headrace as hr, tempfile
    >>> data = hr.generate.community(nodes=100, edges=900, classes=2, features=2)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = hr.train.link(data, hr.train.LinkOptions(dim=4, epochs=1), out=folder + "/run")
    ...     with open_links(folder + "/run") as found:
    ...         found.rows.num_rows, found.decoder.name
    (100, 'dot')
    """
    run = Run(path)
    header = run.header
    if header.get("task") != "link":
        raise ValueError(f"{path} is a run of task {header.get('task')}: only runs of link have rows and relations")
    options, relations = from_plain(LinkOptions, header["options"]), int(header["dataset"]["relations"])
    decoder = decoder_of(relations, options)
    if options.storage == "disk":
        if not (run.path / "rows" / "meta.json").is_file():
            raise _unfinished(run)
        with Partitioned.open(run.path / "rows", capacity=1, spare=0) as store:
            extra = store.extra
            saved = unpacked(extra, run.path / "rows") if isinstance(extra, bytes) else None
            _take(saved, decoder, run)
            with _encoded(options, run, saved) as encoded:
                yield TrainedLinks(encoded or store, decoder, relations, options)
        return
    saved = run.load_checkpoint(mapped=True) if run.has_checkpoint() else None
    state = _take(saved, decoder, run)
    with _encoded(options, run, saved) as encoded:
        yield TrainedLinks(encoded or TrainedArray(state["rows"], state["row_state"]), decoder, relations, options)


@contextmanager
def _encoded(options: LinkOptions, run: Run, saved: dict[str, Any] | None) -> Iterator[EncodedRows | None]:
    if options.encoder == "none":
        yield None
        return
    if not (run.path / ENCODED).is_file():
        raise _unfinished(run)
    rows = EncodedRows(run.path / ENCODED, crc32=((saved or {}).get("end") or {}).get("encoded_crc32"))
    try:
        yield rows
    finally:
        rows.close()


def _take(saved: dict[str, Any] | None, decoder: Decoder, run: Run) -> dict[str, Any]:
    if saved is None or saved["end"] is None:
        raise _unfinished(run)
    weights = {name.removeprefix("decoder."): w for name, w in saved["model"].items() if name.startswith("decoder.")}
    try:
        decoder.load_state_dict(weights)
    except RuntimeError:
        raise CheckpointError(f"the checkpoint of {run.path} is of another decoder than its options name") from None
    decoder.eval()
    rows: dict[str, Any] = saved["recipe"]
    return rows


def _unfinished(run: Run) -> ValueError:
    spec = run.header["dataset"].get("spec") or "DATASET"
    return ValueError(f"{run.path} has not finished: go on with it (headrace train link {spec} --out {run.path} --resume)")
