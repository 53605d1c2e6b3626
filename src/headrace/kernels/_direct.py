"""Custom ops, called without torch's dispatcher where nobody listens to it.

A custom op is what `torch.compile` and its kind can trace. But a call through it takes a tenth of a millisecond in Python, and its
gradient twice that, which is more than the kernels of a small step. In plain eager code the same functions are therefore
called by an `autograd.Function`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import is_in_torch_dispatch_mode


def direct(op: Any, run: Callable[..., Any], remember: Callable[..., None], backward: Callable[..., Any]) -> Callable[..., Any]:
    """A function that calls `run`, or `op` where it is traced. `op` is registered with the same `remember` and `backward`."""

    class Direct(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *inputs: Any) -> Any:
            output = run(*inputs)
            remember(ctx, inputs, output)
            return output

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            return backward(ctx, *grads)

    def call(*inputs: Any) -> Any:
        if torch.compiler.is_compiling() or is_in_torch_dispatch_mode() or torch._C._functorch.peek_interpreter_stack() is not None:
            return op(*inputs)
        return Direct.apply(*inputs)  # type: ignore[no-untyped-call]

    return call
