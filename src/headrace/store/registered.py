"""Host memory made known to CUDA, so that GPUs read it in place and copies from it need no staging."""

from __future__ import annotations

import torch
from torch import Tensor

_PORTABLE_AND_MAPPED = 1 | 2  # cudaHostRegisterPortable | cudaHostRegisterMapped: for every GPU, at its own address


def register(rows: Tensor) -> bool:
    """Page-lock the memory of `rows` and map it for all GPUs; True once it is done."""
    if not torch.cuda.is_available():
        raise ValueError("pin=True needs a GPU that torch sees: use pin=False, or leave it out")
    torch.cuda.init()  # type: ignore[no-untyped-call]
    size = rows.untyped_storage().nbytes() - rows.storage_offset() * rows.element_size()
    runtime = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    code = int(runtime.cudaHostRegister(rows.data_ptr(), size, _PORTABLE_AND_MAPPED))
    if code != 0:
        raise RuntimeError(
            f"cudaHostRegister refused {size:,} bytes with error {code}: the limit of locked memory (ulimit -l) or of the "
            "container may be too low; pin=False keeps the rows unregistered"
        )
    return True


def unregister(rows: Tensor) -> None:
    """Undo `register`. At the end of a process CUDA may be gone before; then there is nothing to undo."""
    torch.cuda.cudart().cudaHostUnregister(rows.data_ptr())  # type: ignore[no-untyped-call]
