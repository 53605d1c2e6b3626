"""Attention over events on a GPU: which Triton kernels it takes. Nothing here waits for the device."""

from __future__ import annotations

from torch import Tensor

from headrace.kernels._aggregate import gpu as _gpu
from headrace.kernels._attend_time.events import Events
from headrace.kernels._on_gpu import launching, on_gpu


def forward(events: Events, out: Tensor, score: Tensor, peak: Tensor) -> None:
    """Fills in all three, after a check that everything is on the device of x."""
    for name, tensor in {**events.named, "seed": events.seed}.items():
        if isinstance(tensor, Tensor) and tensor.device != events.x.device:
            raise ValueError(f"{name} is on {tensor.device}, x is on {events.x.device}: move them to one device")
    with launching(events.x.device):
        on_gpu("_attend_time.triton_forward").attend_time(events, out, score, peak)


def backward(
    grad: Tensor,
    out: Tensor,
    score: Tensor,
    peak: Tensor,
    events: Events,
    *,
    grad_query: Tensor,
    grad_x: Tensor | None,
    grad_time: Tensor | None,
) -> None:
    """Fills in the gradients that are not None."""
    with launching(events.x.device):
        coefficients = on_gpu("_attend_time.triton_gradient").row_gradients(
            grad, out, score, peak, events, grad_query=grad_query, grad_time=grad_time
        )
        if grad_x is not None:
            transpose = _gpu.transposed(events.indptr, events.indices, len(events.x))
            on_gpu("_attend_time.triton_gradient").column_gradients(grad, coefficients, events, transpose, grad_x)
