"""The matrix products of a training step, found as it runs and then measured alone: what no step of the model can beat."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

_PRODUCTS = (torch.ops.aten.mm, torch.ops.aten.addmm, torch.ops.aten.bmm, torch.ops.aten.addmv, torch.ops.aten.baddbmm)


class Products(TorchDispatchMode):
    """Remembers the products that run inside it, by the shapes and layouts of their arguments.

    >>> import torch
    >>> with Products() as products:
    ...     _ = torch.ones(4, 3) @ torch.ones(3, 2)
    >>> products.operations
    48
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.asked: list[tuple[Any, list[Tensor]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket in _PRODUCTS:
            self.asked.append((func, [torch.empty_strided(a.shape, a.stride(), dtype=a.dtype, device=a.device) for a in args]))
        return func(*args, **(kwargs or {}))

    @property
    def operations(self) -> int:
        """Multiplications and additions."""
        return sum(2 * factors[-2].numel() * (factors[-1].shape[-1] if factors[-1].dim() > 1 else 1) for _, factors in self.asked)

    def alone(self) -> Callable[[], None]:
        """What does all of them again, on random numbers."""
        for _, factors in self.asked:
            for factor in factors:
                factor.normal_() if factor.is_contiguous() else factor.fill_(0.5)

        def work() -> None:
            for func, factors in self.asked:
                func(*factors)

        return work
