"""How much memory a server takes at most, and whether its calls carry its intervals: said before its first epoch."""

from __future__ import annotations

from headrace._memory import peak_memory, resident_memory
from headrace.cluster.elastic.server import Server
from headrace.cluster.elastic.workers.objects import MemoryObjects

_WORKING = 3  # times the rows of a task that its computation holds beside them, where workers are threads
_WIRE = 5  # times the rows of a call that its JSON takes here: base64, which makes four bytes of three, as bytes, text and request
_TOLD = 2  # times the rows that others read: as they are told, and as they are sent
_PER_ROW = 24  # bytes of a row's id, seed and label
_HEADER = 4096  # bytes of a task's options and names


def server_memory(server: Server, *, workers: int) -> int:
    """Bytes that its process will have held at most: what it holds already, its tables among that, and what tasks add.

    A server launches all tasks that are ready, and workers may be slower. So the payloads of a whole stage may wait together, and
    their results are kept beside them until they are used. To that come the rows that are kept for threads (`Layers.constant`),
    what a few workers hold, what the server itself needs for an interval (`Layers.working_bytes`), and rows for other servers.
    """
    layers, at, size = server.work, server.at, server.dtype.itemsize
    here = server.shelf is not None and isinstance(server.shelf.objects, MemoryObjects)
    stage = 0
    for layer, direction in {*layers.stages(), *layers.stages(validate=True)}:
        sent, received = layers.columns(layer, direction)
        constant = 0 if layer else layers.constant_columns
        computed = (sent + received + constant) * _WORKING if here else (sent + constant + received) * _WIRE
        waiting = sent + received + (0 if here else constant)
        stage = max(stage, at.num_own * waiting + computed * workers * at.num_own // max(len(at.own_intervals), 1))
    kept = at.num_own * layers.constant_columns if here else 0
    ahead, back = layers.widths
    told = max([*ahead, *back, 0]) * sum(len(rows) for reading in (at.forward, at.backward) for rows in reading.told)
    return max(peak_memory(), resident_memory() + size * (stage + kept + _TOLD * told) + layers.working_bytes)


def check_calls(server: Server, limit: int) -> None:
    """ValueError where a task of the largest interval, or its result, has more than `limit` bytes. It says how many rows fit."""
    layers, at, size = server.work, server.at, server.dtype.itemsize
    rows = max((end - begin for begin, end in map(at.range_of, at.own_intervals)), default=0)
    weights = size * sum(
        sorted(sum(w.numel() for w in layer.parameters()) for layer in server.layers)[-2:]
    )  # a task of attention has two
    row = 0
    for layer, direction in {*layers.stages(), *layers.stages(validate=True)}:
        sent, received = layers.columns(layer, direction)
        row = max(row, size * (sent + (0 if layer else layers.constant_columns)) + _PER_ROW, size * received)
    if rows * row + weights + _HEADER > limit:
        fit = max((limit - weights - _HEADER) // row, 0)
        remedy = f"give at least --intervals {-(-rows // fit) * len(at.own_intervals)}, or" if fit else "give"
        raise ValueError(
            f"a call carries {limit} bytes, which is {fit} rows of this model, and an interval has up to {rows}: {remedy} --objects"
        )
