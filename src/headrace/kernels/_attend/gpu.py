"""Attention on a GPU: which Triton kernels an output and its gradients take. Nothing here waits for the device."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from headrace.kernels._aggregate import gpu as _gpu
from headrace.kernels._on_gpu import on_gpu


def forward(x: Tensor, indptr: Tensor, indices: Tensor, **given: Any) -> tuple[Tensor, Tensor]:
    """`_triton_attend.attend`, after a look at where everything lies."""
    _check_devices(x, {"indptr": indptr, "indices": indices, **given})
    found: tuple[Tensor, Tensor] = on_gpu("_attend.triton_forward").attend(x, indptr, indices, **given)
    return found


def backward(
    grad: Tensor,
    peak: Tensor,
    x: Tensor,
    indptr: Tensor,
    indices: Tensor,
    transpose: tuple[Tensor | None, Tensor | None, Tensor | None],
    *,
    grad_x: Tensor | None,
    grad_source: Tensor | None,
    grad_target: Tensor | None,
    grad_attention: Tensor | None,
    **given: Any,
) -> None:
    """Fills in the gradients that are not None. A transpose that is not given, or not all of it, is made."""
    facts = on_gpu("_attend.triton_rows").row_gradients(
        grad, peak, x, indptr, indices, grad_target=grad_target, grad_attention=grad_attention, **given
    )
    if grad_x is None and grad_source is None:
        return
    begins, rows, order = transpose
    if begins is None or rows is None or len(begins) != len(x) + 1 or (order is None and given["dropout"]):
        begins, rows, order = _gpu.transposed(indptr, indices, len(x))
    _check_devices(x, {"reverse": begins})
    on_gpu("_attend.triton_columns").column_gradients(
        grad, facts, x, (begins, rows, rows if order is None else order), grad_x=grad_x, grad_source=grad_source, **given
    )


def _check_devices(x: Tensor, given: dict[str, Any]) -> None:
    for name, tensor in given.items():
        if isinstance(tensor, Tensor) and tensor.device != x.device:
            raise ValueError(f"{name} is on {tensor.device}, x is on {x.device}: move them to one device")
