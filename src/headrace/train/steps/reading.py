"""Numbers on their way from a device to the host."""

from __future__ import annotations

import torch
from torch import Tensor


class Reading:
    """Single numbers, copied to the host when the device comes to it. `take` waits for that, not for what was launched since.

    >>> import torch
    >>> from headrace.train.steps.reading import Reading
    >>> Reading(torch.tensor(0.5), 3.0).take()
    [0.5, 3.0]
    """

    def __init__(self, *numbers: Tensor | float) -> None:
        self._ended: torch.cuda.Event | None = None
        on_gpu = [n.detach() for n in numbers if isinstance(n, Tensor) and n.is_cuda]
        if not on_gpu:
            self._values = [float(n.detach() if isinstance(n, Tensor) else n) for n in numbers]
            return
        device = on_gpu[0].device
        on_device = torch.stack([torch.as_tensor(n, dtype=torch.float64, device=device).detach().reshape(()) for n in numbers])
        self._host = torch.empty(len(numbers), dtype=torch.float64, pin_memory=True)
        self._host.copy_(on_device, non_blocking=True)
        self._ended = torch.cuda.Event()
        self._ended.record()

    @property
    def on_their_way(self) -> bool:
        return self._ended is not None

    def take(self) -> list[float]:
        if self._ended is not None:
            self._ended.synchronize()
            self._values, self._ended = self._host.tolist(), None
        return self._values
