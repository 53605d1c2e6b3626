"""`headrace cost`: what training runs cost in dollars, and what they would have cost otherwise."""

from __future__ import annotations

import json as json_module
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from headrace._sizes import format_size
from headrace.cli.options import refused, takes
from headrace.cluster.bill.calls import KINDS
from headrace.plan.bill import Bill, PricedRun, Prices, price_run, read_prices, read_use


@dataclass(frozen=True)
class CostOptions:
    """Options of `headrace cost`."""

    server: str = field(default="c5.2xlarge", metadata={"help": "type of machine that a rank ran on"})
    servers: int | None = field(default=None, metadata={"help": "how many machines (default: one for each rank)"})
    gpu_seconds: float | None = field(default=None, metadata={"help": "seconds of the same training on one GPU, to compare with"})
    gpu: str = field(default="p3.2xlarge", metadata={"help": "type of the machine with that GPU"})
    prices: Path | None = field(default=None, metadata={"help": "a TOML file of prices (default: list prices of AWS)"})


@takes(CostOptions)
def cost(
    options: CostOptions,
    runs: Annotated[list[Path], typer.Argument(help="run directories, finished or not", show_default=False)],
    json: Annotated[bool, typer.Option("--json", help="print one object in place of the tables")] = False,
) -> None:
    """Show what runs cost by list prices: servers, calls to workers and object requests; and other ways to run the same.

    Calls that were relaunched or came twice are paid for too. Value is 1 / (seconds x dollars).
    """
    how = {name: getattr(options, name) for name in ("server", "servers", "gpu", "gpu_seconds")}
    try:
        prices = read_prices(options.prices)
        priced = [price_run(read_use(run), prices, **how) for run in dict.fromkeys(runs)]
    except (OSError, ValueError) as error:
        raise refused(str(error), CostOptions) from None
    if json:
        about = {"date": str(prices.date), "region": prices.region}
        print(json_module.dumps({"prices": about, "runs": [one.as_dict() for one in priced]}))
        return
    console = Console()
    for one in priced:
        _show(one, prices, console)
    if len(priced) > 1:
        console.print(_table("run", [(str(one.use.path), one.bill) for one in priced], priced[0].bill))


def _show(run: PricedRun, prices: Prices, console: Console) -> None:
    use, bill = run.use, run.bill
    parts = ", ".join(f"{name} {dollars(getattr(bill, name))}" for name in ("servers", "calls", "objects"))
    lines = {
        "time": f"{bill.seconds:,.1f} s, {use.epochs:,} epochs{'' if use.ended else ', still running or interrupted'}",
        "cost": f"{dollars(bill.total)}: {parts}",
        "value": f"{bill.value:.4g}, 1 / (seconds x dollars)",
        "calls": _calls(run),
        "communication": "none" if use.communication is None else f"{use.communication:.1%} of the epochs' time, on rank 0",
        "workers": _workers(run),
    }
    where = f"{run.servers} x {run.server.name}, prices of {prices.region}, {prices.date}"
    console.print(f"[bold]{escape(str(use.path))}[/bold]: {where}", highlight=False, soft_wrap=True)
    for name, text in lines.items():
        console.print(f"  {name:<14} {escape(text)}", highlight=False, soft_wrap=True)
    others = [(what_if.name, what_if.bill) for what_if in run.what_ifs]
    console.print()
    console.print(_table("what if", [("as it ran", bill), *others], bill))
    console.print()


def _calls(run: PricedRun) -> str:
    totals = run.call_totals
    if not totals["number"]:
        return "none"
    kinds = ", ".join(f"{totals[kind]:,} {kind}" for kind in KINDS if kind in totals)
    again = f"{totals['relaunched']:,} relaunched, {totals['duplicate']:,} duplicates, {totals['failed']:,} failed"
    return f"{kinds}; {again}; {format_size(totals['sent'])} sent, {format_size(totals['received'])} received"


def _workers(run: PricedRun) -> str:
    pays = f"workers pay below {run.threshold:.0%}"
    if run.busy is None:
        return f"none; {pays} of busy time"
    return f"cores for their burst ({run.burst:,.1f} vCPUs) would be busy {run.busy:.1%} of the time; {pays}"


def _table(title: str, bills: list[tuple[str, Bill]], base: Bill) -> Table:
    """Bills beside one of them."""
    table = Table(box=None, pad_edge=False)
    table.add_column(title)
    for name in ("seconds", "cost", "value", "cost ratio", "value ratio"):
        table.add_column(name, justify="right")
    for name, bill in bills:
        beside = [_ratio(bill.total, base.total), _ratio(bill.value, base.value)]
        table.add_row(escape(name), f"{bill.seconds:,.1f}", dollars(bill.total), f"{bill.value:.4g}", *beside)
    return table


def _ratio(value: float, base: float) -> str:
    return f"{value / base:.3g}" if base and math.isfinite(value) and math.isfinite(base) else ""


def dollars(amount: float) -> str:
    """Dollars for a reader: cents, or three digits of what is less."""
    decimals = 2 if amount >= 1 or not amount else min(2 - math.floor(math.log10(amount)), 12)
    return f"${amount:,.{decimals}f}"
