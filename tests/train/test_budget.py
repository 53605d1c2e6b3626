"""A budget ends an elastic run at a checkpoint, and says so."""

from pathlib import Path

import pytest

import headrace as hr
from headrace.train import NodeOptions, Watcher
from headrace.train.interrupt import Stopped
from headrace.train.nodes import spending

OPTIONS = {"hidden": 8, "layers": 2, "epochs": 6, "full_batch": True, "flow": "pipe", "intervals": 3, "optimizer": "sgd", "seed": 1}


def test_a_spent_budget_stops_at_a_checkpoint_that_resumes_to_the_same_bits(tmp_path: Path) -> None:
    data = hr.generate.community(nodes=200, edges=1500, classes=3, features=8, seed=1)
    whole = hr.train.node(data, NodeOptions(**OPTIONS), watcher=Watcher())
    with pytest.raises(Stopped, match=r"budget of \$1e-12 is spent"):
        hr.train.node(data, NodeOptions(**OPTIONS, budget=1e-12), out=tmp_path / "run", watcher=Watcher())
    resumed = hr.train.node(data, NodeOptions(**OPTIONS, budget=1000.0), out=tmp_path / "run", resume=True, watcher=Watcher())
    for mine, other in zip(resumed.model.parameters(), whole.model.parameters(), strict=True):
        assert mine.equal(other)


def test_what_a_run_has_cost_counts_after_it_is_resumed() -> None:
    account = spending.Spending(budget=2.0, servers=2)
    assert account.exceeded is None
    account.before = 1.0
    assert account.exceeded == "the budget of $2 is spent: give a larger --budget"


def test_a_budget_needs_flow() -> None:
    with pytest.raises(ValueError, match=r"budget 1\.0 is of training by tasks"):
        NodeOptions(full_batch=True, budget=1.0)
