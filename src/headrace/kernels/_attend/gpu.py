"""Attention on a GPU: which Triton kernels an output and its gradients take. Nothing here waits for the device."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from headrace.kernels._aggregate import gpu as _gpu
from headrace.kernels._attend.scores import Scores
from headrace.kernels._on_gpu import on_gpu

Transpose = tuple[Tensor | None, Tensor | None, Tensor | None]


def forward(x: Tensor, indptr: Tensor, indices: Tensor, scores: Scores, **sizes: Any) -> tuple[Tensor, Tensor]:
    """`triton_forward.attend`, after a check that everything is on the device of x."""
    _check_devices(x, {"indptr": indptr, "indices": indices, **scores.tensors, "seed": scores.seed})
    outputs: tuple[Tensor, Tensor] = on_gpu("_attend.triton_forward").attend(x, indptr, indices, scores, **sizes)
    return outputs


def backward(
    grad: Tensor,
    peak: Tensor,
    x: Tensor,
    indptr: Tensor,
    indices: Tensor,
    transpose: Transpose,
    scores: Scores,
    *,
    grad_x: Tensor | None,
    grad_source: Tensor | None,
    grad_target: Tensor | None,
    grad_attention: Tensor | None,
    **sizes: Any,
) -> None:
    """Fills in the gradients that are not None. A transpose that is not complete is made."""
    facts = on_gpu("_attend.triton_rows").row_gradients(
        grad, peak, x, indptr, indices, scores, grad_target=grad_target, grad_attention=grad_attention, **sizes
    )
    if grad_x is None and grad_source is None:
        return
    begins, rows, order = transpose
    if begins is None or rows is None or len(begins) != len(x) + 1 or (order is None and scores.dropout):
        begins, rows, order = _gpu.transposed(indptr, indices, len(x))
    _check_devices(x, {"reverse": begins})
    whole = (begins, rows, rows if order is None else order)
    on_gpu("_attend.triton_columns").column_gradients(
        grad, facts, x, whole, scores, grad_x=grad_x, grad_source=grad_source, **sizes
    )


def _check_devices(x: Tensor, named: dict[str, Any]) -> None:
    for name, tensor in named.items():
        if isinstance(tensor, Tensor) and tensor.device != x.device:
            raise ValueError(f"{name} is on {tensor.device}, x is on {x.device}: move them to one device")
