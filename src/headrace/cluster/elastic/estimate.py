"""How much memory a server takes at most, said before its first epoch."""

from __future__ import annotations

from headrace._memory import peak_memory, resident_memory
from headrace.cluster.elastic.server import Server
from headrace.cluster.elastic.workers.objects import MemoryObjects

_WORKING = 3  # times the rows of a task that its computation holds beside them, where workers are threads
_WIRE = 5  # times the rows of a call that its JSON takes here: base64, which makes four bytes of three, as bytes, text and request
_TOLD = 2  # times the rows that others read: as they are told, and as they are sent


def server_memory(server: Server, *, workers: int) -> int:
    """Bytes that its process will have held at most: what it holds already, its tables among that, and what tasks add.

    A server launches all tasks that are ready before it looks for results. So the payloads of a whole stage may wait together, and
    as many results. To that come the rows that are kept for threads (`Layers.constant`), what a few workers hold, what the server
    itself needs for an interval (`Layers.working_bytes`), and rows for other servers.
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
