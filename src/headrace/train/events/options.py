"""Options of temporal link prediction."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from headrace.temporal import parse_parallel
from headrace.train.options import RunOptions, option

AUTO = "auto"


@dataclass(frozen=True)
class TemporalOptions(RunOptions):
    """Options of temporal link prediction."""

    epochs: int = option(10, "passes over the training events, over all trainers (rounded up to whole sweeps)")
    lr: float = option(0.001, "learning rate")
    task: Literal["link", "edge_class"] = option("link", "what is predicted: which events come, or of which class they are")
    label: str = option("edge_label", "with task edge_class, the array of the dataset's extra that has the class of every event")
    model: Literal["tgn", "jodie", "dyrep", "tgat"] = option("tgn", "kind of model")
    batch_size: int = option(200, "events of a local batch")
    parallel: str = option(
        "1x1x1",
        "i x j x k: batches that share a memory's age, epochs at once, copies of the memory; or auto, for the ranks there are",
    )
    static: Literal["none", "learned", "features"] = option("none", "static rows added to the memory: learned first, or the data's")
    static_epochs: int = option(5, "with static learned, passes that learn the rows")
    static_dropout: float = option(0.0, "with static learned, share of nodes that train with zeros, as unseen ones are tested")
    neighbors: int = option(10, "recent neighbors of a node")
    hidden: int = option(100, "width of memory, time code and embeddings")
    heads: int = option(2, "attention heads")
    dropout: float = option(0.1, "share of attention and activations dropped")
    attention: Literal["disttgl", "pyg"] = option("disttgl", "details of the attention: those of DistTGL or of PyG's TGN")
    loss: Literal["softmax", "bce"] = option("bce", "cross-entropy among the negatives, or a binary one for each")
    negatives: int = option(1, "negatives of a training event, uniform over destinations")
    candidates: int = option(20, "destinations that a true one is ranked among in evaluation (0: all there are)")
    evaluate: Literal["uniform", "historical", "inductive"] = option("uniform", "negatives of the evaluation")
    in_batch: Literal["hidden", "visible"] = option("hidden", "whether an event may see earlier ones of its own batch as neighbors")
    prepared: str | None = option(None, "directory that batches are written to once, and read from by later epochs and runs")
    lanes: Literal["auto", "together", "apart"] = option(
        "auto",
        "whether the batches that trainers of a process have in an iteration are one batch (auto: on a GPU, by a process alone)",
    )
    capture: Literal["auto", "always", "never"] = option(
        "auto", "with a GPU, replay forward and backward as one launch, on batches padded to one shape (auto: where that pays)"
    )
    cut: Literal["size", "ties"] = option("size", "whether batches may end between events of one time")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.parallel != AUTO:
            parse_parallel(self.parallel)
        if self.capture == "always" and self.device.partition(":")[0] == "cpu":
            raise ValueError("capture says what a GPU does: it needs device cuda")
        if self.capture == "always" and self.lanes == "apart":
            raise ValueError("capture replays the batch of all lanes together: it does not go with lanes apart")
        if self.accumulate and self.accumulate != self.batches_per_step:
            raise ValueError(f"a step has a batch of each trainer: set parallel, not accumulate ({self.accumulate})")
        for name in ("dropout", "static_dropout"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 0 and below 1, not {getattr(self, name)}")

    @property
    def batches_per_step(self) -> int:
        """Trainers, however many ranks they are spread over; one where their batches are one."""
        if self.lanes == "together":
            return 1
        i, j, k = parse_parallel(self.parallel)
        return i * j * k

    def resolved(self, ranks: int) -> TemporalOptions:
        """With `lanes` decided."""
        together = self.lanes == "together" or (self.lanes == "auto" and self.device.partition(":")[0] == "cuda" and ranks == 1)
        if together and ranks > 1:
            raise ValueError(f"lanes together are of one process, and there are {ranks} ranks: leave lanes out")
        if self.capture == "always" and not together:
            raise ValueError(
                f"capture replays steps of one process, and there are {ranks} ranks: train on one, or leave capture out"
            )
        return replace(self, lanes="together" if together else "apart")

    def _bounds(self) -> dict[str, int]:
        ones = ("batch_size", "static_epochs", "neighbors", "hidden", "heads", "negatives")
        return super()._bounds() | dict.fromkeys(ones, 1) | {"candidates": 0}
