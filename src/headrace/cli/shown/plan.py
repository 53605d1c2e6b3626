"""A plan on a terminal: what was weighed, what was chosen, and why."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from headrace._sizes import format_size
from headrace.plan.decided import Decided, seconds


def show_plan(plan: Decided, console: Console) -> None:
    """A table of choices, each candidate with what it is predicted to move and to take; and why each was chosen."""
    console.print(escape(plan.summary), highlight=False)
    table = Table()
    for name in ("choice", "candidate"):
        table.add_column(name)
    for name in plan.columns:
        table.add_column(name, justify="right")
    for choice in plan:
        for i, candidate in enumerate(choice.alternatives):
            chosen = candidate.name == choice.chosen
            cells = [candidate.name, *plan.cells(candidate)]
            styled = [f"[bold]{escape(cell)}[/bold]" if chosen else f"[dim]{escape(cell)}[/dim]" for cell in cells]
            last = i == len(choice.alternatives) - 1
            table.add_row(escape(choice.name) if i == 0 else "", *styled, end_section=last)
    console.print(table)
    for choice in plan:
        console.print(f"[bold]{escape(choice.name)}: {escape(choice.chosen)}[/bold]\n  {escape(choice.reason)}", highlight=False)


def against_plan(comparison: dict[str, Any]) -> str:
    """A line of what was predicted of an epoch and what was measured (see `beside_measured`)."""
    if comparison["measured"] is None:
        return "no epoch was measured"
    words = []
    for name, text in (("read", format_size), ("written", format_size), ("seconds", seconds)):
        planned, measured = comparison["predicted"][name], comparison["measured"][name]
        if planned or name == "seconds":
            words.append(f"{text(measured)}{'' if name == 'seconds' else ' ' + name} ({text(planned)} predicted)")
    return ", ".join(words)
