"""Dropout between the layers of a model, drawn by many threads at once."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.utils._python_dispatch import is_in_torch_dispatch_mode

from headrace.kernels import draw_seed, dropout


class Dropout(nn.Dropout):
    """`torch.nn.Dropout`, whose numbers are our kernel's, seeded by torch's generator once per call.

    On a CPU torch draws one number after the other, which takes a quarter of a sampled step once its other parts are fast.
    """

    plain: ClassVar[Any] = nn.Dropout  # torch's class

    def forward(self, input: Tensor) -> Tensor:
        if not self.training or self.inplace or not 0 < self.p < 1 or not _is_usual(input):
            return super().forward(input)
        out: Tensor = _Dropped.apply(input, self.p, draw_seed())  # type: ignore[no-untyped-call]
        return out


class _Dropped(Function):
    """Its gradient drops the same elements, and so has a gradient itself."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, rate: float, seed: int) -> Tensor:  # type: ignore[override]
        ctx.rate, ctx.seed = rate, seed
        return dropout(x.detach(), rate, seed=seed)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:  # type: ignore[override]
        return _Dropped.apply(grad, ctx.rate, ctx.seed), None, None  # type: ignore[no-untyped-call]


def _is_usual(x: Any) -> bool:
    if torch.compiler.is_compiling() or type(x) is not Tensor or x.device.type != "cpu" or x.layout != torch.strided:
        return False
    if x.dtype not in (torch.float32, torch.float64, torch.bfloat16) or torch._C._is_tracing():  # type: ignore[attr-defined]
        return False
    return not is_in_torch_dispatch_mode() and torch._C._functorch.peek_interpreter_stack() is None
