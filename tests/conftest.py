import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

REPOSITORY = Path(__file__).resolve().parent.parent

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as a shell starts what runs behind a prompt: tests interrupt themselves
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Torch computes with one thread: for sums that are to have the same bits, and sizes at which threads only wait."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def data_root() -> Path:
    """The folder of real datasets: HEADRACE_DATA, or `shared/data` beside the checkout."""
    root = Path(os.environ.get("HEADRACE_DATA", REPOSITORY.parent / "shared" / "data"))
    if not root.is_dir():
        pytest.skip("needs the real datasets: set HEADRACE_DATA to their folder")
    return root
