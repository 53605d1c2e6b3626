"""`Limits`: what AWS allows a function, and what its network does to a call."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Of one function."""

    payload: int = 6 << 20  # bytes of a call, each way
    seconds: float = 900.0  # that a call may take
    memory: int = 1769  # MB that a worker may hold; AWS gives one vCPU with 1,769
    concurrency: int = 2  # calls at a time; more are answered by 429
    latency: float = 0.0  # seconds added to each call
    bandwidth: float = 0.0  # Mbit/s of each worker; 0 has no limit

    def __post_init__(self) -> None:
        if min(self.payload, self.seconds, self.memory, self.concurrency) <= 0 or min(self.latency, self.bandwidth) < 0:
            raise ValueError(f"limits must be positive, latency and bandwidth not negative: {self}")

    def transfer(self, size: int) -> float:
        """Seconds that so many bytes take."""
        return size * 8e-6 / self.bandwidth if self.bandwidth else 0.0
