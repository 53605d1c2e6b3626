"""Jobs of several ranks that a benchmark starts: over loopback, or each rank in a network namespace of its own."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

from headrace.bench.namespaces import INTERFACE, Namespaces

_WAIT = 1800  # seconds for all ranks of a job


def run_ranks(module: str, *arguments: str | int, size: int, threads: int, network: Namespaces | None = None) -> None:
    """Call `rank(*arguments)` of a module in `size` processes, which torchrun's environment joins; to their end.

    Each has as many processors as threads, since our layers take all that they may run on; they share where there are too few.
    """
    address, interface = ("127.0.0.1", "lo") if network is None else (network.members[0].address, INTERFACE)
    common = {
        "WORLD_SIZE": str(size),
        "LOCAL_WORLD_SIZE": str(size),
        "MASTER_ADDR": address,
        "MASTER_PORT": str(_free_port()),
        "GLOO_SOCKET_IFNAME": interface,
        "OMP_NUM_THREADS": str(threads),
        "TORCH_CPP_LOG_LEVEL": "ERROR",  # in a namespace addresses have no names, of which torch warns
    }
    work = f"from {module} import rank; rank({', '.join(map(repr, arguments))})"
    jobs: list[subprocess.Popen[bytes]] = []
    try:
        for rank in range(size):
            prefix = [] if network is None else network.members[rank].prefix
            environment = {**os.environ, **common, "RANK": str(rank), "LOCAL_RANK": str(rank)}
            command = [*prefix, sys.executable, "-c", f"{_on_processors(rank, threads)}; {work}"]
            jobs.append(subprocess.Popen(command, env=environment))
        codes = [job.wait(_WAIT) for job in jobs]
    finally:
        for job in jobs:
            job.kill()
            job.wait()
    if any(codes):
        raise RuntimeError(f"ranks ended with status {codes}")


def _on_processors(rank: int, threads: int) -> str:
    """The statement by which a rank takes its processors."""
    if not hasattr(os, "sched_getaffinity"):
        return "pass"
    allowed = sorted(os.sched_getaffinity(0))
    own = {allowed[(rank * threads + number) % len(allowed)] for number in range(threads)}
    return f"import os; os.sched_setaffinity(0, {own})"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
