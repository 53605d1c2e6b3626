"""Runs all attackers for as long as it is told, two at a time, each with rising seeds, and prints what they counted.

    make soak MINUTES=60

Every seed that fails is added to `seeds.json` beside this file, which a test replays from then on.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any

FOLDER = Path(__file__).parent
SEEDS = FOLDER / "seeds.json"
_AT_ONCE = 2
_OVERTIME = 600.0  # seconds that a portion may take after the time is over


@dataclass(frozen=True)
class Attacker:
    """A program of this folder. Portions are small, so that all attackers get on evenly."""

    name: str
    amount: str  # its option that says how much
    portion: int
    share: int = 1  # of the time

    @property
    def program(self) -> Path:
        return FOLDER / f"{self.name}.py"


ATTACKERS = (
    Attacker("kill", "--kills", 25, share=3),
    Attacker("fuzz_commands", "--commands", 100),
    Attacker("corrupt", "--cases", 100),
    Attacker("fuzz_api", "--calls", 1000),
    Attacker("fuzz_native", "--calls", 20_000),
)
_STRIDE = 1_000_000  # seeds from one portion to the next


class Soak:
    """Deals portions to `_AT_ONCE` workers until the time is over."""

    def __init__(self, minutes: float, seed: int) -> None:
        self.until = time.monotonic() + 60 * minutes
        self.lock, self.next_seed = Lock(), seed
        self.present = [attacker for attacker in ATTACKERS if attacker.program.is_file()]
        for attacker in ATTACKERS:
            if attacker not in self.present:
                print(f"{attacker.name}.py is not here: its attacks are left out", flush=True)
        self.seconds = Counter({attacker.name: 0.0 for attacker in self.present})
        self.sums: dict[str, Counter[str]] = {attacker.name: Counter() for attacker in self.present}
        self.failures: list[dict[str, Any]] = []

    def run(self) -> None:
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            for worker in [pool.submit(self._work) for _ in range(_AT_ONCE)]:
                worker.result()

    def _work(self) -> None:
        while time.monotonic() < self.until:
            with self.lock:
                attacker = min(self.present, key=lambda one: self.seconds[one.name] / one.share)  # the one that is the most behind
                self.seconds[attacker.name] += 1.0  # so that the other worker takes another
                seed, self.next_seed = self.next_seed, self.next_seed + _STRIDE
            began = time.monotonic()
            answer, said = self._portion(attacker, seed)
            with self.lock:
                self.seconds[attacker.name] += time.monotonic() - began - 1.0
                self._count(attacker, seed, answer, said)

    def _portion(self, attacker: Attacker, seed: int) -> tuple[dict[str, Any] | None, str]:
        words = [sys.executable, str(attacker.program), "--seed", str(seed), attacker.amount, str(attacker.portion), "--json"]
        limit = max(self.until - time.monotonic(), 0.0) + _OVERTIME
        try:
            done = subprocess.run(words, capture_output=True, text=True, timeout=limit, check=False, env=os.environ)
        except subprocess.TimeoutExpired:
            return None, "it did not end in time"
        try:
            return json.loads(done.stdout.strip().splitlines()[-1]), ""
        except (ValueError, IndexError):
            return None, f"it ended with {done.returncode}: {done.stderr[-2000:]}"

    def _count(self, attacker: Attacker, seed: int, answer: dict[str, Any] | None, said: str) -> None:
        sums = self.sums[attacker.name]
        if answer is None:
            sums["broken"] += 1
            self.failures.append({"attacker": attacker.name, "seed": seed, "what": said})
            return
        for name, value in answer.items():
            if isinstance(value, int) and name != "seed":
                sums[name] += value
        failures = answer.get("failures", [])
        for failure in failures if isinstance(failures, list) else [{"seed": seed, "count": failures}] if failures else []:
            named = failure if isinstance(failure, dict) else {"what": str(failure)}
            self.failures.append({"attacker": attacker.name, "seed": named.pop("seed", seed), **named})
            print("FAILED", json.dumps(self.failures[-1])[:2000], flush=True)
        print(f"{attacker.name:<14} seed {seed:>12}: {dict(sums)}", flush=True)

    def table(self) -> str:
        """What was counted, as a table of Markdown."""
        kill, commands = self.sums.get("kill", Counter()), self.sums.get("fuzz_commands", Counter())
        corrupt, every = self.sums.get("corrupt", Counter()), sum(self.sums.values(), Counter())
        calls = sum(self.sums[name]["calls"] for name in ("fuzz_api", "fuzz_native") if name in self.sums)
        lines = {
            "kills (SIGKILL, SIGTERM, SIGINT)": kill["kills"],
            "disks full, too small or read-only": kill["faults"],
            "corruptions": kill["corruptions"],
            "attacks whose end has the bits of the uncut run": f"{kill['equal']:,} of {kill['attacks']:,}",
            "fuzzed calls": calls,
            "bad commands": commands["commands"],
            "damaged files": corrupt["cases"],
            "crashes": every["crashes"],
            "hangs": every["hangs"],
            "tracebacks": every["tracebacks"],
            "failures in all": len(self.failures),
        }
        rows = [f"| {name} | {value:,} |" if isinstance(value, int) else f"| {name} | {value} |" for name, value in lines.items()]
        return "\n".join(["| what | count |", "| --- | ---: |", *rows])


def remember(failures: list[dict[str, Any]], file: Path = SEEDS) -> None:
    """Add failing seeds to those that a test replays."""
    known = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else []
    have = {(one["attacker"], one["seed"]) for one in known}
    new = [one for one in failures if (one["attacker"], one["seed"]) not in have]
    if new:
        file.write_text(json.dumps(known + new, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60.0, help="how long")
    parser.add_argument("--seed", type=int, default=int(time.time()) % 10**6 * 1000, help="the first (default: from the clock)")
    arguments = parser.parse_args()
    soak = Soak(arguments.minutes, arguments.seed)
    soak.run()
    print(soak.table())
    for failure in soak.failures:
        print(json.dumps(failure)[:2000])
    remember(soak.failures)
    sys.exit(1 if soak.failures else 0)


if __name__ == "__main__":
    main()
