"""Jobs of several processes with torchrun's environment, started by a test."""

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import warm


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Job:
    """Ranks of a script: their processes, and what each wrote; `apart`: what goes to stderr is in a file of its own."""

    def __init__(self, script, args, *, size, folder, address="127.0.0.1", prefixes=None, environments=None, apart=False):
        self.folder, port = Path(folder), free_port()
        self.processes = []
        for rank in range(size):
            environment = os.environ | {
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(size),
                "LOCAL_WORLD_SIZE": str(size),
                "MASTER_ADDR": address,
                "MASTER_PORT": str(port),
                "GLOO_SOCKET_IFNAME": "lo",
                **((environments or {}).get(rank, {})),
            }
            said, prefix = self.folder / f"said.{rank}", (prefixes or {}).get(rank)
            if prefix is None:
                errors = self.folder / f"errors.{rank}" if apart else None
                self.processes.append(warm.Python(script, *args, said=said, errors=errors, environment=environment))
                continue
            with open(said, "wb") as file:
                command = [*prefix, sys.executable, str(script), *map(str, args)]
                self.processes.append(subprocess.Popen(command, env=environment, stdout=file, stderr=file))

    def said(self, rank):
        return (self.folder / f"said.{rank}").read_text()

    def wait(self, seconds):
        """Exit statuses, when all have ended; None for those that have not after so many seconds, which are killed."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and any(process.poll() is None for process in self.processes):
            time.sleep(0.02)
        return [process.poll() for process in self.processes]

    def end(self):
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.wait()


def wait_for_files(paths, seconds=90):
    deadline = time.monotonic() + seconds
    while not all(Path(path).exists() and Path(path).read_text() for path in paths):
        assert time.monotonic() < deadline, f"not there after {seconds} s: {paths}"
        time.sleep(0.02)
    return [Path(path).read_text() for path in paths]
