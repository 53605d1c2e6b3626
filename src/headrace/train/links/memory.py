"""`LinkMemory`: what a run of link prediction keeps in memory, told before it begins. Training refuses by it, and plans ask it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from headrace._memory import require_memory
from headrace._sizes import format_size
from headrace.store.disk.files import Layout
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
_GRAPH_BYTES = 56  # of an edge while the resident graph is made of it: its position, its ends, and two entries of the graph
_ROWS_BYTES = 96  # of an edge of a partition while its nodes are encoded, which are numbered then
_NODE_BYTES = 24  # of a resident node: where its neighbors begin, and where a sampler notes its place
_COPIES = 9  # of rows that a layer and its gradient keep, and what a heap that was used for others leaves between them

BATCHES = ("batches in flight", "a batch's scores and gradients", "neighbors in flight", "a batch's layers")
"""The parts that grow with the size of a batch and with how many are in flight."""


@dataclass(frozen=True)
class LinkMemory:
    """Bytes of a run, by what they are for.

    Six of the options are fields of their own: a plan tries many values of them, and need not make options for each.
    """

    options: LinkOptions
    nodes: int
    train: int  # edges to learn from
    others: int  # edges that are only ranked
    edge_bytes: int
    state: int  # floats of optimizer state a row
    limit: int  # bytes of main memory that the run may use; 0 for any
    gpu: bool  # whether a GPU computes
    storage: str
    partitions: int
    buffer: int
    buffer_on: str
    batch_size: int
    staleness: int

    @classmethod
    def of(
        cls, options: LinkOptions, *, nodes: int, train: int, others: int = 0, edge_bytes: int = 12, state: int = 1
    ) -> LinkMemory:
        """The memory of a run with these options."""
        return cls(
            options,
            nodes,
            train,
            others,
            edge_bytes,
            state,
            options.memory_bytes,
            options.device != "cpu",
            options.storage,
            options.partitions,
            options.buffer,
            options.buffer_on,
            options.batch_size,
            options.staleness,
        )

    @property
    def row_bytes(self) -> int:
        """A row and its state, as they are kept."""
        return self.options.dim * ROW_TYPES[self.options.row_type].itemsize + 4 * self.state

    @property
    def moved_bytes(self) -> int:
        """A row and its state, as batches carry them."""
        return 4 * (self.options.dim + self.state)

    @property
    def partition_bytes(self) -> int:
        """A partition as a file and in a slot, rounded up to what a disk reads."""
        dtype = ROW_TYPES[self.options.row_type]
        return Layout.of(self.nodes, self.options.dim, self.state, dtype, self.partitions, 4096).file_bytes

    @property
    def batch_rows(self) -> int:
        """Rows of a batch at the most: both ends of its edges, and their negatives."""
        return 2 * self.batch_size + self.options.chunks * self.options.negatives

    @property
    def in_flight(self) -> int:
        """Batches in flight, at the most."""
        return self.staleness + 1

    @property
    def resident(self) -> float:
        """The share of the nodes whose rows are in memory at a time."""
        return min(1.0, self.buffer / self.partitions) if self.partitions else 1.0

    def slots(self, spare: int = SPARE) -> int:
        """The buffer and the slots beside it."""
        return min(self.buffer + spare, self.partitions) * self.partition_bytes

    def total(self, spare: int = SPARE) -> int:
        """Main memory in all."""
        return sum(self.main(spare).values())

    def told(self) -> str:
        """The parts of main memory in words, without slots to read ahead."""
        return ", ".join(f"{name} {format_size(size)}" for name, size in self.main(0).items() if size)

    def batches(self) -> int:
        """Main memory of a batch that is computed and of those in flight."""
        parts = self.main(0)
        return sum(parts.get(name, 0) for name in BATCHES)

    def main(self, spare: int = SPARE) -> dict[str, int]:
        """Main memory, without the interpreter and its libraries (about 300 MiB with torch), which are there before.

        On disk, edges are mapped and take none.
        """
        options, width, on_host = self.options, self.options.dim, not self.gpu or self.storage == "host"
        parts = {"threads": _THREADS}
        if self.storage == "disk":
            if not self.gpu or self.buffer_on == "host":
                parts["slots"] = self.slots(spare)
            parts["edges of a step"] = int(_STEP_BYTES * self.train * self.resident**2)
        else:
            if on_host:
                parts["rows and state"] = self.nodes * self.row_bytes
                if options.validate_every:
                    parts["best rows so far"] = self.nodes * (self.row_bytes - 4 * self.state)
            parts["edges"] = self.train * (self.edge_bytes + (8 if self.partitions else 0) + _STEP_BYTES)
        if options.negatives:
            parts["batches in flight"] = _HEAP * (self.in_flight + 2) * self.batch_rows * self.moved_bytes
            scores = 2 * self.batch_size * 4 * options.negatives
            parts["a batch's scores and gradients"] = _HEAP * (8 * self.batch_rows * 4 * width + 6 * scores)
        elif on_host:
            parts["gradients of all rows"] = 3 * self.nodes * 4 * width
            parts["scores of all nodes"] = 4 * 2 * self.batch_size * 4 * self.nodes
        if options.encoder != "none":
            parts |= self._encoder()
        if options.negative_weights == "degree":
            parts["weights of negatives"] = _WEIGHT_BYTES * self.nodes
        if options.filter_negatives:
            parts["known edges, for negatives"] = _KNOWN_BYTES * self.train
        if self.others:
            parts["rows and scores while ranking"] = 4 * _ranking_memory(self.limit)
            if not options.raw and not self.gpu:
                parts["known edges, for filtered ranks"] = _KNOWN_BYTES * (self.train + self.others)
        return parts

    def _encoder(self) -> dict[str, int]:
        """The bytes that an encoder adds, by name."""
        options, share = self.options, self.resident
        parts = {"graph at hand": int(_GRAPH_BYTES * self.train * share**2 + _NODE_BYTES * self.nodes * share)}
        rows, edges = self._sampled(int(self.nodes * share))
        width = max(options.dim, options.hidden)
        moved = rows * self.moved_bytes + 8 * rows + 4 * edges
        parts["neighbors in flight"] = _HEAP * (self.in_flight + 2) * moved
        parts["a batch's layers"] = _HEAP * _COPIES * rows * 4 * width
        of_edges = 2 * _ROWS_BYTES * self.train // self.partitions if self.partitions else _GRAPH_BYTES * self.train
        parts["nodes while encoded"] = _COPIES * _encoding_memory(self.limit) + of_edges
        if self.storage != "disk" and (not self.gpu or self.storage == "host"):
            parts["encoded rows"] = self.nodes * 4 * (options.dim + (width if len(options.fanouts) > 1 else 0))
        if options.encoder == "gcn":
            parts["degrees"] = 8 * self.nodes
        return parts

    def _sampled(self, resident: int) -> tuple[int, int]:
        """The most nodes and edges that a batch's sample has, of so many resident nodes."""
        new = rows = min(self.batch_rows, resident)
        edges = 0
        for fanout in self.options.fanouts:
            edges += new * fanout
            new = min(new * fanout, resident - rows)
            rows += new
        return rows, edges

    def on_device(self, spare: int = SPARE) -> dict[str, int]:
        """Memory of the GPU for rows that live there, and for edges; without batches."""
        step = int(self.train * self.resident**2) if self.storage == "disk" else self.train
        known = _KNOWN_BYTES * self.train if self.options.filter_negatives else 0
        rows = self.slots(spare) if self.storage == "disk" else self.nodes * self.row_bytes
        return {"rows and state": rows, "edges": self.train * self.edge_bytes + _STEP_BYTES * step + known}


def spare_slots(options: LinkOptions, *, nodes: int, train: int, others: int = 0, edge_bytes: int = 12, state: int = 1) -> int:
    """How many slots beside the buffer's fit into `memory`; a ValueError that says what would fit, if not even none does."""
    return fitting_slots(LinkMemory.of(options, nodes=nodes, train=train, others=others, edge_bytes=edge_bytes, state=state))


def require_room(run: LinkMemory) -> None:
    """ValueError where the arrays that are certainly made take more main memory than the machine has."""
    options = run.options
    drawn = 8 * options.chunks * options.negatives * run.in_flight
    needed = {
        "dim": 0 if run.gpu and run.storage == "device" else run.slots(0) if run.storage == "disk" else run.nodes * run.row_bytes,
        "negatives and chunks": drawn + 4 * min(options.chunks * options.negatives, run.nodes) * options.dim,
        "dim and hidden": 4 * options.dim * max(options.hidden, options.dim) if options.encoder != "none" else 0,
    }
    for names, size in needed.items():
        values = ", ".join(f"{name} {getattr(options, name)}" for name in names.split(" and "))
        require_memory(size, f"training with {values}", f"lower {names.replace(' and ', ' or ')}")


def fitting_slots(run: LinkMemory) -> int:
    """How many slots beside the buffer's fit into the run's limit; a ValueError that says what would fit, if not even none does."""
    if not run.limit:
        return SPARE
    for spare in range(SPARE, -1, -1):
        if run.total(spare) <= run.limit:
            return spare
    need = run.total(0)
    remedy = "use storage disk with partitions and a buffer, as in partitions 16 and buffer 4"
    if run.storage == "disk":
        more = [run.partitions * times for times in (2, 4, 8)]
        fitting = [partitions for partitions in more if replace(run, partitions=partitions).total(0) <= run.limit]
        what = f"partitions {fitting[0]} would fit, as would" if fitting else "use"
        rest = " or a smaller batch_size, negatives, staleness or dim" if not fitting else ""
        remedy = f"{what} memory {-(-need // 2**20)}MiB{rest}"
    raise ValueError(f"memory is {format_size(run.limit)} and {format_size(need)} are needed ({run.told()}): {remedy}")


def edges_fit(triples: Tensor, device: torch.device, *, known: bool = False) -> bool:
    """Whether a GPU has room for the edges beside all else: they, what it takes to shuffle them, and those to look up."""
    if device.type != "cuda":
        return False
    free, _ = torch.cuda.mem_get_info(device)
    return triples.nbytes + len(triples) * (_STEP_BYTES + (_KNOWN_BYTES if known else 0)) <= free // 2


def slot_bytes(options: LinkOptions, *, nodes: int, state: int) -> int:
    """Bytes of a partition in memory and on disk."""
    return LinkMemory.of(options, nodes=nodes, train=0, state=state).partition_bytes


def ranking_memory(options: LinkOptions) -> int:
    """The memory limit passed to `rank`: 1/32 of `memory`, if there is such a limit. Ranking takes about four times as much."""
    return _ranking_memory(options.memory_bytes)


def encoding_memory(options: LinkOptions) -> int:
    """Bytes of rows that are encoded at a time."""
    return _encoding_memory(options.memory_bytes)


def _ranking_memory(limit: int) -> int:
    return max(min(_RANKING, limit // 32), 1 << 20) if limit else _RANKING


def _encoding_memory(limit: int) -> int:
    return max(min(_ENCODING, _ranking_memory(limit)), 1 << 20)
