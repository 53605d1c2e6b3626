"""Damages files of runs and datasets, runs a command that reads them, and judges what it does.

    python tests/faults/corrupt.py --seed 0 --cases 1000 [--json]

A command must end well with the output it has on whole files, or say in one sentence what is wrong: no traceback, no crash, no
hang, never another result. Case k has the seed `--seed` + k, which alone decides it: `--seed S --cases 1` repeats a failure.
Cases run in a process of their own, so that one that crashes or hangs is counted, and the next one starts.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import queue
import random
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from attack import command_line, tell

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

LIMIT_SECONDS = 120  # of one case


# What is damaged: small datasets and runs, finished or cut off, all in one directory.

NODES, EDGES = "nodes", "edges"  # the datasets
PARTS = "parts"  # a partition of the first
TASK = {"node": "node", "link": "link", "disk": "link", "encoded": "link"}
RUNS = {"node": NODES, "link": EDGES, "disk": EDGES, "encoded": EDGES}
_LINK = {"dim": 8, "epochs": 2, "batch_size": 100, "negatives": 10, "threads": 1, "checkpoint_seconds": 0.0, "log_every": 1}
_DISK = {"storage": "disk", "partitions": 4, "buffer": 2}


def make_files(folder: Path) -> None:
    """Datasets, and of each kind a finished run and one that was cut off after a checkpoint."""
    import torch

    import headrace as hr
    from headrace.train import LinkOptions, link, node
    from training_cases import StopAt, StoppedError, small

    nodes = hr.generate.community(nodes=120, edges=900, classes=3, features=4, seed=2, splits=(0.4, 0.2, 0.4))
    nodes.save(folder / NODES)
    hr.cluster.partition(nodes, folder / PARTS, parts=2, by="ldg")
    edges = hr.generate.knowledge(nodes=60, edges=500, relations=2, seed=3)
    for what, count in (("nodes", 60), ("relations", 2)):
        (folder / f"{what}.txt").write_text("".join(f"{what[:-1]} {number}\n" for number in range(count)))
        edges.names[what] = folder / f"{what}.txt"
    edges.save(folder / EDGES)
    options: dict[str, Any] = {
        "node": small(epochs=2, batch_size=16, checkpoint_seconds=0.0, log_every=1),
        "link": LinkOptions(**_LINK),
        "disk": LinkOptions(**_LINK, **_DISK),
        "encoded": LinkOptions(**_LINK, **_DISK, encoder="sage", fanout=(3,), hidden=8),
    }
    with within(folder):
        for kind, data in RUNS.items():
            train: Callable[..., Any] = node if kind == "node" else link
            train(hr.open(data), options=options[kind], out=kind, spec=data)
            with contextlib.suppress(StoppedError):
                train(hr.open(data), options=options[kind], out=f"{kind}-cut", spec=data, watcher=StopAt("step", 5))
    torch.set_num_threads(1)


@contextlib.contextmanager
def within(folder: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


# What is done to a file.


def flip(file: Path, drawn: random.Random, _: list[Path]) -> None:
    data = bytearray(file.read_bytes())
    if data:
        data[drawn.randrange(len(data))] ^= 1 << drawn.randrange(8)
    file.write_bytes(data)


def truncate(file: Path, drawn: random.Random, _: list[Path]) -> None:
    data = file.read_bytes()
    file.write_bytes(data[: drawn.randrange(len(data) or 1)])


def extend(file: Path, drawn: random.Random, _: list[Path]) -> None:
    with file.open("ab") as opened:
        opened.write(drawn.choice([b"\0", b"\n", b"}", drawn.randbytes(drawn.randint(1, 5000))]))


def zeros(file: Path, drawn: random.Random, _: list[Path]) -> None:
    data = bytearray(file.read_bytes())
    begin = drawn.randrange(len(data) or 1)
    end = min(begin + drawn.randint(1, 512), len(data))
    data[begin:end] = bytes(end - begin)
    file.write_bytes(data)


def empty(file: Path, drawn: random.Random, _: list[Path]) -> None:
    file.write_bytes(b"")


def delete(file: Path, drawn: random.Random, _: list[Path]) -> None:
    file.unlink()


def swap(file: Path, drawn: random.Random, others: list[Path]) -> None:
    other = drawn.choice([other for other in others if other != file] or others)
    data = file.read_bytes()
    file.write_bytes(other.read_bytes())
    other.write_bytes(data)


def directory(file: Path, drawn: random.Random, _: list[Path]) -> None:
    file.unlink()
    file.mkdir()


def unreadable(file: Path, drawn: random.Random, _: list[Path]) -> None:
    file.unlink()
    file.symlink_to(file.name)  # a link to itself: not even the superuser reads it


DAMAGES = (flip, flip, flip, flip, truncate, truncate, extend, zeros, empty, delete, swap, directory, unreadable)


# What reads it.


@dataclass(frozen=True)
class Outcome:
    """How a command ended: its code, what it told, a digest of what it made, and the exception that got away, if any."""

    code: int
    said: str
    made: dict[str, str] = field(default_factory=dict)
    escaped: str | None = None


def commands(place: str) -> list[list[str]]:
    """The commands that read a run or a dataset."""
    if place == PARTS:
        return [["info", PARTS, "--verify", "--json"]]
    if place in (NODES, EDGES):
        other = [["predict", "node", NODES, "--out", "out.parquet"]] if place == NODES else _reading("disk") + _reading("link")
        kinds = [kind for kind, data in RUNS.items() if data == place]
        return [
            ["info", place],
            ["info", place, "--verify", "--json"],
            *other,
            *(_resume(kind) for kind in kinds),
            *(_resume(f"{kind}-cut") for kind in kinds),
        ]
    kind = place.removesuffix("-cut")
    reading = [["predict", place, NODES, "--out", "out.parquet"]] if kind == "node" else _reading(place)
    wrong = ["train", "link" if kind == "node" else "node", RUNS[kind], "--out", place, "--resume"]
    return [_resume(place), _resume(place), *reading, ["report", place, "--out", "out.html"], wrong]


def _resume(place: str) -> list[str]:
    kind = place.removesuffix("-cut")
    return ["train", TASK[kind], RUNS[kind], "--out", place, "--resume", "--json"]


def _reading(place: str) -> list[list[str]]:
    return [
        ["export", place, "--format", "npy", "--out", "out.npy"],
        ["export", place, "--out", "out.parquet"],
        ["neighbors", place, "7", "--numbers", "--relation", "1", "--json"],
    ]


def run(words: list[str]) -> Outcome:
    """Run a command in this process and in this folder."""
    from typer.testing import CliRunner

    from headrace.cli import app

    ended = CliRunner().invoke(app, words)
    escaped = None
    if ended.exception is not None and not isinstance(ended.exception, SystemExit):
        escaped = f"{type(ended.exception).__name__}: {ended.exception}"
    made = {file.name: _digest(file) for file in sorted(Path().glob("out*")) if file.is_file()}
    if ended.exit_code == 0 and words[0] == "train":
        made["result"] = _without_times(ended.stdout)
        if words[4].endswith("-cut"):
            made["weights"] = _weights(Path(words[4]))
    elif ended.exit_code == 0:
        made["stdout"] = re.sub(r"\(\d+ kB\)", "", ended.stdout)
    return Outcome(ended.exit_code, ended.stderr, made, escaped)


def _digest(file: Path) -> str:
    if file.suffix == ".html":  # with the time at which it was written
        return re.sub(r'"written":\s*"[^"]*"', "", file.read_text())
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _without_times(text: str) -> str:
    told = json.loads(text)
    for name in ("seconds", "peak_memory", "disk"):
        told.pop(name, None)
    for part in told.get("test", {}).values() if isinstance(told.get("test"), dict) else ():
        if isinstance(part, dict):
            part.pop("eval_seconds", None)
    if isinstance(told.get("test"), dict):
        told["test"].pop("eval_seconds", None)
    return json.dumps(told, sort_keys=True)


def _weights(place: Path) -> str:
    """A digest of what a resumed run ended with."""
    from headrace.train import Run, export

    digest = hashlib.sha256()
    if place.name.startswith("node"):
        for name, weight in sorted(Run(place).load_checkpoint("best")["model"].items()):
            digest.update(name.encode() + weight.numpy().tobytes())
    else:
        for file in export(place, place / "rows.npy", format="npy").files:
            digest.update(file.read_bytes())
    return digest.hexdigest()


# One case after the other.


@dataclass
class Bench:
    """Whole files, a folder to damage copies of them in, and what commands make of them while they are whole."""

    whole: Path
    folder: Path
    expected: dict[str, Outcome] = field(default_factory=dict)

    def lay_out(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        shutil.copytree(self.whole, self.folder)

    def undamaged(self, words: list[str]) -> Outcome:
        key = " ".join(words)
        if key not in self.expected:
            self.lay_out()
            with within(self.folder):
                self.expected[key] = run(words)
            if self.expected[key].escaped:
                raise RuntimeError(f"{key} fails on whole files: {self.expected[key]}")
        return self.expected[key]

    def case(self, seed: int) -> tuple[str, str]:
        """The verdict, "accepted", "refused" or "failed", and what was done."""
        drawn = random.Random(seed)
        place = drawn.choice([NODES, EDGES, *RUNS, *(f"{kind}-cut" for kind in RUNS), PARTS])
        words = drawn.choice(commands(place))
        expected = self.undamaged(words)
        self.lay_out()
        files = sorted(file for file in (self.folder / place).rglob("*") if file.is_file())
        file, damage = drawn.choice(files), drawn.choice(DAMAGES)
        damage(file, drawn, files)
        with within(self.folder):
            outcome = run(words)
        verdict = judge(outcome, expected, file, damage.__name__, words)
        what = f"{damage.__name__} {file.relative_to(self.folder)}, then {' '.join(words)}"
        return ("failed", f"{what}: {verdict}") if verdict not in ("accepted", "refused") else (verdict, what)


def judge(outcome: Outcome, expected: Outcome, file: Path, damage: str, words: list[str]) -> str:
    """ "accepted", "refused", or what is wrong."""
    if outcome.escaped is not None or "Traceback" in outcome.said:
        return f"a traceback: {outcome.escaped or outcome.said[-300:]}"
    if outcome.code != 0:
        told = outcome.said.strip().splitlines()
        if outcome.code not in (1, 2) or not told or not told[-1].startswith("headrace: "):
            return f"exit code {outcome.code} without a sentence: {outcome.said[-300:]!r}"
        return "refused"
    if expected.code != 0:
        return f"it was accepted, and the whole files were refused: {expected.said[-200:]!r}"
    if outcome.made == expected.made or "left out" in outcome.said:  # names that could not be read are said to be left out
        return "accepted"
    if words[0] == "report" and ("left out" in outcome.made["out.html"] or damage in ("delete", "unreadable")):
        return "accepted"  # gaps are what a report is for, and it says where they are
    if words[0] == "report" and words[1].endswith("-cut") and file.name == "metrics.jsonl" and damage in ("truncate", "empty"):
        return "accepted"  # the log of a run that is not over may be of any length
    differs = [name for name in expected.made if outcome.made.get(name) != expected.made[name]]
    return f"another result, and not a word: {differs}"


def work(first: int, cases: int) -> None:
    """Run cases and print a line for each: what a child process does."""
    with tempfile.TemporaryDirectory(prefix="headrace-corrupt-") as temporary:
        bench = Bench(Path(temporary) / "whole", Path(temporary) / "work")
        bench.whole.mkdir()
        make_files(bench.whole)
        print(json.dumps({"ready": True}), flush=True)
        for seed in range(first, first + cases):
            verdict, what = bench.case(seed)
            print(json.dumps({"seed": seed, "verdict": verdict, "what": what}), flush=True)


def corrupt(first: int, cases: int, *, each: Callable[[dict[str, Any]], None] = lambda line: None) -> dict[str, Any]:
    """Run cases in children; returns counts and failures."""
    counts = {"accepted": 0, "refused": 0}
    failures: list[dict[str, Any]] = []
    seed, end = first, first + cases
    while seed < end:
        command = [sys.executable, __file__, "--worker", "--seed", str(seed), "--cases", str(end - seed)]
        with (
            tempfile.TemporaryFile("w+") as errors,
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True) as child,
        ):
            ended = "hung"
            for line in _lines(child):
                if line is None:
                    ended = f"crashed with {child.wait()}"
                    break
                if "ready" in line:
                    continue
                each(line)
                seed = line["seed"] + 1
                if line["verdict"] == "failed":
                    failures.append({"seed": line["seed"], "what": line["what"]})
                else:
                    counts[line["verdict"]] += 1
            child.kill()
            if seed < end:
                errors.seek(0)
                failures.append({"seed": seed, "what": f"the process {ended}: {errors.read()[-1000:]}"})
                seed += 1
    return {"cases": cases, **counts, "failures": failures, "seed": first}


def _lines(child: subprocess.Popen[str]) -> Iterator[dict[str, Any] | None]:
    """What a child prints; None when it ends; nothing more when it is silent for too long."""
    told: queue.SimpleQueue[str | None] = queue.SimpleQueue()

    def read() -> None:
        assert child.stdout is not None
        for line in child.stdout:
            told.put(line)
        told.put(None)

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        while (line := told.get(timeout=LIMIT_SECONDS)) is not None:
            yield json.loads(line)
        yield None
    except queue.Empty:
        child.kill()
    finally:
        reader.join()


def main() -> None:
    parser = command_line(__doc__.partition("\n")[0], "--cases", 200, "damaged files")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        work(arguments.seed, arguments.cases)
        return
    each = (lambda line: None) if arguments.json else lambda line: print(f"{line['seed']} {line['verdict']}: {line['what']}")
    tell(corrupt(arguments.seed, arguments.cases, each=each), as_json=arguments.json)


if __name__ == "__main__":
    main()
