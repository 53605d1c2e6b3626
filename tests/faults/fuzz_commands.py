"""Runs the command with random bad options and arguments. It must refuse them in a sentence, or do what it was asked.

    python tests/faults/fuzz_commands.py --seed 0 --commands 500

Command number i has seed S + i. Values are out of range, of the wrong type, missing, unknown, huge, not a number, empty or in other
scripts, alone and together. A traceback, a crash, a hang, or an exit code other than 0, 1 and 2 is a failure.
"""

from __future__ import annotations

import os
import random
import resource
import shlex
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import children
from attack import command_line, seeds_of, tell
from children import Child
from stateful import Inputs

_LIMIT = 90.0  # seconds that a command may take on a machine with other work
_MEMORY = 4 << 30  # bytes that a command may have beside those that all have
_NUMBERS = [
    "",
    " ",
    "-1",
    "0",
    "1",
    "2",
    "3",
    "nan",
    "inf",
    "-inf",
    "1e308",
    "-1e-320",
    "1e30",
    "0.5",
    "1.5",
    "abc",
    "1_000",
    "0x10",
]
_NUMBERS += ["2147483647", "2147483648", "4294967296", "9223372036854775807", "-9223372036854775808", "99999999999999999999", "٣"]
_TEXTS = [
    "",
    " ",
    "auto",
    "none",
    "NONE",
    "ünï",
    "💥",
    "a" * 5000,
    "a b",
    "'",
    '"',
    "%s",
    "{}",
    "--",
    "-",
    "None",
    "1",
    "-1",
    "nan",
]
_TEXTS += [
    "1,2",
    ",",
    "1,,2",
    "-1,-1",
    "1,a",
    "2147483648,2",
    "10%",
    "110%",
    "-5%",
    "64MiB",
    "1TiB",
    "1EiB",
    "0MiB",
    "-1GiB",
    "cuda",
    "cuda:9",
]
_TEXTS += [
    "sage",
    "gcn",
    "gin",
    "gat",
    "distmult",
    "complex",
    "transe",
    "rotate",
    "dot",
    "disk",
    "resident",
    "host",
    "sgd",
    "adagrad",
]
_LONG = {"epochs", "repeats", "batches", "seconds"}  # which may be large and are then no fault
_GENERATED = ["community", "knowledge", "events", "snapshots", "products", "reddit", "papers100M", "nothing", ""]
_ARGUMENTS = [
    "nodes",
    "edges",
    "classes",
    "features",
    "relations",
    "seed",
    "scale",
    "homophily",
    "splits",
    "threads",
    "noise",
    "what",
]
_ARGUMENTS += [
    "exponent",
    "block",
    "max_degree",
    "directed",
    "communities",
    "structure",
    "nested",
    "signal",
    "events",
    "repeat",
    "new",
    "steps",
]


@dataclass
class Counts:
    """What came of the commands."""

    seed: int
    commands: int = 0
    refused: int = 0
    crashes: int = 0
    hangs: int = 0
    tracebacks: int = 0
    failures: list[dict[str, Any]] = field(default_factory=list)


class Fuzzer:
    """Makes commands and runs each in a child with a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.inputs = folder, Inputs.make(folder / "inputs")
        for number, work in enumerate(self.inputs.trained_by()):
            Child(work, folder / f"input-{number}.log").finish(_LIMIT)
        (folder / "text.txt").write_text("no dataset\n", encoding="utf-8")
        (folder / "empty").mkdir()
        (folder / "options.toml").write_text('hidden = "many"\n', encoding="utf-8")
        self.commands = {
            ("train", "node"): ["--epochs", "1", "--hidden", "4", "--fanout", "3,3", "--batch-size", "64", "--layers", "2"],
            ("train", "link"): ["--epochs", "1", "--dim", "4", "--batch-size", "400", "--negatives", "8", "--val-edges", "9"],
            ("train", "temporal"): ["--epochs", "1", "--hidden", "4", "--batch-size", "60", "--candidates", "3"],
            ("train", "snapshot"): ["--epochs", "1", "--hidden", "4", "--window", "3", "--groups", "16"],
            ("import",): [],
            ("info",): [],
            ("reorder",): [],
            ("partition",): ["--parts", "2"],
            ("advise",): ["--hidden", "4"],
            ("plan",): [],
            ("predict",): [],
            ("export",): [],
            ("neighbors",): [],
            ("report",): [],
            ("demo",): ["--nodes", "300", "--epochs", "1"],
        }

    def command(self, seed: int) -> list[str]:
        """The arguments that a seed stands for."""
        dice = random.Random(seed)
        path = dice.choice(list(self.commands))
        if dice.random() < 0.02:
            return [dice.choice([*_TEXTS, "train", "bench"]) for _ in range(dice.randint(0, 3))]
        node = children._COMMAND
        for name in path:
            node = node.commands[name]  # type: ignore[attr-defined]
        words = [*path]
        options = [p for p in node.params if p.param_type_name == "option" and p.name not in ("help", *_LONG)]
        for parameter in (p for p in node.params if p.param_type_name == "argument"):
            if dice.random() < 0.97:
                words.append(self._argument(dice, parameter.name or "", path))
        words += self.commands[path]
        for option in dice.sample(options, min(dice.choice([0, 1, 1, 1, 2, 3, 6]), len(options))):
            words.append(option.opts[0])
            if not getattr(option, "is_flag", False):
                words.append(self._value(dice, option))
        if dice.random() < 0.05:
            words.append(dice.choice(["--nothing", "-x", "--", "extra", "--hid", "--epochs"]))
        return words

    def _argument(self, dice: random.Random, name: str, path: tuple[str, ...]) -> str:
        inputs = self.inputs
        of_task = {
            "link": [inputs.triples],
            "temporal": ["generate:events,nodes=40,events=300"],
            "snapshot": ["generate:snapshots,nodes=20,edges=60,steps=30"],
        }
        right = {
            "dataset": of_task.get(path[-1], [inputs.nodes, inputs.triples]),
            "path": [inputs.nodes],
            "run": [inputs.links, inputs.trained],
            "runs": [inputs.trained],
            "edges": [inputs.edges],
            "output": ["out"],
            "out": ["out"],
            "entity": ["3", "0"],
        }
        if dice.random() < 0.75:
            return str(dice.choice(right.get(name, ["1"])))
        if name == "dataset" and dice.random() < 0.6:
            query = "&".join(f"{dice.choice(_ARGUMENTS)}={dice.choice(_NUMBERS + _TEXTS)}" for _ in range(dice.randint(0, 4)))
            if dice.random() < 0.5:
                query += "&nodes=100&edges=400"
            kind = dice.choice(_GENERATED)
            if kind in ("products", "reddit", "papers100M"):  # of their own size they take minutes, and no fault
                query = f"scale={dice.choice(['0.0001', '0', '-1', 'nan', '2', ''])}&{query.replace('scale', 'seed')}"
            return f"generate:{kind}?{query}"
        return self._path(dice)

    def _path(self, dice: random.Random) -> str:
        inputs = self.inputs
        known: list[Any] = [inputs.nodes, inputs.triples, inputs.edges, inputs.trained, inputs.links, "cora", "out"]
        # Never a path outside the folder: as root, an output would replace a device such as /dev/full (it did once).
        known += [self.folder / "text.txt", self.folder / "empty", self.folder / "options.toml"]
        known += [inputs.nodes / "meta.json", next(inputs.nodes.glob("x.*")), "no/such/place", "a" * 300, *_TEXTS]
        return str(dice.choice(known))

    def _value(self, dice: random.Random, option: Any) -> str:
        kind = str(getattr(option, "type", None) or getattr(option, "type_descriptor", "")).lower()  # versions of typer differ
        if dice.random() < 0.1:
            return dice.choice(_NUMBERS + _TEXTS)
        if "path" in kind:
            return self._path(dice)
        if "int" in kind or "float" in kind:
            return dice.choice(_NUMBERS)
        choices = str(option.metavar or "").split("|")
        if len(choices) > 1 and dice.random() < 0.7:
            return dice.choice(choices)
        return dice.choice(_TEXTS + _NUMBERS)

    def attack(self, seed: int, counts: Counts) -> None:
        """Run one command and count what came of it."""
        arguments, place = self.command(seed), self.folder / f"command-{seed}"
        place.mkdir()

        def work() -> int | None:
            os.chdir(place)
            held = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (held + _MEMORY, held + _MEMORY))
            return children.command(arguments)()

        cache = {"XDG_CACHE_HOME": str(self.folder / "cache"), "HEADRACE_DATA": str(self.folder)}
        ended = Child(work, self.folder / "command.log", environment=cache).finish(_LIMIT)
        shutil.rmtree(place, ignore_errors=True)
        counts.commands += 1
        counts.refused += ended.code == 2
        counts.hangs += ended.hung
        counts.crashes += ended.crashed
        bad = not (ended.hung or ended.crashed) and (ended.traceback or ended.code not in (0, 1, 2))
        counts.tracebacks += bad
        if ended.hung or ended.crashed or bad:
            line = shlex.join(["headrace", *arguments])
            counts.failures.append({"seed": seed, "command": line, "code": ended.code, "said": ended.output[-1500:]})


def run(seeds: Sequence[int]) -> Counts:
    """Run the commands of these seeds."""
    counts = Counts(seeds[0] if seeds else 0)
    with tempfile.TemporaryDirectory(prefix="headrace-commands-", ignore_cleanup_errors=True) as folder:
        fuzzer = Fuzzer(Path(folder))
        for seed in seeds:
            fuzzer.attack(seed, counts)
    return counts


def main() -> None:
    """The command."""
    parser = command_line(__doc__, "--commands", 200, "commands")
    parser.add_argument("--seeds", help="only these, with commas between")
    arguments = parser.parse_args()
    tell(asdict(run(seeds_of(arguments.seeds, arguments.seed, arguments.commands))), as_json=arguments.json)


if __name__ == "__main__":
    main()
