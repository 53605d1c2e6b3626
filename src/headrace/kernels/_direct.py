"""Custom ops, called without torch's dispatcher where nobody listens to it.

A custom op is what `torch.compile` and its kind can trace. But a call through it takes a tenth of a millisecond in Python, and its
gradient twice that, which is more than the kernels of a small step. In plain eager code the same functions are therefore
called by an `autograd.Function`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import is_in_torch_dispatch_mode

_PLAIN = torch._C._disabled_torch_dispatch_impl  # what tensors have that are no subclass with a dispatch of its own


def direct(
    op: Any, run: Callable[..., Any], remember: Callable[..., None], backward: Callable[..., Any], *, twice: bool = False
) -> Callable[..., Any]:
    """A function that calls `run`, or `op` where it is traced. `op` is registered with the same `remember` and `backward`.

    twice: whether `backward` is made of what torch can differentiate. Where it is not, `create_graph=True` is refused: autograd
    does not see our kernels and would leave their part of a second gradient out.
    """

    class Direct(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *inputs: Any) -> Any:
            output = run(*inputs)
            remember(ctx, inputs, output)
            return output

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            if torch.is_grad_enabled() and not twice:  # which in a backward pass is what create_graph says
                raise RuntimeError(
                    f"create_graph=True asks for gradients of the gradient of {op._qualname}, which it does not have: use the "
                    "kernel's reference in plain torch"
                )
            return backward(ctx, *grads)

    def call(*inputs: Any) -> Any:
        if torch.compiler.is_compiling() or is_in_torch_dispatch_mode() or torch._C._functorch.peek_interpreter_stack() is not None:
            return op(*inputs)
        if any(isinstance(value, Tensor) and type(value).__torch_dispatch__ is not _PLAIN for value in inputs):
            return op(*inputs)  # a FakeTensor or its kind, which has no memory to read
        return Direct.apply(*inputs)  # type: ignore[no-untyped-call]

    return call
