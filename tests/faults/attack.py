"""What every attacker's command line has, and how it says what it counted."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from typing import Any, NoReturn


def command_line(text: str | None, amount: str, default: int, what: str) -> argparse.ArgumentParser:
    """A parser of the options that all attackers have; `amount` is the one that says how much, of `what`."""
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0, help="of the first")
    parser.add_argument(amount, type=int, default=default, help=f"how many {what}")
    parser.add_argument("--json", action="store_true", help="print one object and nothing else")
    return parser


def seeds_of(only: str | None, first: int, count: int) -> list[int]:
    """The seeds that were asked for: a list, or so many from the first on."""
    return [int(seed) for seed in only.split(",")] if only else list(range(first, first + count))


def tell(counts: Mapping[str, Any], *, as_json: bool) -> NoReturn:
    """Print what was counted and exit: with 1 if there are `failures`, each an object with its seed."""
    if as_json:
        print(json.dumps(counts))
    else:
        for name, value in counts.items():
            if name != "failures":
                print(f"{name:<12} {value}")
        for failure in counts["failures"]:
            print("FAILED", json.dumps(failure, indent=1))
    sys.exit(1 if counts["failures"] else 0)
