"""Options of link prediction: embeddings of nodes, trained to tell edges from pairs that are none."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from headrace._sizes import parse_size
from headrace.nn import DECODERS, Decoder
from headrace.nn.links.decoders import decoder_named
from headrace.pipeline.orders import ORDERS
from headrace.train.options import LoopOptions, option

MOST_PARTITIONS = 1024


@dataclass(frozen=True)
class LinkOptions(LoopOptions):
    """Options of link prediction."""

    epochs: int = option(10, "passes over the training edges")
    lr: float = option(0.1, "learning rate of rows, relations and an encoder's weights")
    validate_every: int = option(0, "epochs from one validation to the next (0: only after the last)")
    staleness: int = option(
        0, "batches that begin before an earlier one has ended (0: exact); with a GPU, a row may miss the updates of so many"
    )
    decoder: str = option(
        "auto", f"how an edge is scored: {', '.join(DECODERS)} (auto: complex where edges have relations, else dot)"
    )
    dim: int = option(100, "floats per node; complex and rotate use half of them for imaginary parts")
    encoder: Literal["none", "sage", "gcn", "gin", "gat"] = option(
        "none", "layers between a node's row and the decoder, which also see rows of its neighbors by training edges"
    )
    fanout: tuple[int, ...] = option((), "with an encoder, neighbors sampled per hop, one layer each (default: 10)")
    hidden: int = option(0, "with an encoder of several layers, width between them (0: dim)")
    norm: Literal["l1", "l2"] = option("l1", "distance of transe and rotate")
    reciprocal: bool = option(False, "give every relation a second one for its heads")
    batch_size: int = option(1000, "edges per step")
    negatives: int = option(100, "nodes that the edges of a chunk share as negatives, for heads and tails (0: all nodes, 1-vs-all)")
    chunks: int = option(10, "parts of a batch that have negatives of their own")
    degree_fraction: float = option(0.5, "share of the negatives that are ends of the batch's edges; the others are any nodes")
    negative_weights: Literal["uniform", "degree"] = option("uniform", "how the others are drawn")
    filter_negatives: bool = option(False, "leave known training edges out of the negatives")
    loss: Literal["softmax", "logistic", "margin", "self_adversarial"] = option("softmax", "what is minimized")
    margin: float | None = option(None, "margin of the losses margin (default: 1) and self_adversarial (default: 9)")
    temperature: float = option(1.0, "how much self_adversarial prefers likely negatives")
    regularizer: Literal["none", "n3", "l1", "l2", "l3"] = option(
        "none", "penalty on an edge's rows: n3 of moduli, or lp of numbers"
    )
    regularization: float = option(0.0, "weight of the penalty")
    optimizer: Literal["row_adagrad", "adagrad", "sgd"] = option(
        "row_adagrad", "how rows are updated, by one or dim floats of state"
    )
    init: float = option(1e-3, "standard deviation that rows and relations begin with")
    precision: Literal["fp32", "tf32"] = option("fp32", "with a GPU, type that products of training are computed in")
    storage: Literal["device", "host", "disk"] = option(
        "device", "where rows live: with the computation, in main memory, or on disk"
    )
    row_type: Literal["fp32", "bf16"] = option("fp32", "type that rows are kept in; bf16 is rounded at random, state is fp32")
    partitions: int = option(0, "parts that nodes are cut into; a batch has edges and negatives of resident ones (0: no parts)")
    buffer: int = option(0, "partitions that are resident at a time")
    buffer_on: Literal["host", "device"] = option("host", "with a GPU, whose memory the buffer is in")
    memory: str = option(
        "", "main memory that the run may use beside the interpreter's, as 4GiB; refused if it does not fit (default: any)"
    )
    order: Literal["beta", "comet", "hilbert", "hilbert_symmetric", "row_major", "best"] = option(
        "comet", "in which partitions come together"
    )
    held_out: float = option(0.05, "share of edges kept for validation, and for testing, where there is no official split")
    val_edges: int = option(
        -1, "validation edges that are ranked, the first ones (0: all; -1: all, or some where it would take long)"
    )
    test_edges: int = option(-1, "test edges that are ranked, the first ones (0: all; -1: all, or some if that took long)")
    raw: bool = option(False, "rank against other true answers too, in place of leaving them out (filtered)")
    ranking: Literal["full", "sampled", "both"] = option("full", "rank true ends among all nodes, among sampled ones, or both")
    candidates: int = option(1000, "nodes that are sampled to rank among")

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_at_least(dim=1, batch_size=1, negatives=0, chunks=1, candidates=1, val_edges=-1, test_edges=-1)
        self._check_not_negative("regularization", "temperature", "partitions", "buffer", "init")
        if self.decoder != "auto":
            decoder_named(self.decoder)
        for name, most in {"degree_fraction": 1.0, "held_out": 0.45}.items():
            if not 0 <= getattr(self, name) <= most:
                raise ValueError(f"{name} must be from 0 to {most:g}, not {getattr(self, name)}")
        if self.memory and self.memory_bytes <= 0:
            raise ValueError(f"memory must be above 0, not {self.memory}: write a number and a unit, such as 600MiB or 2GB")
        self._check_together()
        self._check_encoder()

    @property
    def memory_bytes(self) -> int:
        """The memory that was given, in bytes; 0 for any."""
        return parse_size(self.memory) if self.memory else 0

    @property
    def in_flight(self) -> int:
        """Batches in flight, at the most."""
        return self.staleness + 1

    @property
    def fanouts(self) -> tuple[int, ...]:
        """Neighbors per hop of the encoder, the targets' first; none without one."""
        return () if self.encoder == "none" else self.fanout or (10,)

    def _check_encoder(self) -> None:
        if self.encoder == "none":
            if self.fanout or self.hidden:
                raise ValueError("fanout and hidden are of an encoder: choose one, as in encoder sage")
            return
        if any(k < 1 for k in self.fanout):
            raise ValueError(f"fanout must be numbers from 1 up, not {','.join(map(str, self.fanout))}")
        if self.hidden < 0:
            raise ValueError(f"hidden must not be negative, got {self.hidden}")
        if self.negatives == 0:
            raise ValueError("negatives 0 scores every node, and an encoder would encode every one in every step: use some, as 100")

    def _check_together(self) -> None:
        if (self.regularizer == "none") != (self.regularization == 0):
            raise ValueError("regularizer says which penalty and regularization how much of it: give both, or neither")
        if bool(self.partitions) != bool(self.buffer):
            raise ValueError("partitions are brought into a buffer: give both, as in partitions 16 and buffer 4")
        if self.storage == "disk" and not self.partitions:
            raise ValueError("storage disk needs partitions and a buffer, as in partitions 16 and buffer 4")
        if self.partitions > MOST_PARTITIONS:  # an order is a list of all pairs of them
            raise ValueError(f"partitions must be at most {MOST_PARTITIONS}, not {self.partitions}")
        if self.partitions:
            self.order_of(0)
        if self.negatives == 0:
            if self.partitions or self.storage != "device":
                raise ValueError("negatives 0 scores every node: it needs storage device and no partitions")
            if self.row_type != "fp32":
                raise ValueError(f"negatives 0 computes on the rows themselves: row_type must be fp32, not {self.row_type}")
            if self.staleness:
                raise ValueError(f"negatives 0 updates every row in every step: staleness must be 0, not {self.staleness}")
            if self.loss != "softmax":
                raise ValueError(f"negatives 0 is a softmax over all nodes: it does not go with loss {self.loss}")

    def order_of(self, epoch: int) -> object:
        """The order of partitions in an epoch, before it is made to start with what is resident."""
        if self.order == "comet":
            return ORDERS["comet"](self.partitions, self.buffer, seed=self.seed * 1_000_003 + epoch)  # type: ignore[call-arg]
        return ORDERS[self.order](self.partitions, self.buffer)


def decoder_of(relations: int, options: LinkOptions) -> Decoder:
    """The decoder that the options describe, untrained."""
    kind = decoder_named(options.decoder)
    more = {"norm": options.norm} if kind.takes_norm else {}
    return kind(options.dim, relations, reciprocal=options.reciprocal, **more)
