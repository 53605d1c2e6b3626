"""Which device is meant."""

from __future__ import annotations

import torch


def device_of(device: str | torch.device) -> torch.device:
    """The CPU or a GPU, the latter by its number; an error where torch sees none."""
    try:
        chosen = torch.device(device)
    except RuntimeError:
        raise ValueError(f"device must be cpu or cuda (or cuda:0, ...), not {device!r}") from None
    if chosen.type == "cpu":
        return torch.device("cpu")
    if chosen.type != "cuda":
        raise ValueError(f"device must be 'cpu' or 'cuda', not {str(device)!r}")
    if not torch.cuda.is_available():
        raise ValueError(f"device={str(device)!r}, but torch sees no GPU here: use device='cpu'")
    return torch.device("cuda", torch.cuda.current_device() if chosen.index is None else chosen.index)
