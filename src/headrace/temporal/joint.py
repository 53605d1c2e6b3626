"""`JointBatch`: the batches of all trainers in an iteration as one, padded to a fixed shape. A lane is one trainer's part of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from headrace.sample import Block
from headrace.temporal.batch import EventBatch
from headrace.temporal.schedule import Turn
from headrace.temporal.transfer import Layout

_ROUND = 256
Ids = NDArray[np.int64]


@dataclass(frozen=True)
class Room:
    """Room for joint batches."""

    fixed: tuple[int, int, int]  # lanes, events of each, roots of an event
    rows: tuple[int, int, int]  # distinct nodes with one that pads, rows that are written, rows that are held
    edges: tuple[int, ...]  # of each hop

    def alike(self, other: Room) -> bool:
        """Whether lanes and their events are as many: those are fixed."""
        return self.fixed == other.fixed

    def holds(self, other: Room) -> bool:
        """Whether batches of another room fit in."""
        pairs = (*zip(self.rows, other.rows, strict=True), *zip(self.edges, other.edges, strict=True))
        return self.alike(other) and all(mine >= theirs for mine, theirs in pairs)

    def union(self, other: Room) -> Room:
        """Room for batches of either."""
        rows = map(max, self.rows, other.rows)
        return Room(self.fixed, tuple(rows), tuple(map(max, self.edges, other.edges)))  # type: ignore[arg-type]

    @property
    def roots(self) -> int:
        lanes, events, ends = self.fixed
        return lanes * events * ends


@dataclass(frozen=True, eq=False)
class Lane:
    """A trainer's turn: its batch, and where memory's table has the rows that it reads, writes and holds."""

    turn: Turn
    events: EventBatch
    place: Ids  # [u] of the batch's nodes
    target: Ids  # [w] of those that it writes; empty where it does not
    hold_from: Ids  # [h] rows to put aside before anything is written, for its other sets of negatives
    hold_to: Ids  # [h]
    resets: bool = False  # whether its copy is zero before it is read
    read: int = 0  # rows that it reads for all its sets
    held: tuple[int, ...] = ()  # and those that it puts aside for each set


@dataclass(eq=False)
class JointBatch:
    """What the trainers do in an iteration; None for one that idles.

    size: the events that a lane has room for. spare_row: the row of memory's table that padding reads and writes. holds: whether
    lanes stay on a batch.
    """

    lanes: Sequence[Lane | None]
    size: int
    spare_row: int
    holds: bool
    with_edges: bool
    device: torch.device
    _laid: tuple[Room, Tensor] | None = None

    @property
    def parts(self) -> list[Lane]:
        """Of the trainers that do not idle."""
        return [lane for lane in self.lanes if lane is not None]

    @property
    def events(self) -> int:
        return sum(lane.events.size for lane in self.parts)

    def room(self, *, spare: float = 0.0) -> Room:
        """For this batch, and the share `spare` more for others like it."""

        def rounded(count: int) -> int:
            return -(-int(count * (1 + spare) + 1) // _ROUND) * _ROUND

        parts = [lane.events for lane in self.parts]
        ends = len(parts[0].age) // parts[0].size
        edges = [sum(hops) for hops in zip(*(_hops(events) for events in parts), strict=True)]
        written = sum(len(lane.target) for lane in self.parts)
        held = rounded(sum(len(lane.hold_to) for lane in self.parts)) if self.holds else 0
        rows = rounded(sum(len(events.nodes) for events in parts)), rounded(written), held
        return Room((len(self.lanes), self.size, ends), rows, tuple(map(rounded, edges)))

    def laid_out(self, room: Room) -> Tensor:
        """All of it in host memory, as `JointEvents` of that room read it. Kept for the next who asks.  # -> [bytes]"""
        if self._laid is None or self._laid[0] != room:
            self._laid = room, self._written(room)
        return self._laid[1]

    def joined(self) -> JointEvents:
        """On the device, in just the room that it needs."""
        room = self.room()
        memory = self.laid_out(room).to(self.device, non_blocking=self.device.type != "cpu")
        return JointEvents(room, self._layout(room), memory)

    def padded(self, room: Room, model: nn.Module) -> JointEvents:
        """Memory on the device for batches of a room."""
        layout = self._layout(room)
        return JointEvents(room, layout, torch.zeros(layout.nbytes, dtype=torch.uint8, device=self.device))

    def _layout(self, room: Room) -> Layout:
        long, time = torch.int64, self.parts[0].events.dt.dtype
        (lanes, size, _), (nodes, written, held), edges = room.fixed, room.rows, sum(room.edges)
        fields = {"nodes": (long, nodes), "place": (long, nodes), "mail_event": (long, nodes), "mail_dt": (time, nodes)}
        fields |= {"has_mail": (torch.bool, nodes), "row_of": (long, room.roots + edges), "age": (time, room.roots)}
        fields |= {"indptr": (long, room.roots + edges - room.edges[-1] + 1), "indices": (long, edges), "dt": (time, edges)}
        fields |= {"edge_id": (long, edges if self.with_edges else 0)}
        fields |= dict.fromkeys(("written", "other", "other_root", "target"), (long, written))
        fields |= dict.fromkeys(("hold_from", "hold_to"), (long, held))
        return Layout(fields | {"event": (long, lanes * size), "weight": (torch.float32, lanes * size)})

    def _written(self, room: Room) -> Tensor:
        layout = self._layout(room)
        memory = layout.empty(self.device)
        into = layout.arrays(memory)
        self._write_nodes(into, room)
        self._write_sample(into, room)
        self._write_memory(into, room)
        return memory

    def _write_nodes(self, into: dict[str, NDArray[Any]], room: Room) -> None:
        parts = self.parts
        rest = {"nodes": 0, "mail_event": 0, "mail_dt": 0, "has_mail": False}
        for name, value in rest.items():
            _put(into[name], [getattr(lane.events, name).numpy() for lane in parts], value)
        _put(into["place"], [lane.place for lane in parts], self.spare_row)

    def _write_sample(self, into: dict[str, NDArray[Any]], room: Room) -> None:
        """Roots lane by lane, each lane's padded by end; then the nodes of each hop, of all lanes one after the other."""
        lanes, size, ends = room.fixed
        row_of, counts = into["row_of"], np.zeros(len(into["indptr"]), np.int64)
        row_of.fill(room.rows[0] - 1)
        into["age"].fill(0)
        into["event"].fill(0)
        into["weight"].fill(0)
        shape, weight = (lanes, ends, size), np.float32(1 / self.events)
        rows, ages, degrees = (part.reshape(shape) for part in (row_of[: room.roots], into["age"], counts[1 : room.roots + 1]))
        event, weights = into["event"].reshape(lanes, size), into["weight"].reshape(lanes, size)
        own = []  # each lane's rows of its nodes, its degrees, and where its hops begin among both
        before = 0
        for number, lane in enumerate(self.lanes):
            if lane is None:
                continue
            events, n = lane.events, lane.events.size
            place, degree = events.row_of.numpy() + before, np.diff(events.blocks[-1].indptr.numpy())
            rows[number, :, :n] = place[: ends * n].reshape(ends, n)
            ages[number, :, :n] = events.age.numpy().reshape(ends, n)
            degrees[number, :, :n] = degree[: ends * n].reshape(ends, n)
            event[number, :n] = np.arange(events.begin, events.end)
            weights[number, :n] = weight
            own.append((place, degree, np.cumsum([ends * n, *_hops(events)])))
            before += len(events.nodes)
        at, edge = room.roots, 0
        for hop, space in enumerate(room.edges):
            _put(row_of[at : at + space], [place[begins[hop] : begins[hop + 1]] for place, _, begins in own], room.rows[0] - 1)
            found = sum(int(begins[hop + 1] - begins[hop]) for *_, begins in own)
            into["indices"][edge : edge + found] = np.arange(at, at + found)
            edge += found
            if hop + 1 < len(room.edges):
                _put(counts[at + 1 : at + space + 1], [degree[begins[hop] : begins[hop + 1]] for _, degree, begins in own], 0)
            at += space
        into["indices"][edge:] = 0
        np.cumsum(counts, out=into["indptr"])
        for name in ("dt", "edge_id") if self.with_edges else ("dt",):
            whole = [(getattr(lane.events, name).numpy(), _begins(lane.events)) for lane in self.parts]
            pieces = [values[begins[hop] : begins[hop + 1]] for hop in range(len(room.edges)) for values, begins in whole]
            _put(into[name], pieces, 0)

    def _write_memory(self, into: dict[str, NDArray[Any]], room: Room) -> None:
        _, size, ends = room.fixed
        parts: dict[str, list[NDArray[Any]]] = {name: [] for name in ("written", "other", "other_root")}
        before = 0
        for number, lane in enumerate(self.lanes):
            if lane is None:
                continue
            events = lane.events
            if len(lane.target):
                end, event = np.divmod(events.other_root.numpy(), events.size)
                parts["written"].append(events.written.numpy() + before)
                parts["other"].append(events.other.numpy() + before)
                parts["other_root"].append((number * ends + end) * size + event)
            before += len(events.nodes)
        rest = {"written": room.rows[0] - 1, "other": room.rows[0] - 1, "other_root": 0}
        for name, value in rest.items():
            _put(into[name], parts[name], value)
        for name in ("target", "hold_from", "hold_to"):
            _put(into[name], [getattr(lane, name) for lane in self.parts], self.spare_row)


class JointEvents:
    """What a model takes in place of an `EventBatch`: the same fields, with the roots of lane after lane, and more beside.

    `place`, `target`, `hold_from` and `hold_to` are rows of memory's table; `event` [lanes * size] are places in the stream and
    `weight` what an event's loss counts: 0 for padding. A row that pads reads and writes one row of the table that no event has; it
    has no neighbors and no weight, so it changes no gradient.
    """

    def __init__(self, room: Room, layout: Layout, memory: Tensor) -> None:
        self.room_, self.memory, self.layout = room, memory, layout
        self.lanes, self.size, _ = room.fixed
        self.nodes: Tensor
        views = layout.tensors(memory)
        self.nodes, self.place, self.row_of, self.age = (views[name] for name in ("nodes", "place", "row_of", "age"))
        self.dt, self.edge_id, self.has_mail = views["dt"], views["edge_id"], views["has_mail"]
        self.mail_event, self.mail_dt = views["mail_event"], views["mail_dt"]
        self.written, self.other, self.other_root = (views[name] for name in ("written", "other", "other_root"))
        self.target, self.hold_from, self.hold_to = (views[name] for name in ("target", "hold_from", "hold_to"))
        self.event, self.weight = views["event"], views["weight"]
        indptr, indices = views["indptr"], views["indices"]
        blocks, rows, edges = [], room.roots, 0
        for hop in room.edges:
            edges += hop
            blocks.append(Block(indptr[: rows + 1], indices[:edges], rows + hop))
            rows += hop
        self.blocks = tuple(blocks)

    def fill(self, batch: JointBatch) -> None:
        """Copy a batch in; nothing waits for the device."""
        self.memory.copy_(batch.laid_out(self.room_), non_blocking=True)

    def rehearse(self, batch: JointBatch) -> None:
        """Copy a batch in, so that its step writes nothing but the row of the table that no event has."""
        self.fill(batch)
        self.target.fill_(batch.spare_row)
        self.hold_to.fill_(batch.spare_row)


Events = EventBatch | JointEvents


def _hops(events: EventBatch) -> list[int]:
    """The edges of each hop."""
    begins = _begins(events)
    return [last - first for first, last in pairwise(begins)]


def _begins(events: EventBatch) -> list[int]:
    return [0, *(block.num_edges for block in events.blocks)]


def _put(into: NDArray[Any], parts: Sequence[NDArray[Any]], rest: Any) -> None:
    """Parts one after the other, and `rest` in what is left."""
    at = 0
    for part in parts:
        into[at : at + len(part)] = part
        at += len(part)
    into[at:] = rest
