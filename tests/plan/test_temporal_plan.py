"""Plans of temporal training: copies first, then epochs at once, then wider batches; within memory, machines and epochs."""

import json
import re

import pytest
import torch
from typer.testing import CliRunner

import headrace as hr
from headrace.cli import app
from headrace.temporal import Schedule, cut_events, parse_parallel
from headrace.temporal.statistics import age_statistics, batch_loss

COPY = 3000 * 3 * 100 * 4  # bytes of a copy


@pytest.fixture(scope="module")
def stream():
    return hr.EventStream.of(hr.generate.events(nodes=3000, events=20_000, seed=1))


@pytest.mark.parametrize(
    ("ranks", "machines", "copies", "epochs", "parallel"),
    [
        (1, 1, 9, 10, "1x1x1"),
        (8, 1, 9, 10, "1x1x8"),  # memory is there: copies
        (8, 1, 2, 10, "1x4x2"),  # two copies: the rest are epochs at once
        (8, 2, 1, 10, "1x4x2"),  # one a machine
        (8, 1, 9, 4, "2x1x4"),  # as many as epochs: the rest widen the batch
        (8, 1, 2, 6, "2x2x2"),
        (6, 2, 2, 10, "1x3x2"),  # 4 copies do not divide 6 trainers, and a copy spans no machines
    ],
)
def test_copies_come_first_then_epochs_then_the_batch(stream, ranks, machines, copies, epochs, parallel):
    options = hr.train.TemporalOptions(epochs=epochs)
    plan = hr.plan.temporal_plan(stream, options, ranks=ranks, machines=machines, memory=copies * COPY, batch_size=200)
    assert plan.parallel == parallel
    i, j, k = parse_parallel(plan.parallel)
    assert i * j * k == ranks
    assert k % machines == 0
    assert k // machines * COPY <= copies * COPY
    assert Schedule(i, j, k, 70).sweeps(epochs) * j * k == epochs or epochs % (j * k)
    assert [choice.name for choice in plan] == ["batch_size", "k", "j", "i"]
    assert plan["k"].candidate.bytes == k * COPY


def test_the_batch_is_the_largest_that_keeps_a_third_and_is_shown_with_what_it_loses(stream):
    plan = hr.plan.temporal_plan(stream)
    kept = {int(c.name): c.loss.kept for c in plan["batch_size"].alternatives}
    assert list(kept) == [200, 400, 600, 1200, 2400, 4800]
    assert plan.batch_size == max(size for size, share in kept.items() if share >= 1 / 3)
    cuts = cut_events(stream, 0, stream.splits().train, 400, "size")
    assert kept[400] == batch_loss(stream, cuts).kept
    text = str(plan)
    assert f"{kept[400]:.1%}" in text
    assert "the largest that keeps 33%" in text
    few = hr.plan.temporal_plan(hr.generate.events(nodes=20, events=3000))
    assert few.batch_size == 200
    assert "the smallest: none keeps 33%" in few["batch_size"].reason
    assert hr.plan.temporal_plan(stream, batch_size=100)["batch_size"].reason.startswith("as given")
    wide = hr.plan.temporal_plan(stream, hr.train.TemporalOptions(epochs=1), ranks=2, batch_size=200)["i"]
    assert wide.chosen == "2"
    assert f"{kept[400]:.1%} is kept in place of {kept[200]:.1%}" in wide.reason


def test_models_without_memory_take_none(stream):
    plan = hr.plan.temporal_plan(stream, hr.train.TemporalOptions(model="tgat", static="learned"), ranks=4, memory=0)
    assert plan.parallel == "1x1x4"
    assert plan["k"].candidate.bytes == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"ranks": 3, "machines": 2}, "ranks must be a multiple of machines, both at least 1, not 3 and 2"),
        ({"memory": COPY - 1}, "a copy of the memory has 3.4 MiB, and a machine 3.4 MiB for it: give more memory"),
        ({"ranks": 4, "machines": 4, "epochs": 2}, "4 machines need a copy each, but 2 is the most that epochs and batches leave"),
    ],
)
def test_what_cannot_be_planned_is_refused(stream, arguments, said):
    options = hr.train.TemporalOptions(epochs=arguments.pop("epochs", 10))
    with pytest.raises(ValueError, match=re.escape(said)):
        hr.plan.temporal_plan(stream, options, **arguments)


def test_missed_events_and_ages_are_counted():
    stream = hr.EventStream([0, 0, 0, 1], [2, 2, 3, 2], [1, 2, 3, 7])
    assert batch_loss(stream, torch.tensor([0, 2, 4])) == (6 / 8, 2 / 8)  # second events of 0 and 2 in the first batch
    assert batch_loss(stream, torch.tensor([0, 1, 2, 3, 4])) == (1.0, 0.0)
    ages = torch.tensor([0.0, 1, 1, 6, 0, 1, 5, 2])  # of 0: 0, 1, 1; of 1: 6; of 2: 0, 1, 5; of 3: 2
    assert age_statistics(stream, 4) == pytest.approx((float(ages.mean()), float(ages.std(correction=0))))


def test_auto_is_resolved_by_the_command_which_says_why(tmp_path):
    dataset = "generate:events?nodes=60&events=800"
    quick = ["--hidden", "8", "--epochs", "1", "--threads", "1", "--candidates", "2"]
    asked = ["train", "temporal", dataset, *quick, "--parallel", "auto", "--out", str(tmp_path / "run"), "--json"]
    done = CliRunner().invoke(app, asked)
    assert done.exit_code == 0, done.output
    result = json.loads(done.stdout)
    assert result["options"]["parallel"] == "1x1x1"
    said = " ".join(done.stderr.split())
    assert said.index("1 trainer on 1 machine: --parallel 1x1x1 --batch-size 200") < said.index("epoch 1/1")
    assert "own events missed" in said.replace("│", "")
    assert hr.train.Run(tmp_path / "run").header["plan"]["parallel"] == "1x1x1"
    done = CliRunner().invoke(app, [*asked, "--resume"])
    assert done.exit_code == 2
    assert "leave out --parallel auto" in done.stderr
    with pytest.raises(ValueError, match=r"parallel auto is resolved by the command: here, take .*planned_temporal"):
        hr.train.temporal(hr.generate.events(nodes=60, events=800), hr.train.TemporalOptions(parallel="auto"))
    for wrong in ("2x2", "0x1x1", "axbxc"):
        with pytest.raises(ValueError, match="parallel is written ixjxk, as 1x2x2"):
            hr.train.TemporalOptions(parallel=wrong)


def test_the_command_plans_before_anything_is_trained():
    asked = ["plan", "generate:events?nodes=3000&events=20000", "--events", "--ranks", "8", "--machines", "2", "--memory", "6MB"]
    done = CliRunner().invoke(app, [*asked, "--json"])
    assert done.exit_code == 0, done.output
    plan = json.loads(done.stdout)
    assert (plan["parallel"], plan["batch_size"]) == ("1x4x2", 200)
    machines = "--nnodes 2 --rdzv-backend c10d --rdzv-endpoint FIRST_MACHINE:29400"
    assert plan["command"].startswith(f"torchrun {machines} --nproc-per-node 4 -m headrace train temporal")
    assert "--parallel 1x4x2 --batch-size 200" in plan["command"]
    shown = CliRunner().invoke(app, asked)
    assert "own events missed" in shown.stdout.replace("\n", " ")
    refused = CliRunner().invoke(app, ["plan", "--events"])
    assert refused.exit_code == 2
    assert "give a dataset" in refused.stderr
