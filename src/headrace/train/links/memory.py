"""What a run of link prediction keeps in main memory, told before it begins, and whether that is within `memory`."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from headrace._sizes import format_size
from headrace.store.disk.files import Layout
from headrace.train.links.encoder_memory import encoder_memory
from headrace.train.links.options import LinkOptions

ROW_TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
SPARE = 2  # slots for partitions that are on their way in and out
_RANKING = 1 << 28
_ENCODING = 1 << 24
_STEP_BYTES = 48  # of an edge while its step is shuffled: positions, words, and sorting them
_KNOWN_BYTES = 96  # of an edge while `KnownEdges` sorts it; a third of it stays
_WEIGHT_BYTES = 32  # of a node while a table to draw from is made
_HEAP = 2  # freed tensors stay with the process, and do not all fit those that come next
_THREADS = 2 << 20  # stacks of the stages, readers and writers as far as they are used, and the log


def memory_of(
    options: LinkOptions, *, nodes: int, train: int, others: int = 0, edge_bytes: int = 12, state: int = 1, spare: int = SPARE
) -> dict[str, int]:
    """Bytes of main memory by what they are for; `train` edges, `others` that are only ranked, `state` floats a row.

    Without the interpreter and its libraries (about 300 MiB with torch), which are there before. On disk, edges are mapped and take
    none.

    >>> from headrace.train import LinkOptions
    >>> options = LinkOptions(dim=100, storage="disk", partitions=64, buffer=16, raw=True)
    >>> round(memory_of(options, nodes=86_000_000, train=300_000_000)["slots"] / 2**30, 1)
    9.1
    """
    width, on_host = options.dim, options.device == "cpu" or options.storage == "host"
    parts = {"threads": _THREADS}
    if options.storage == "disk":
        if options.device == "cpu" or options.buffer_on == "host":
            parts["slots"] = min(options.buffer + spare, options.partitions) * slot_bytes(options, nodes=nodes, state=state)
        parts["edges of a step"] = int(_STEP_BYTES * train * min(1.0, (options.buffer / options.partitions) ** 2))
    else:
        if on_host:
            parts["rows and state"] = nodes * (width * row_bytes(options) + 4 * state)
            if options.validate_every:
                parts["best rows so far"] = nodes * width * row_bytes(options)
        parts["edges"] = train * edge_bytes + (8 * train if options.partitions else 0) + _STEP_BYTES * train
    if options.negatives:
        rows = 2 * options.batch_size + options.chunks * options.negatives
        parts["batches in flight"] = _HEAP * (options.in_flight + 2) * rows * 4 * (width + state)
        scores = 2 * options.batch_size * 4 * options.negatives
        parts["a batch's scores and gradients"] = _HEAP * (8 * rows * 4 * width + 6 * scores)
    elif on_host:
        parts["gradients of all rows"] = 3 * nodes * 4 * width
        parts["scores of all nodes"] = 4 * 2 * options.batch_size * 4 * nodes
    parts |= encoder_memory(options, nodes=nodes, train=train, state=state, piece=encoding_memory(options), heap=_HEAP)
    if options.negative_weights == "degree":
        parts["weights of negatives"] = _WEIGHT_BYTES * nodes
    if options.filter_negatives:
        parts["known edges, for negatives"] = _KNOWN_BYTES * train
    if others:
        parts["rows and scores while ranking"] = 4 * ranking_memory(options)
        if not options.raw and options.device == "cpu":
            parts["known edges, for filtered ranks"] = _KNOWN_BYTES * (train + others)
    return parts


def spare_slots(options: LinkOptions, *, nodes: int, train: int, others: int = 0, edge_bytes: int = 12, state: int = 1) -> int:
    """How many slots beside the buffer's fit into `memory`; a ValueError that says what would fit, if not even none does."""
    if not options.memory:
        return SPARE

    def needed(options: LinkOptions, spare: int) -> dict[str, int]:
        return memory_of(options, nodes=nodes, train=train, others=others, edge_bytes=edge_bytes, state=state, spare=spare)

    for spare in range(SPARE, -1, -1):
        if sum(needed(options, spare).values()) <= options.memory_bytes:
            return spare
    parts = needed(options, 0)
    told = ", ".join(f"{name} {format_size(size)}" for name, size in parts.items() if size)
    remedy = "use storage disk with partitions and a buffer, as in partitions 16 and buffer 4"
    if options.storage == "disk":
        more = [options.partitions * times for times in (2, 4, 8)]
        fitting = [p for p in more if sum(needed(_with_partitions(options, p), 0).values()) <= options.memory_bytes]
        what = f"partitions {fitting[0]} would fit, as would" if fitting else "use"
        rest = " or a smaller batch_size, negatives, staleness or dim" if not fitting else ""
        remedy = f"{what} memory {-(-sum(parts.values()) // 2**20)}MiB{rest}"
    have, need = format_size(options.memory_bytes), format_size(sum(parts.values()))
    raise ValueError(f"memory is {have} and {need} are needed ({told}): {remedy}")


def _with_partitions(options: LinkOptions, partitions: int) -> LinkOptions:
    return replace(options, partitions=partitions, order="beta")  # memory does not depend on it, and COMET's groups may not divide


def edges_fit(triples: Tensor, device: torch.device, *, known: bool = False) -> bool:
    """Whether a GPU has room for the edges beside all else: they, what it takes to shuffle them, and those to look up."""
    if device.type != "cuda":
        return False
    free, _ = torch.cuda.mem_get_info(device)
    return triples.nbytes + len(triples) * (_STEP_BYTES + (_KNOWN_BYTES if known else 0)) <= free // 2


def slot_bytes(options: LinkOptions, *, nodes: int, state: int) -> int:
    """Bytes of a partition in memory and on disk."""
    return Layout.of(nodes, options.dim, state, ROW_TYPES[options.row_type], options.partitions, 4096).file_bytes


def row_bytes(options: LinkOptions) -> int:
    """Bytes of a number of a row."""
    return ROW_TYPES[options.row_type].itemsize


def ranking_memory(options: LinkOptions) -> int:
    """What `rank` is given, which is about a quarter of what it takes: 1/32 of `memory`, if there is such a limit."""
    return max(min(_RANKING, options.memory_bytes // 32), 1 << 20) if options.memory else _RANKING


def encoding_memory(options: LinkOptions) -> int:
    """Bytes of rows that are encoded at a time."""
    return max(min(_ENCODING, ranking_memory(options)), 1 << 20)
