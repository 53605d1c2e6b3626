"""Kills and starves every stateful command at random moments, lets it go on, and compares the end with an uncut run, bit for bit.

    python tests/faults/kill.py --seed 0 --kills 100

Attack number i has seed S + i, which decides the command, the faults and their moments, as shares of the time that an uncut run
takes. Faults: SIGKILL, SIGTERM and SIGINT; a full disk (a small tmpfs where this process may mount one, and the largest size of a
file anywhere); a disk that cannot be written; a disk that is slow to flush. After up to three faults the command runs to its end.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from attack import command_line, seeds_of, tell
from children import Child, Ended
from stateful import Case, Inputs, Work, cases

_LIMIT = 60.0  # seconds that a command may take
_RARELY = {"node on two ranks": 0.15}  # how often a case is chosen beside the others: a rank that is left waits for the dead one
_SIGNALS = (signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
_DISK = ("full", "full", "small", "read-only")
_ROOM = 256 << 20


@dataclass
class Counts:
    """What came of the attacks."""

    seed: int
    attacks: int = 0
    kills: int = 0  # signals that met a command at work
    faults: int = 0  # of the disk
    resumes: int = 0  # commands that went on after a fault, or began again
    equal: int = 0  # attacks whose end had the bits of the uncut run
    corruptions: int = 0
    crashes: int = 0
    hangs: int = 0
    tracebacks: int = 0
    failures: list[dict[str, Any]] = field(default_factory=list)


class Killer:
    """Attacks commands whose files are below `folder`."""

    def __init__(self, folder: Path, *, only: str | None = None) -> None:
        self.folder = folder
        inputs = Inputs.make(folder / "inputs")
        every = cases(inputs)
        self.cases = [case for case in every if case.name == only] or [case for case in every if (only or "") in case.name]
        for number, work in enumerate(inputs.trained_by() if any(case.reads_runs for case in self.cases) else []):
            ended = Child(work, folder / f"input-{number}.log").finish(_LIMIT)
            if ended.code:
                raise RuntimeError(f"the runs to read could not be made: {ended.output}")
        if not self.cases:
            raise ValueError(f"no command is called {only!r}: one of {', '.join(case.name for case in every)}")
        self.uncut: dict[str, tuple[str, float, int]] = {}  # digest, seconds and bytes by case
        self.mounts = _may_mount(folder)

    def reference(self, case: Case) -> tuple[str, float, int]:
        """What the command ends with if nothing happens to it."""
        if case.name not in self.uncut:
            out = self._place(self.folder / f"uncut-{len(self.uncut)}", case)
            ended = self._run(case.start(out), case, out, [])[0]
            if ended.code:
                raise RuntimeError(f"{case.name} fails by itself: {ended.output}")
            size = sum(file.stat().st_size for file in out.parent.rglob("*") if file.is_file())
            self.uncut[case.name] = case.digest(out), ended.seconds, size
        return self.uncut[case.name]

    def attack(self, seed: int, counts: Counts) -> None:
        """One attack: some faults, then the rest of the command, and what came of it."""
        dice = random.Random(seed)
        case = dice.choices(self.cases, [_RARELY.get(case.name, 1.0) for case in self.cases])[0]
        wanted, seconds, size = self.reference(case)
        folder = self.folder / f"attack-{seed}"
        folder.mkdir()
        said: list[str] = []
        before = (counts.corruptions, counts.crashes, counts.hangs, counts.tracebacks)
        counts.attacks += 1
        try:
            with _Disk(folder / "disk", mounts=self.mounts) as disk:
                out = self._place(disk.path, case)
                done = False
                for number in range(dice.randint(1, 3)):
                    work = partial(case.start if number == 0 else case.resume, out)
                    done = self._fault(case, work, out, disk, dice, seconds, size, counts, said)
                    if number:
                        counts.resumes += 1
                    if case.one_shot:  # a signal may come after its last rename
                        done |= self._check_whole(case, out, wanted, counts, said)
                    if done:
                        break
                if not done:
                    counts.resumes += 1
                    self._judge(self._run(case.resume(out), case, out, []), {0}, counts, said)
                self._compare(case, out, wanted, counts, said)
        finally:
            failed = (counts.corruptions, counts.crashes, counts.hangs, counts.tracebacks) != before
            if failed:
                counts.failures.append({"seed": seed, "command": case.name, "what": said[-6:]})
            shutil.rmtree(folder, ignore_errors=True)

    def _place(self, folder: Path, case: Case) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        suffix = {"export": ".parquet", "predict": ".parquet", "export as npy": ".npy", "report": ".html"}.get(case.name, "")
        return folder / f"out{suffix}"

    def _fault(
        self,
        case: Case,
        work: Callable[[], Work],
        out: Path,
        disk: _Disk,
        dice: random.Random,
        seconds: float,
        size: int,
        counts: Counts,
        said: list[str],
    ) -> bool:
        """Run the command into a fault. True if it ended well all the same."""
        sync = dice.choice([0.0, 0.0, dice.uniform(0.001, 0.02)])
        if dice.random() < 0.75 or case.ranks > 1:
            number, moment = dice.choice(_SIGNALS), dice.uniform(0.0, 1.05) * seconds
            said.append(f"{signal.Signals(number).name} after {moment:.3f} s")
            ended = self._run(work(), case, out, [(moment, number)], sync_seconds=sync, dice=dice)
            counts.kills += any(one.code != 0 for one in ended)
            allowed = {0, 1, 2, 130, -number} if case.ranks == 1 else {0, 1, 2, 130, 143, -number, -signal.SIGKILL}
        else:
            kind, room = dice.choice(_DISK), int(dice.uniform(0.0, 1.2) * size)
            said.append(f"the disk is {kind}, {room} bytes")
            counts.faults += 1
            with disk.fault(kind, room) as file_bytes:
                ended = self._run(work(), case, out, [], file_bytes=file_bytes, sync_seconds=sync)
            allowed = {0, 2}
        self._judge(ended, allowed, counts, said)
        return all(one.code == 0 for one in ended)

    def _run(
        self,
        work: Work,
        case: Case,
        out: Path,
        signals: list[tuple[float, int]],
        *,
        file_bytes: int | None = None,
        sync_seconds: float = 0.0,
        dice: random.Random | None = None,
    ) -> list[Ended]:
        log = self.folder / f"{out.parent.parent.name}.log"
        started = [
            Child(
                work,
                log.with_suffix(f".{rank}.log"),
                file_bytes=file_bytes,
                sync_seconds=sync_seconds,
                environment=environment,
            )
            for rank, environment in enumerate(_ranks(case.ranks))
        ]
        for moment, number in signals:
            victims = started if dice is None or dice.random() < 0.5 else [dice.choice(started)]
            until = started[0].began + moment
            while time.monotonic() < until:
                time.sleep(min(0.002, max(until - time.monotonic(), 0.0)))
            for child in victims:
                child.send(number)
        return [child.finish(_LIMIT) for child in started]

    def _judge(self, ended: list[Ended], allowed: set[int], counts: Counts, said: list[str]) -> None:
        """Count what no fault excuses."""
        for one in ended:
            said.append(f"ended with {one.code}: {' '.join(one.output[-400:].split())}")
            counts.hangs += one.hung
            counts.crashes += one.crashed
            told = one.traceback and " failed:" not in one.output  # a rank repeats the last words of another
            counts.tracebacks += not one.hung and (told or (one.code not in allowed and not one.crashed))

    def _check_whole(self, case: Case, out: Path, wanted: str, counts: Counts, said: list[str]) -> bool:
        """A result that is there after a fault is the whole one; whether there is one."""
        if case.name == "import" and not out.exists():
            return False
        try:
            same = case.digest(out) == wanted
        except FileNotFoundError:
            return False
        except Exception as error:
            same = False
            said.append(f"after a fault: {error}")
        counts.corruptions += not same
        return same

    def _compare(self, case: Case, out: Path, wanted: str, counts: Counts, said: list[str]) -> None:
        try:
            same = case.digest(out) == wanted
            said.append("the end is the same" if same else "the end differs from the uncut run's")
        except Exception as error:
            same = False
            said.append(f"the end cannot be read: {type(error).__name__}: {error}")
        counts.equal += same
        counts.corruptions += not same


def _ranks(count: int) -> list[dict[str, str]]:
    if count == 1:
        return [{}]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {"WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    shared["GLOO_SOCKET_IFNAME"] = "lo"
    shared["HEADRACE_JOIN_SECONDS"] = "8"  # torchrun would end a rank that waits for one that is gone; here nobody does
    return [shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(count)]


def _may_mount(folder: Path) -> bool:
    """Whether this process may mount a disk of its own."""
    probe = folder / "probe"
    probe.mkdir()
    mounted = os.geteuid() == 0 and _mount("-t", "tmpfs", "-o", "size=64k", "tmpfs", str(probe))
    if mounted:
        subprocess.run(["umount", str(probe)], check=False, capture_output=True)
    return mounted


def _mount(*arguments: str) -> bool:
    try:
        return subprocess.run(["mount", *arguments], check=False, capture_output=True).returncode == 0
    except OSError:
        return False


class _Disk:
    """A place for files that can be full, read-only or short of room for large files."""

    def __init__(self, path: Path, *, mounts: bool) -> None:
        self.path, self.mounts = path, mounts

    def __enter__(self) -> _Disk:
        self.path.mkdir()
        self.mounts = self.mounts and _mount("-t", "tmpfs", "-o", f"size={_ROOM}", "tmpfs", str(self.path))
        return self

    def __exit__(self, *error: object) -> None:
        if self.mounts:
            subprocess.run(["umount", "-l", str(self.path)], check=False, capture_output=True)

    def fault(self, kind: str, room: int) -> _Fault:
        """Within, the disk is `full` after `room` more bytes, `read-only`, or takes no file larger than that (`small`)."""
        return _Fault(self, kind, room)


class _Fault:
    def __init__(self, disk: _Disk, kind: str, room: int) -> None:
        self.disk, self.room = disk, room
        self.kind = kind if disk.mounts else "small"

    def __enter__(self) -> int | None:
        if self.kind == "full":
            used = shutil.disk_usage(self.disk.path).used
            self._again(f"remount,size={max(used + self.room, 4096)}")
        elif self.kind == "read-only":
            self._again("remount,ro")
        return self.room if self.kind == "small" else None

    def __exit__(self, *error: object) -> None:
        if self.kind != "small":
            self._again(f"remount,rw,size={_ROOM}")

    def _again(self, options: str) -> None:
        _mount("-o", options, str(self.disk.path))


def run(seed: int, kills: int, *, only: str | None = None, seeds: Sequence[int] = ()) -> Counts:
    """Attack until so many signals have met a command at work; or make the attacks of `seeds`."""
    counts = Counts(seed)
    with tempfile.TemporaryDirectory(prefix="headrace-kill-", ignore_cleanup_errors=True) as folder:
        killer = Killer(Path(folder), only=only)
        for one in seeds:
            killer.attack(one, counts)
        while not seeds and counts.kills < kills and counts.attacks < 4 * kills + 20:
            killer.attack(seed + counts.attacks, counts)
    return counts


def main() -> None:
    """The command."""
    parser = command_line(__doc__, "--kills", 20, "signals that meet a command at work")
    parser.add_argument("--only", help="attack only the command of this name, or those whose names hold it")
    parser.add_argument("--seeds", help="only the attacks of these seeds, with commas between")
    arguments = parser.parse_args()
    seeds = seeds_of(arguments.seeds, arguments.seed, 0)
    tell(asdict(run(arguments.seed, arguments.kills, only=arguments.only, seeds=seeds)), as_json=arguments.json)


if __name__ == "__main__":
    main()
