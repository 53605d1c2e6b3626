"""Options of node classification."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Literal

from headrace._sizes import parse_size
from headrace.pipeline import Versions
from headrace.train.options import RunOptions, option

_STEPS, _FEWEST, _MOST = 2000, 10, 200  # batches of a run whose epochs are left open, and bounds of its epochs
_FEW_NODES, _DECAY = 5000, 5e-4  # so few training nodes are soon learned by heart


@dataclass(frozen=True)
class NodeOptions(RunOptions):
    """Options of node classification. What is left open, `suited` chooses for a dataset."""

    epochs: int = option(0, "passes over the training nodes (0: as many as make 2000 batches, from 10 to 200)")
    patience: int = option(
        -1, "stop after this many validations without a better one (0: never; -1: a quarter of the epochs that epochs 0 gives)"
    )
    weight_decay: float | None = option(
        None, "weight decay (default: 0; 0.0005 where epochs are left open and there are at most 5,000 training nodes)"
    )
    model: Literal["sage", "gcn", "gin", "gat", "gatv2"] = option("sage", "kind of layer")
    fanout: tuple[int, ...] = option((), "neighbors sampled per hop, the seeds' first; -1 takes all (default: 15,10,5)")
    layers: int = option(0, "layers of the model (0: one per fanout; 2 with full_batch and no fanout)")
    hidden: int = option(256, "width of the hidden layers, over all heads")
    heads: int = option(8, "attention heads of gat")
    dropout: float = option(0.5, "share of activations dropped between layers (and of attention)")
    input_dropout: float | None = option(None, "share of features dropped (default: as dropout for gcn and gat, else 0)")
    norm: Literal["none", "batch", "layer"] = option("none", "normalization between layers")
    inner_norm: Literal["none", "batch", "layer"] = option("batch", "with gin, normalization inside the network of each layer")
    residual: bool = option(False, "add each layer's input to its output")
    full_batch: bool = option(False, "train on the whole graph at once, without sampling")
    flow: Literal["none", "sync", "pipe", "async"] = option(
        "none",
        "with full_batch, train by tasks on servers that hold a part each: layer by layer (sync), intervals overlapping (pipe, "
        "the same bits), or up to lead epochs apart (async)",
    )
    lead: int = option(0, "with flow async, epochs that an interval may be ahead of the slowest; rows read are up to one older")
    update_every: int = option(0, "with flow async, intervals of a server whose gradients make a step (0: all of them)")
    target: float = option(0.0, "with flow async, the validation measure that is aimed at, as 0.8 (0: none)")
    settle: float = option(0.01, "with flow async, go on as pipe when validation is within this of the target")
    intervals: int = option(8, "with flow, ranges of rows into which a server's work is cut")
    executor: Literal["threads", "ray", "lambda"] = option("threads", "with flow, who does the tensor work")
    workers: int = option(0, "with flow, workers of a server (0: two threads; of ray and lambda as many as it can use)")
    fusion: bool = option(True, "with flow, the last layer, the loss and its backward pass are one task")
    tasks_per_call: int = option(1, "with flow, small tasks that make one call of a worker")
    objects: str = option(
        "", "with ray and lambda, where weights lie by version and what is too large for a call: folder:/PATH or s3://BUCKET"
    )
    budget: float = option(0.0, "with flow, dollars after which the run stops at a checkpoint (0: no limit)")
    keep_sum: Literal["auto", "always", "never"] = option(
        "auto", "with full_batch, make the first layer's sums of the features once and keep them (auto: if that pays)"
    )
    batch_size: int = option(1024, "training nodes per step")
    features: Literal["as_is", "rows", "standardize"] = option(
        "as_is", "whether features are scaled: each node's to sum to one (rows), or each column to mean 0 and deviation 1"
    )
    split: str | int = option("0", "which of several official splits: a number from 0, or all, one run after the other")
    mode: Literal["auto", "cpu", "uva", "gpu", "mixed"] = option(
        "auto", "with a GPU, where batches are sampled: on it, on it from host memory (uva), by CPU threads, or by both (mixed)"
    )
    device_cache: str = option("auto", "with a GPU, features kept in its memory: bytes (4GiB) or a share (20%), the rest pinned")
    capture: Literal["auto", "always", "never"] = option(
        "auto", "with a GPU, replay forward and backward as one launch, on batches padded to one shape (auto: where that pays)"
    )
    hot: Literal["degree", "probability"] = option("degree", "with a GPU, which features are kept: by degree, or by expected use")
    class_weights: Literal["none", "balanced"] = option("none", "weigh the loss by how rare a class is")
    validate: Literal["auto", "exact", "sampled", "none"] = option(
        "auto", "how to validate: over all neighbors layer by layer, or over sampled ones (auto: exact where the model allows)"
    )
    share: Literal["machine", "ranks"] = option(
        "machine", "with several ranks, where features are: in memory once per machine (or mapped), or spread over all ranks"
    )
    replicate: str = option("0%", "with share ranks, rows that every rank keeps a copy of, those asked for most: a share (20%)")
    parallel: Literal["auto", "data", "push_pull"] = option(
        "auto",
        "with several ranks, how they train: batches of each with all columns (data), or with slices of columns, the first layer "
        "together (push_pull); auto: what sends fewer bytes",
    )
    topology: Literal["auto", "replicated", "split"] = option(
        "auto",
        "with several ranks, where the graph is: whole on every rank (or mapped), or a share of its rows on each, drawn from by "
        "exchanges; auto: whole, and split where a rank has its part alone",
    )
    versions: str = option(
        "flush", "with push_pull, the delay of the first layer's weights: flush (none), stash (three steps), double_buffer (one)"
    )
    wire: Literal["fp32", "bf16"] = option("fp32", "with push_pull, the type in which sums travel")
    slices: int = option(1, "with push_pull, slices of the features that a rank holds, of as many as there are ranks")
    storage: Literal["memory", "disk", "resident"] = option(
        "memory",
        "where features are: in memory, on disk (the same result), or on disk with some partitions in memory, whose edges alone "
        "are sampled",
    )
    memory: str = option("", "main memory for features that are on disk, as 4GiB: caches, batches ahead, tables of a validation")
    partitions: int = option(0, "with storage resident, parts that nodes are cut into (0: 64)")

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "split", str(self.split))
        if self.split != "all" and not str(self.split).isdecimal():
            raise ValueError(f"split must be a number from 0, or all; not {self.split!r}")
        on_cpu = self.device.partition(":")[0] == "cpu"
        if on_cpu and (self._places_rows or self.capture == "always"):
            raise ValueError("mode, device_cache, hot and capture say what a GPU does: they need device cuda")
        if self.capture == "always" and self.full_batch:
            raise ValueError("capture replays sampled batches: it does not go with full_batch")
        if self.keep_sum == "always" and not self.full_batch:
            raise ValueError("keep_sum keeps sums over a whole graph: it needs full_batch")
        self.cache_budget  # noqa: B018 - is it a size?
        self._check_at_least(hidden=1, heads=1, batch_size=1)
        if self.layers < 0:
            raise ValueError(f"layers must not be negative, got {self.layers}")
        for name in ("dropout", "input_dropout"):
            if getattr(self, name) is not None and not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name} must be from 0 to below 1, not {getattr(self, name)}")
        if self.inner_norm != "batch" and self.model != "gin":
            raise ValueError(f"inner_norm is the norm inside the network of gin, and {self.model} has none: leave it out")
        if any(k < -1 for k in self.fanout):
            raise ValueError(f"fanout must be numbers from -1 (all) up, not {','.join(map(str, self.fanout))}")
        if self.fanout and self.layers and len(self.fanout) != self.layers:
            raise ValueError(f"fanout has {len(self.fanout)} hops for {self.layers} layers: give one per layer")
        self._check_storage()
        self._check_parallel()
        self._check_flow()

    def _check_parallel(self) -> None:
        self._check_at_least(slices=1)
        if self.replicate_share and self.share != "ranks":
            raise ValueError("replicate copies rows of other ranks: it needs share ranks")
        Versions.of(self.versions)
        if self.parallel == "data" and (self.versions != "flush" or self.wire != "fp32" or self.slices != 1):
            raise ValueError("versions, wire and slices are of push_pull: leave them out, or use parallel push_pull")

    def _check_flow(self) -> None:
        self._check_at_least(intervals=1, workers=0, tasks_per_call=1, budget=0, lead=0, update_every=0, target=0, settle=0)
        if self.flow != "none" and not self.full_batch:
            raise ValueError(f"flow {self.flow} trains on the whole graph: it needs full_batch")
        for name in (name for name in ("objects", "budget") if getattr(self, name) and self.flow == "none"):
            raise ValueError(f"{name} {getattr(self, name)} is of training by tasks: it needs flow sync, pipe or async")
        if self.objects and self.executor == "threads":
            raise ValueError(f"objects {self.objects} are for workers of other processes, and threads share memory: leave it out")
        for name in (name for name in ("lead", "update_every", "target") if getattr(self, name) and self.flow != "async"):
            raise ValueError(f"{name} {getattr(self, name)} is of flow async, and flow is {self.flow}: leave it out")

    def _check_storage(self) -> None:
        if self.partitions and (self.partitions < 2 or self.storage != "resident"):
            raise ValueError(f"partitions are for storage resident, at least 2 of them; got {self.partitions} with {self.storage}")
        if self.storage == "memory":
            if self.memory:
                raise ValueError(f"memory {self.memory} bounds what features on disk take: it needs storage disk or resident")
            return
        if not self.memory:
            raise ValueError(f"storage {self.storage} needs memory, what features may take of it, as in memory 4GiB")
        if self.memory_bytes <= 0:
            raise ValueError(f"memory must be above 0, not {self.memory}: write a number and a unit, such as 600MiB or 2GB")
        if self.full_batch:
            raise ValueError(f"full_batch computes on all features at once: it does not go with storage {self.storage}")
        if self._places_rows:
            raise ValueError(
                f"with storage {self.storage} batches are made in main memory: leave out mode, device_cache and hot, "
                "or use storage memory"
            )

    @property
    def _places_rows(self) -> bool:
        """Whether it is said what a GPU samples or keeps."""
        return self.mode not in ("auto", "cpu") or self.device_cache != "auto" or self.hot != "degree"

    @property
    def memory_bytes(self) -> int:
        """`memory` in bytes; 0 where it was not given."""
        return parse_size(self.memory) if self.memory else 0

    def _bounds(self) -> dict[str, int]:
        return super()._bounds() | {"epochs": 0, "patience": -1}  # 0 and -1 leave it to `suited`

    def suited(self, train_nodes: int) -> NodeOptions:
        """These options with numbers for all that was left open: epochs, patience, weight decay, layers and fanout.

        A small graph has few batches an epoch, and needs more epochs for as many steps.
        """
        batches = 1 if self.full_batch else -(-train_nodes // self.batch_size)
        epochs = self.epochs or min(max(_STEPS // max(batches, 1), _FEWEST), _MOST)
        patience = self.patience
        if patience < 0:
            patience = 0 if self.epochs else max(epochs // 4 // max(self.validate_every, 1), 1)
        decay = self.weight_decay
        if decay is None:
            decay = _DECAY if not self.epochs and train_nodes <= _FEW_NODES else 0.0
        fanout = self.fanout if self.full_batch else self.fanouts
        return replace(self, epochs=epochs, patience=patience, weight_decay=decay, layers=self.depth, fanout=fanout)

    @property
    def depth(self) -> int:
        """Layers of the model, and hops of a sample."""
        return self.layers or len(self.fanout) or (2 if self.full_batch else 3)

    @property
    def cache_budget(self) -> int | float | None:
        """`device_cache` as bytes, or as a share; None for as much as fits."""
        if self.device_cache == "auto":
            return None
        share = _share(self.device_cache)
        if share is not None and share <= 1:
            return share
        if share is not None or re.fullmatch(r"\s*0?\.\d*\s*", self.device_cache):  # as bytes it would be none
            raise ValueError(f"device_cache {self.device_cache!r} is no share of the features: write 0% to 100%")
        try:
            return parse_size(self.device_cache)
        except ValueError:
            raise ValueError(f"device_cache must be auto, bytes (4GiB) or a share (20%), not {self.device_cache!r}") from None

    @property
    def replicate_share(self) -> float:
        """`replicate` as a number from 0 to 1."""
        share = _share(self.replicate)
        if share is None or share > 1:
            raise ValueError(f"replicate must be a share of the nodes, as 20%, not {self.replicate!r}")
        return share

    @property
    def fanouts(self) -> tuple[int, ...]:
        """One per hop."""
        usual = (15, 10, 5)
        return self.fanout or (usual + usual[-1:] * self.depth)[: self.depth]


def _share(text: str) -> float | None:
    """A percentage as a number; None where it is none."""
    share = re.fullmatch(r"\s*(\d+(?:\.\d*)?)\s*%\s*", text)
    return None if share is None else float(share[1]) / 100
