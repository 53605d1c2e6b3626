"""`Fast`: what PyG's layers have in common when their hot path is ours, and when it is PyG's after all."""

from __future__ import annotations

import copy
import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache, wraps
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import is_in_torch_dispatch_mode

from headrace.graph.topology.edge_rows import EdgeRows, carried, rows_of
from headrace.pyg.steps import Ends, scattered

_STEPS = ("propagate", "message", "aggregate", "update", "message_and_aggregate", "edge_update", "edge_updater", "explain_message")
_REPLACED = frozenset(_STEPS)  # methods, if they are attributes of one layer
_HOOKS = tuple(
    f"_{step}_forward{pre}_hooks"
    for step in ("propagate", "message", "aggregate", "message_and_aggregate", "edge_update")
    for pre in ("_pre", "")
)
_FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
_REDUCES = ("sum", "add", "mean", "max")


class Fast:
    """A mixin before PyG's class of a layer: built, described and saved as PyG does, with a `forward` of ours.

    `rows_for` says whether ours can be used for this call, and over which rows; where it returns None, PyG's own code runs. That
    is the case whenever something asks for PyG's single steps (hooks on them, an explainer, an overridden `message`), for inputs
    that are not plain tensors (sparse matrices, `EdgeIndex`), while a compiler or tracer looks on, and for small graphs. Of those
    `propagate` does what PyG's does, operation by operation, without what PyG has between them, which takes as long as they do.
    """

    pyg: ClassVar[Any]  # PyG's class
    reduces: ClassVar[tuple[str, ...]] = _REDUCES  # values of `aggr` that have a kernel
    takes: ClassVar[tuple[str, ...]] = ("x_j",)  # what `message` takes
    updates: ClassVar[tuple[str, ...]] = ()  # what `edge_update` takes
    # Below so many elements of messages (edges x width) PyG's path is taken, which starts faster. Measured on one core with edges
    # that are sorted for one pass, `bench pyg` repeats it.
    least: ClassVar[int] = 1 << 19
    least_on_gpu: ClassVar[int] = 1 << 27  # measured on an H200: below it what PyG launches takes less time than a sort and ours
    trims = False  # whether rows that no seed can reach are left out (`accelerate(model, trim=True)`)
    flow: str
    node_dim: int
    aggr: Any

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "pyg" in cls.__dict__:
            cls.__init__ = _constructed_as(cls, cls.pyg)  # type: ignore[method-assign]
            cls.__doc__ = cls.__doc__ or f"PyG's `{cls.pyg.__name__}` over compressed rows."

    @classmethod
    def refusal(cls, conv: Any) -> str | None:
        """Why a layer of PyG's class always takes PyG's own path, or None."""
        if conv.aggr not in cls.reduces:
            return f"aggr={conv.aggr!r} has no kernel"
        if conv.decomposed_layers != 1:
            return f"decomposed_layers={conv.decomposed_layers} asks for PyG's way of saving memory"
        return None

    def rows_for(self, edge_index: Any, source: Any, own: Any = None, size: Any = None) -> EdgeRows | None:
        """The rows to sum over from `source` to the targets, whose features are `own`; None where PyG's code is to run."""
        if torch.compiler.is_compiling():  # first: a compiler reads on until here
            return None
        if type(edge_index) is not Tensor or edge_index.dim() != 2 or edge_index.shape[0] != 2 or not _plain_rows(source):
            return None
        if self.trims and own is source and self.flow == "source_to_target":
            sampled = carried(edge_index)
            if sampled is not None and sampled.hops:
                return self._trimmed(sampled, source)
        if edge_index.shape[1] * source.shape[-1] < (self.least_on_gpu if source.is_cuda else self.least):
            return None
        if source.is_cuda and self.aggr == "max":  # its gradient reads every message, which PyG's has at hand
            return None
        if edge_index.dtype not in (torch.int64, torch.int32) or edge_index.layout != torch.strided:
            return None
        flipped = self.flow == "target_to_source"
        if own is not source and (flipped or (own is not None and not _plain_rows(own))):
            return None
        if not _supported(source.device) or edge_index.device != source.device:
            return None
        num_src = len(source)
        num_dst = len(own) if own is not None else num_src if size is None or size[1] is None else size[1]
        if size is not None and (size[0] not in (None, num_src) or size[1] not in (None, num_dst)):
            return None
        return rows_of(edge_index, num_src, num_dst, flipped=flipped) if self._is_usual() else None

    def _trimmed(self, sampled: EdgeRows, source: Tensor) -> EdgeRows | None:
        """Of a sampled batch, the rows whose neighbors' features are all there: each layer has a hop less than the one before."""
        usual = self._is_usual() and _supported(source.device) and sampled.indptr.device == source.device
        rows = sampled.within(len(source)) if usual else None
        if rows is None and len(source) < sampled.num_src:
            hops = len(sampled.hops) - 1
            reason = (
                f"the batch has {hops} hops, and this is layer {hops + 1}" if usual else "it has hooks, or is explained or traced"
            )
            raise ValueError(
                f"{type(self).__name__} was given the first {len(source)} of {sampled.num_src} nodes of a batch and cannot go on: "
                f"{reason}; call accelerate(model) without trim"
            )
        return rows

    def propagate(self, edge_index: Any, size: Any = None, **inputs: Any) -> Any:
        """Sum the messages of all edges, as PyG does it."""
        ends = self._ends(edge_index, size) if self.takes else None
        given = None if ends is None else ends.given(self.takes, inputs)
        if ends is not None and given is not None:
            with suppress(IndexError, RuntimeError):  # an id that is no target's, which PyG puts into words
                return scattered(self.messages(**given), ends.index, ends.count, self.aggr)
        return super().propagate(edge_index, size=size, **inputs)  # type: ignore[misc]

    def edge_updater(self, edge_index: Any, size: Any = None, **inputs: Any) -> Any:
        """What PyG computes of each edge before it sums."""
        ends = self._ends(edge_index, size) if self.updates else None
        given = None if ends is None else ends.given(self.updates, inputs)
        if given is None:
            return super().edge_updater(edge_index, size=size, **inputs)  # type: ignore[misc]
        return self.edge_update(**given)  # type: ignore[attr-defined]

    def messages(self, **given: Any) -> Tensor:
        """PyG's `message`, or the same numbers in fewer passes."""
        out: Tensor = self.message(**given)  # type: ignore[attr-defined]
        return out

    def _ends(self, edge_index: Any, size: Any) -> Ends | None:
        """The ends of plain edges that nobody watches; None for PyG's own `propagate`."""
        if torch.compiler.is_compiling() or type(edge_index) is not Tensor or size is not None or edge_index.dtype != torch.int64:
            return None
        if edge_index.dim() != 2 or edge_index.shape[0] != 2 or edge_index.layout != torch.strided or not self._is_usual():
            return None
        return Ends(edge_index, flipped=self.flow == "target_to_source")

    def _is_usual(self) -> bool:
        state = self.__dict__
        if state["_explain"] or state["_decomposed_layers"] != 1 or self.node_dim not in (0, -2) or self.aggr not in self.reduces:
            return False
        if any(map(state.__getitem__, _HOOKS)) or not _has_pyg_steps(type(self)):  # type: ignore[arg-type]
            return False
        if not _REPLACED.isdisjoint(state):  # a method replaced on this one layer
            return False
        if torch.compiler.is_compiling() or torch._C._is_tracing() or is_in_torch_dispatch_mode():  # type: ignore[attr-defined]
            return False
        return torch._C._functorch.peek_interpreter_stack() is None

    def _set_jittable_templates(self, raise_on_error: bool = False) -> None:
        """PyG writes code for a class when it first meets it. For ours that is the code of PyG's class."""
        if "pyg" not in type(self).__dict__:
            super()._set_jittable_templates(raise_on_error)  # type: ignore[misc]
            return
        with _as_pyg(self):
            self._set_jittable_templates(raise_on_error)

    def __prepare_scriptable__(self) -> Any:
        """TorchScript gets PyG's layer, which it can read. Weights are shared."""
        layer = copy.copy(self)
        layer.__class__ = self.pyg
        return layer


@contextmanager
def _as_pyg(layer: Any) -> Iterator[None]:
    own = layer.__class__
    layer.__class__ = own.pyg
    try:
        yield
    finally:
        layer.__class__ = own


def _constructed_as(cls: Any, pyg: Any) -> Any:
    """A constructor that builds PyG's layer and then makes it ours: what PyG notes of a class while building is of its own."""

    @wraps(pyg.__init__)
    def __init__(self: Any, *arguments: Any, **options: Any) -> None:  # noqa: N807
        if type(self) is not cls:  # of a subclass, which may have steps of its own
            pyg.__init__(self, *arguments, **options)
            return
        with _as_pyg(self):
            pyg.__init__(self, *arguments, **options)

    return __init__


@cache
def _has_pyg_steps(cls: Any) -> bool:
    """Whether a class computes its messages as PyG's does. (PyG itself sets `propagate` of a class to code made for it.)"""
    if any(getattr(cls, step, None) is not getattr(cls.pyg, step, None) for step in _STEPS[1:-1] if step != "edge_updater"):
        return False
    return not any("propagate" in vars(base) for base in cls.__mro__[: cls.__mro__.index(cls.pyg)] if base is not Fast)


def own_rows(own: Any, rows: EdgeRows) -> Any:
    """The targets' features: the first of the sources' where rows were trimmed."""
    return own if own is None or len(own) == rows.num_dst else own[: rows.num_dst]


def _plain_rows(x: Any) -> bool:
    return type(x) in (Tensor, nn.Parameter) and x.dim() == 2 and x.dtype in _FLOATS and x.layout == torch.strided


@cache
def _supported(device: torch.device) -> bool:
    return device.type == "cpu" or (device.type == "cuda" and importlib.util.find_spec("triton") is not None)
