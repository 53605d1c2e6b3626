"""`snapshot`: train a recurrent model to forecast on a sequence of graphs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import nn

from headrace.graph import Dataset, Snapshots
from headrace.snapshots.balance import DEALS
from headrace.snapshots.operators import Operators
from headrace.train.fit import FREE, describe, fit
from headrace.train.measure import Spread, spreads
from headrace.train.options import LoopOptions
from headrace.train.recipe import Recipe
from headrace.train.run import Run
from headrace.train.snapshots.model import make_cell
from headrace.train.snapshots.options import SnapshotOptions
from headrace.train.snapshots.recipe import SnapshotRecipe
from headrace.train.snapshots.suited import chosen_words, suited_options
from headrace.train.snapshots.windows import Windows
from headrace.train.watching.watch import Watcher


@dataclass(frozen=True)
class SnapshotResult:
    """What training gave: measures over the repeats, baselines of the same windows, how well ranks were balanced."""

    scores: dict[str, Spread]  # `test_rmse`, `val_mse` and the like
    baselines: dict[str, dict[str, float]]
    balance: dict[str, float]  # seconds a step: makespan and bound; idle share; bytes sent
    seconds: float
    model: nn.Module
    run: Path | None = None

    def summary(self) -> dict[str, Any]:
        """As `result.json` and `--json` have it."""
        scores: dict[str, Any] = {name: values.plain() for name, values in self.scores.items()}
        test = {name.removeprefix("test_"): values.plain() for name, values in self.scores.items() if name.startswith("test_")}
        scores["test"] = {**test, "baselines": self.baselines}
        run = None if self.run is None else str(self.run)
        return {**scores, "balance": self.balance, "seconds": self.seconds, "run": run}


def snapshot(
    data: Snapshots | Dataset,
    options: SnapshotOptions | Mapping[str, Any] | None = None,
    *,
    out: str | Path | None = None,
    resume: bool = False,
    watcher: Watcher | None = None,
    spec: str | None = None,
) -> SnapshotResult:
    """Train a cell to forecast from windows of snapshots; test figures stand beside those of baselines on the same windows.

    data: `Snapshots`, or a dataset that has them (`Snapshots.of`). Forecast is y, numbers of nodes or classes; or the edges of
        the next snapshot, where there are neither targets nor features (`options.predict`).
    options: all of them; or some by name, in a dict, and a known dataset's others are those it is usually trained with.
    out, resume: the run's directory, and whether to go on with the run in it: the same bits as if it had never stopped.

    Under torchrun groups are dealt to ranks by `options.strategy`: balanced, equal and sequential give the same bits for any number
    of ranks. vertex and snapshot, to compare with, give the same up to rounding, and the same bits twice.

    >>> import headrace as hr
    >>> data = hr.generate.snapshots(nodes=60, edges=240, steps=60, features=2)
    >>> options = hr.train.SnapshotOptions(window=4, hidden=8, epochs=2, groups=8)
    >>> result = hr.train.snapshot(data, options)
    >>> sorted(result.baselines)
    ['last value', 'linear', 'zero']
    """
    note = ""
    if options is None or isinstance(options, Mapping):
        given, name = options or {}, str(data.info.get("name"))
        if given.get("every") and (isinstance(data, Snapshots) or {"signal", "x"} & data.extra.keys()):
            raise ValueError("every cuts a list of events into snapshots, and this data has its own: leave it out")
        options, note = suited_options(name, given), chosen_words(name, given)
    if not isinstance(options, SnapshotOptions):
        raise TypeError(f"options must be SnapshotOptions, not {type(options).__name__}")
    snapshots = data if isinstance(data, Snapshots) else Snapshots.of(data, every=options.every or None, missing=options.missing)
    windows = Windows.of(snapshots, options)
    away = snapshots.never_present()

    def make(setup: Any) -> SnapshotRecipe:
        if note:
            setup.watcher.note(f"{note}: as {snapshots.info['name']} is usually trained; options say otherwise")
        if len(away):
            setup.watcher.note(f"{len(away)} nodes have no edge in any snapshot, the first is node {int(away[0])}")
        if snapshots.info.get("missing"):
            setup.watcher.note(f"{snapshots.info['missing']} targets are missing and do not count")
        return SnapshotRecipe(windows, setup)

    on_cpu = options.device.partition(":")[0] == "cpu"
    lanes = options.overlap and not on_cpu  # of which each takes some groups of a piece
    if options.stack > 1 and not lanes and not _stacks(windows.snapshots, options):
        options = replace(options, stack=1)  # groups are run one by one: they can be dealt so
    free = FREE | {"keep", "programs"} | ({"overlap"} if on_cpu else set())  # on a GPU it halves products: other bits
    if options.strategy in DEALS:
        free |= {"strategy"}
    ends, recipe = fit(
        make,
        options,
        task="snapshot",
        header=_header(snapshots, spec),
        out=out,
        resume=resume,
        watcher=watcher,
        free=lambda begun: free if begun.get("strategy", "balanced") in DEALS else free - {"strategy"},
    )
    last = ends[-1]
    result = SnapshotResult(
        spreads(recipe.measures, ends),
        (last.get("test") or {}).get("baselines", {}),
        last["balance"],
        sum(end["seconds"] for end in ends),
        recipe.model.eval(),
        None if out is None else Path(out),
    )
    if out is not None and recipe.ranks.rank == 0:  # type: ignore[attr-defined]
        Run(out).save_result(result.summary())
    return result


def _stacks(snapshots: Snapshots, options: SnapshotOptions) -> bool:
    """Whether groups are run together."""
    return Operators(make_cell(options, snapshots.num_features), snapshots, hoist=options.hoist).stacks


def _header(snapshots: Snapshots, spec: str | None) -> Callable[[LoopOptions, Recipe | None], dict[str, Any]]:
    about = {
        "spec": spec,
        "name": snapshots.info.get("name"),
        "nodes": snapshots.num_nodes,
        "edges": sum(snapshots.num_edges),
        "features": snapshots.num_features,
        "snapshots": len(snapshots),
    }

    def header(options: LoopOptions, recipe: Recipe | None) -> dict[str, Any]:
        parameters = None if recipe is None else sum(p.numel() for p in recipe.model.parameters())
        return describe("snapshot", about, options, parameters)

    return header
