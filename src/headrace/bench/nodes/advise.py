"""Whether the advisor chooses well: training steps of what it chose, and of every other way that it costed, on ten graphs.

On a GPU the kernels of each width are compared too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from headrace.bench.measure import Row, needs_gpu
from headrace.bench.setting import Setting, threads_of
from headrace.graph import Dataset, Graph, generate, load
from headrace.plan import Machine, advise, probe, verify
from headrace.plan.whole.verify import NEAR

_EPOCHS = 200


@dataclass(frozen=True)
class Case:
    """A graph and the model that is planned for it. `widths` are for graphs without features."""

    name: str
    make: Callable[[], Dataset]
    model: str
    hidden: int = 64
    layers: int = 2
    widths: tuple[int, ...] = ()


def run(setting: Setting) -> list[Row]:
    """A row per graph: the chosen way to train, the best and the worst of all that were costed; and how often it was good."""
    device = setting.device if setting.device == "cpu" else needs_gpu().type
    with threads_of(setting.threads if device == "cpu" else torch.get_num_threads()):
        return _measure(setting, device)


def _measure(setting: Setting, device: str) -> list[Row]:
    setting.progress("measuring the machine")
    machine = probe(device)
    rows, good_choices = [], 0
    for case in CASES:
        try:
            data = case.make()
        except (FileNotFoundError, ValueError) as error:
            setting.progress(f"without {case.name}, for {error}")
            continue
        setting.progress(f"planning {case.model} on {case.name}")
        row, good = _row(case, data, device, machine, setting)
        rows.append(row)
        good_choices += good
    share = good_choices / max(len(rows), 1)
    return [*rows, Row(f"{good_choices} of {len(rows)} graphs", "choices within a tenth of the best", "share", share)]


def _row(case: Case, data: Dataset, device: str, machine: Machine, setting: Setting) -> tuple[Row, bool]:
    plan = advise(
        data,
        list(case.widths) or case.model,
        device,
        hidden=case.hidden,
        layers=case.layers,
        conv=case.model,
        epochs=_EPOCHS,
        input_dropout=0.0,
        machine=machine,
    )
    verified = verify(plan, data, repeats=setting.repeats, every=True, progress=setting.progress)
    steps = [row for row in verified.rows if row.what == "step"]
    best, worst = verified.best(), max(steps, key=lambda row: row.measured)
    others = {f"best of {len(steps)}: {best.name}": best.measured, f"worst: {worst.name}": worst.measured}
    for what in sorted({row.what for row in verified.rows} - {"step"}):
        chosen = next(row for row in verified.rows if row.what == what and row.chosen)
        others |= {
            f"{what}, chosen: {chosen.name}": chosen.measured,
            f"{what}, best: {verified.best(what).name}": verified.best(what).measured,
        }
    others["predicted"] = plan.step.seconds
    setting.progress(f"{case.name}: {verified.worst_ratio:.2f} x the best{'' if verified.within else f', above {NEAR:g}'}")
    named = f"{case.name}, {case.model} {'-'.join(map(str, plan.workload.dims))}: {plan.configuration}"
    return Row(named, "training step", "s", steps[0].measured, others), verified.within


def many_small(graphs: int, nodes: int, degree: int, *, features: int = 32) -> Dataset:
    """GNNAdvisor's Type II: a batch of small graphs, whose neighbors are close by as they stand."""
    generator = torch.Generator().manual_seed(0)
    edges = graphs * nodes * degree // 2
    which = torch.randint(0, graphs, (edges,), generator=generator) * nodes
    source, target = (which + torch.randint(0, nodes, (edges,), generator=generator) for _ in range(2))
    graph = Graph.from_edges(source, target, graphs * nodes, undirected=True, deduplicate=True, self_loops="drop")
    x = torch.randn(graph.num_nodes, features, generator=generator)
    return Dataset(graph, x=x, y=torch.randint(0, 2, (graph.num_nodes,), generator=generator))


def _irregular() -> Dataset:
    """Type III: a power law of degrees, communities, and ids that say nothing."""
    return generate.community(nodes=200_000, edges=4_000_000, classes=16, features=96, seed=0)


CASES = (
    Case("cora", lambda: load("cora"), "gcn", hidden=16),
    Case("pubmed", lambda: load("pubmed"), "gcn"),
    Case("amazon_computers", lambda: load("amazon_computers"), "sage"),
    Case("coauthor_cs", lambda: load("coauthor_cs"), "gcn"),
    Case("tolokers", lambda: load("tolokers"), "gin"),
    Case("fb100_cornell5", lambda: load("fb100_cornell5"), "sage", widths=(128, 64, 2)),
    Case("flickr_multilabel", lambda: load("flickr_multilabel"), "gcn", widths=(128, 64, 195)),
    Case("web_google", lambda: load("web_google"), "sage", widths=(64, 64, 16)),
    Case("many small graphs", lambda: many_small(4000, 40, 4), "gin", layers=3),
    Case("irregular", _irregular, "gcn"),
)
