"""`headrace bench link-tiers` on a small graph on the CPU: every tier, an epoch that is cut, and a disk that is too small."""

import json
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from headrace.bench import BENCHES
from headrace.bench.links import tiers
from headrace.cli import app
from headrace.train import LinkOptions

EXACT = LinkOptions().staleness
SMALL = {
    "device": "cpu",
    "nodes": 2000,
    "edges": 6000,
    "relations": 5,
    "dim": 8,
    "batch_size": 200,
    "negatives": 20,
    "chunks": 4,
    "partitions": 8,
    "buffer": 4,
    "threads": 1,
    "ranked": 50,
}


def rows_of(**more):
    return BENCHES["link-tiers"].run(tiers.LinkTiersSetting(**{**SMALL, **more}))


def by_metric(rows, tier):
    return {row.metric: row for row in rows if row.case.startswith(f"rows on {tier} ") and "stage" not in row.case}


@pytest.mark.parametrize("name", ["link-tiers", "gpu-link"])
def test_every_tier_has_its_epoch_and_its_limit(name):
    result = CliRunner().invoke(
        app,
        ["bench", name, "--json", "--tiers", "device,host,disk,disk-host"]
        + [word for name, value in SMALL.items() for word in (f"--{name.replace('_', '-')}", str(value))],
    )
    assert result.exit_code == 0, result.output
    rows = json.loads(result.stdout)
    assert {row["bench"] for row in rows} == {name}
    epochs = {row["case"].split()[2]: row for row in rows if row["metric"] == "epoch"}
    assert list(epochs) == ["device", "host", "disk", "disk-host"]
    assert all(row["ours"] > 0 and row["limit"] > 0 and row["peers"] == {} for row in epochs.values())
    assert all("of an epoch" not in row["case"] for row in epochs.values())


def test_tiers_with_one_batch_in_flight_learn_the_same():
    rows = rows_of(staleness=EXACT, tiers=("device", "host"))
    device, host = by_metric(rows, "device"), by_metric(rows, "host")
    assert device["loss"].ours == host["loss"].ours
    assert device["MRR (sampled)"].ours == host["MRR (sampled)"].ours


@pytest.mark.parametrize("order", ["best", "beta", "comet"])
def test_a_tier_on_disk_reads_and_writes_what_the_formula_says(order):
    metrics = by_metric(rows_of(staleness=EXACT, tiers=("disk", "disk-host"), order=order, edges=30_000), "disk")
    assert metrics["loads"].ours == pytest.approx(metrics["loads"].peers["order"], rel=0.1)
    assert metrics["read and written"].ours == pytest.approx(metrics["read and written"].peers["2 L S / p"], rel=0.15)
    assert "rows on disk in fp32" in metrics["epoch"].case


def test_a_second_tier_on_disk_begins_anew():
    rows = rows_of(staleness=EXACT, tiers=("disk", "disk-host"))
    assert by_metric(rows, "disk")["loss"].ours == by_metric(rows, "disk-host")["loss"].ours


def test_an_epoch_that_is_cut_says_so_and_is_extrapolated():
    rows = rows_of(tiers=("device", "disk"), seconds_limit=1e-9)
    for tier in ("device", "disk"):
        metrics = by_metric(rows, tier)
        assert "% of an epoch in" in metrics["epoch"].case
        share = float(metrics["epoch"].case.split("from ")[1].split(" %")[0]) / 100
        assert 0 < share < 1
        assert metrics["edges"].ours == pytest.approx(5400 / metrics["epoch"].ours / 1e6)
    assert metrics["read and written"].peers == {}


def test_rows_on_a_small_disk_are_bfloat16_or_refused(monkeypatch):
    def free(size):
        monkeypatch.setattr(tiers.shutil, "disk_usage", lambda _: SimpleNamespace(free=size))

    free(2 * 8 * 8192 + 2 * 5400 * 12)  # partitions of 250 rows of 20 bytes take 8 KiB, of 36 bytes 12 KiB
    assert "in bf16" in by_metric(rows_of(tiers=("disk",)), "disk")["epoch"].case
    with pytest.raises(ValueError, match="are needed with rows in fp32"):
        rows_of(tiers=("disk",), row_type="fp32")
    free(1000)
    with pytest.raises(ValueError, match="are needed with rows in bf16"):
        rows_of(tiers=("disk",))


def test_unknown_tiers_are_named():
    with pytest.raises(ValueError, match="tiers must be some of device, host, disk, disk-host, not 'tape'"):
        rows_of(tiers=("tape",))
