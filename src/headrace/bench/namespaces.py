"""Machines on a slow network, in one: network namespaces that a bridge joins, each behind a link of some rate."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from pathlib import Path

INTERFACE = "headrace"  # of every namespace, which gloo is told by GLOO_SOCKET_IFNAME
_BURST = 256 << 10  # bytes that may leave at once: above the largest packet (64 KiB), so that none is cut into small ones
_QUEUE = "100ms"  # how long a packet may wait for its turn before it is dropped
_UNITS = {"": 1, "k": 1e3, "m": 1e6, "g": 1e9}
_made = count()


def missing() -> str:
    """Why namespaces cannot be made here; empty where they can."""
    if not hasattr(os, "geteuid") or os.geteuid() != 0:
        return "network namespaces need root"
    if absent := [name for name in ("ip", "tc") if shutil.which(name) is None]:
        return f"network namespaces need the command {' and '.join(absent)} (iproute2)"
    try:
        with Namespaces(1, rate=1e9):
            return ""
    except OSError as error:
        return f"network namespaces cannot be made here: {error}"


def bits_per_second(text: str) -> float:
    """A rate as people write it; 0 is no limit.

    >>> bits_per_second("1Gbit"), bits_per_second("250 Mbit"), bits_per_second("0")
    (1000000000.0, 250000000.0, 0.0)
    """
    number = re.fullmatch(r"\s*(\d+(?:\.\d*)?)\s*([kmg]?)(?:bit)?(?:/s)?\s*", text, flags=re.IGNORECASE)
    if number is None:
        raise ValueError(f"a rate is a number of bits per second, as 1Gbit or 250Mbit (0: no limit), not {text!r}")
    return float(number[1]) * _UNITS[number[2].lower()]


@dataclass(frozen=True)
class Namespace:
    """One of the machines: a command runs in it after `prefix`."""

    name: str
    address: str

    @cached_property
    def prefix(self) -> list[str]:
        return ["ip", "netns", "exec", self.name]


def sent_bytes() -> int:
    """Bytes that have left the link of the namespace that this process is in, headers of packets included; 0 outside of one."""
    counter = Path("/sys/class/net") / INTERFACE / "statistics" / "tx_bytes"
    return int(counter.read_text()) if counter.exists() else 0


class Namespaces:
    """`members`, as many as `size`, with one bridge between them. They are there within `with`, and gone after it.

    rate: of each one's link in bits per second, out of it and into it; 0 for no limit.
    """

    def __init__(self, size: int, *, rate: float = 0.0) -> None:
        word = f"headrace-{os.getpid()}-{next(_made)}"
        self.rate = rate
        self.members = [Namespace(f"{word}-{number}", f"10.213.7.{number + 1}") for number in range(size)]
        self._bridge = f"{word}-bridge"

    def __enter__(self) -> Namespaces:
        try:
            _run("ip", "netns", "add", self._bridge)
            _run("ip", "-n", self._bridge, "link", "add", "bridge", "type", "bridge", "forward_delay", "0")
            _run("ip", "-n", self._bridge, "link", "set", "bridge", "up")
            for number, member in enumerate(self.members):
                self._join(member, f"port{number}")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """Processes in them must have ended. Links and the bridge end with their namespaces."""
        for name in (*(member.name for member in self.members), self._bridge):
            subprocess.run(["ip", "netns", "del", name], capture_output=True)

    def cut(self, number: int) -> None:
        """Take a member off the bridge: its packets vanish, and no end notices."""
        _run("ip", "-n", self._bridge, "link", "set", f"port{number}", "nomaster")

    def _join(self, member: Namespace, port: str) -> None:
        _run("ip", "netns", "add", member.name)
        peer = ("peer", port, "netns", self._bridge)
        _run("ip", "link", "add", INTERFACE, "netns", member.name, "type", "veth", *peer)
        _run("ip", "-n", self._bridge, "link", "set", port, "master", "bridge", "up")
        _run("ip", "-n", member.name, "addr", "add", f"{member.address}/24", "dev", INTERFACE)
        for device in (INTERFACE, "lo"):
            _run("ip", "-n", member.name, "link", "set", device, "up")
        for name, device in ((member.name, INTERFACE), (self._bridge, port)) if self.rate else ():
            limit = ("rate", f"{self.rate:.0f}bit", "burst", str(_BURST), "latency", _QUEUE)
            _run("tc", "-n", name, "qdisc", "add", "dev", device, "root", "tbf", *limit)


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise OSError(f"{' '.join(command)}: {done.stderr.strip() or f'status {done.returncode}'}")
    return done.stdout
