"""Features on disk: the batches, losses and weights of a run in memory, in bounded memory; and runs on resident partitions."""

import errno
import json
import os
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import headrace as hr
from headrace.graph.saved.array_file import ArrayFile
from headrace.ranks import Alone
from headrace.store import heap
from headrace.train import NodeOptions, Run, Setup, Watcher, node
from headrace.train.nodes.node import make_model
from headrace.train.nodes.storage.resident import training_first
from headrace.train.nodes.storage.stored import stored_data
from training_cases import StopAt, StoppedError, assert_same_weights, ctrl_c_at, lasting, small

linux = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc and RLIMIT_DATA as Linux has it")


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def data() -> hr.Dataset:
    return hr.generate.community(nodes=4000, edges=32000, classes=3, features=47, seed=2, splits=(0.05, 0.1, 0.2))


@pytest.fixture(scope="module")
def stored(data, tmp_path_factory) -> hr.Dataset:
    folder = tmp_path_factory.mktemp("data") / "stored"
    data.save(folder)
    return hr.open(folder)


def options(**changes) -> NodeOptions:
    return small(
        **{"epochs": 2, "dropout": 0.5, "log_every": 1, "checkpoint_seconds": 0.0, "batch_size": 16, "fanout": (4, 3), **changes}
    )


DISK = {"storage": "disk", "memory": "550KiB"}  # features are of 734 KiB; a fifth is cached beside the batches
RESIDENT = {"storage": "resident", "memory": "250KiB", "partitions": 40}


def lines_of(place) -> tuple[list[dict], list[float | None]]:
    """What a run logged, without times and reads; and its losses after training, of which pieces may round the last bit."""
    lines = [{k: v for k, v in line.items() if k not in ("disk", "bytes")} for line in lasting(Run(place).metrics())]
    names = [f"{split}_loss" for split in ("train", "val", "test")]
    losses = [line.pop(name) for line in lines for name in names if name in line]
    return lines, losses + [line["test"].pop("loss") for line in lines if "test" in line]


def assert_same(found, wanted, *, exact: bool = False) -> None:
    for name in ("last", "best"):
        assert_same_weights(Run(found).load_checkpoint(name)["model"], Run(wanted).load_checkpoint(name)["model"])
    (lines, losses), (wanted_lines, wanted_losses) = lines_of(found), lines_of(wanted)
    assert lines == wanted_lines
    assert losses == (wanted_losses if exact else [w if w is None else pytest.approx(w, rel=1e-5) for w in wanted_losses])


def alone(options) -> Setup:
    return Setup(options, None, None, Alone(), 1, Watcher(), ExitStack())


def disk_of(place) -> list[dict]:
    return [line["disk"] for line in Run(place).metrics("epoch")]


# Exact: disk.


@pytest.mark.parametrize(
    "way",
    [
        pytest.param({"epochs": 3}, id="sage"),
        pytest.param({"model": "gat", "hidden": 16}, id="gat"),
        pytest.param({"model": "gcn", "norm": "batch", "staleness": 0}, id="gcn on demand"),
        pytest.param({"validate": "sampled", "staleness": 5}, id="sampled validation"),
        pytest.param({"features": "rows", "validate_every": 2}, id="scaled"),
        pytest.param({"features": "standardize", "validate_every": 2}, id="standardized"),
        pytest.param({"precision": "bf16"}, id="bf16"),
        pytest.param({"validate": "none", "fanout": (-1, 3)}, id="all neighbors"),
    ],
)
def test_disk_run_equals_memory_run(stored, tmp_path, way):
    sizes = {"memory": "900KiB"} if way.get("staleness") == 5 or "fanout" in way else {}
    node(stored, options=options(**way), out=tmp_path / "memory")
    node(stored, options=options(**way, **{**DISK, **sizes}), out=tmp_path / "disk")
    if way.get("precision") == "bf16":  # in validation, rounding to bf16 makes one of a last bit
        assert_same_weights(*(Run(tmp_path / r).load_checkpoint("last")["model"] for r in ("disk", "memory")))
        return
    assert_same(tmp_path / "disk", tmp_path / "memory", exact=way.get("validate") == "sampled")
    for found in disk_of(tmp_path / "disk"):
        assert 0 < found["bytes_read"] < 4000 * 47 * 4 * 5
        assert 0 < found["hit_rate"] < 1
        assert 0 < found["resident"] < 1
        assert found["stall_seconds"] >= 0
        assert found["cache"]["capacity_rows"] * 47 * 4 <= 1 << 20


def test_features_in_memory_are_written_near_the_run_and_leave_nothing(data, stored, tmp_path):
    node(data, options=options(epochs=1), out=tmp_path / "memory")
    node(data, options=options(epochs=1, **DISK), out=tmp_path / "disk")
    assert_same(tmp_path / "disk", tmp_path / "memory")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["disk", "memory"]
    assert not list((tmp_path / "disk").glob("*.npy"))
    result = node(data, options=options(epochs=1, repeats=2, **DISK))  # and without a run
    assert len(result.test_accuracy.values) == 2


@pytest.mark.parametrize("storage", [DISK, RESIDENT], ids=["disk", "resident"])
def test_a_run_that_stops_ends_as_one_that_did_not(stored, tmp_path, storage):
    made = options(epochs=3, batch_size=60, validate_every=2, **{**storage, "memory": "1MiB" if storage is DISK else "250KiB"})
    node(stored, options=made, out=tmp_path / "whole")
    for stop in (StopAt("step", 6), ctrl_c_at("step", 3), ctrl_c_at("validating", 1), StopAt("epoch", 1)):
        place = tmp_path / f"{stop.kind}-{stop.number}"
        with pytest.raises((StoppedError, KeyboardInterrupt)):
            node(stored, options=made, out=place, watcher=stop)
        node(stored, options=made, out=place, resume=True)
        assert_same(place, tmp_path / "whole", exact=True)


def test_a_run_in_memory_may_go_on_with_features_on_disk_and_back(stored, tmp_path):
    in_memory, on_disk = options(), options(**DISK)
    node(stored, options=in_memory, out=tmp_path / "whole")
    for begun, then, name in ((in_memory, on_disk, "there"), (on_disk, in_memory, "back")):
        with pytest.raises(StoppedError):
            node(stored, options=begun, out=tmp_path / name, watcher=StopAt("step", 5))
        node(stored, options=then, out=tmp_path / name, resume=True)
        assert_same(tmp_path / name, tmp_path / "whole")


def test_another_budget_may_go_on_with_a_disk_run_but_not_with_a_resident_one(stored, tmp_path):
    for storage in (DISK, RESIDENT):
        place, made = tmp_path / storage["storage"], options(**storage)
        with pytest.raises(StoppedError):
            node(stored, options=made, out=place, watcher=StopAt("step", 3))
        if storage is DISK:
            node(stored, options=replace(made, memory="2MiB"), out=place, resume=True)
        else:
            with pytest.raises(ValueError, match="was begun with memory"):
                node(stored, options=replace(made, memory="2MiB"), out=place, resume=True)


# Resident partitions.


class Batches(hr.train.Watcher):
    """Steps' losses."""

    def __init__(self):
        self.losses = []

    def step(self, event, clock):
        self.losses.append(event.loss)


def test_a_resident_run_repeats_itself_and_sees_other_partitions_each_epoch(stored, tmp_path):
    seen = [Batches(), Batches()]
    results = [node(stored, options=options(validate_every=3, **RESIDENT), out=tmp_path / str(i), watcher=seen[i]) for i in (0, 1)]
    assert seen[0].losses == seen[1].losses
    assert_same(tmp_path / "0", tmp_path / "1", exact=True)
    assert results[0].test_accuracy > 0.5
    for found in disk_of(tmp_path / "0"):
        assert found["pinned"] == 2
        assert found["partitions"] == 40
        assert 2 / 40 < found["resident"] < 1
        assert found["resident_edges"] < found["resident"]
        assert found["loads"] >= 1
        assert found["bytes_read"] <= found["loads"] * 100 * 47 * 4
    assert disk_of(tmp_path / "0")[1]["loads"] < disk_of(tmp_path / "0")[0]["loads"]  # who stays is not read again


def test_with_every_partition_resident_it_is_the_run_on_the_reordered_graph(stored, tmp_path):
    order = training_first(stored.splits["train"], 4000, seed=0)
    assert torch.equal(order.sort().values, torch.arange(4000))
    assert set(order[:200].tolist()) == set(stored.splits["train"].tolist())
    node(stored.reorder(order), options=options(), out=tmp_path / "memory")
    node(stored, options=options(**{**RESIDENT, "memory": "8MiB"}), out=tmp_path / "resident")
    assert_same(tmp_path / "resident", tmp_path / "memory")
    first, second = disk_of(tmp_path / "resident")
    assert first["resident"] == first["resident_edges"] == 1.0
    assert first["loads"] == second["loads"] == 40  # a validation had the memory in between


def test_batches_of_a_resident_run_have_resident_nodes_and_their_features(stored):
    made = options(**{**RESIDENT, "memory": "300KiB"}, validate="sampled", dropout=0.0)
    kept = stored_data(stored, made, None, None)
    recipe = kept.recipe(make_model(stored, made), alone(made))
    rows = kept.features.gather(torch.arange(4000))
    for epoch in range(3):
        count = 0
        for batch in recipe.batches(epoch, 0):
            there = {slot: p for p, slot in recipe.places.items()}
            local = batch.n_id.long()
            ids = torch.tensor(
                [there[int(i) // recipe.size] * recipe.size + int(i) % recipe.size for i in local]
            )  # KeyError if none
            assert torch.equal(batch.x, rows[ids])
            assert torch.equal(batch.y, kept.data.y[ids[: batch.batch_size]])
            edges = batch.sample.edge_index()
            for u, v in zip(ids[edges[0]].tolist()[:50], ids[edges[1]].tolist()[:50], strict=True):
                assert u in kept.data.graph.neighbors(v)
            count += 1
        assert count == recipe.num_batches(epoch)
        if epoch == 1:
            assert recipe.validate(lambda done, total: None)["accuracy"] > 0.2  # sampled, over the whole graph


@pytest.mark.parametrize("storage", [DISK, RESIDENT], ids=["disk", "resident"])
def test_a_validation_has_the_memory_to_itself(stored, storage):
    made = options(**storage)
    kept = stored_data(stored, made, None, None)
    recipe = kept.recipe(make_model(stored, made), alone(made))
    held = []

    def look(done, total):
        held.append((recipe.cache, recipe.resident if storage is RESIDENT else None, heap._frugal))

    for epoch in range(2):
        assert sum(1 for _ in recipe.batches(epoch, 0)) == recipe.num_batches(epoch)
        recipe.validate(look)
    assert set(held) == {(None, None, 1)}


# What is refused.


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"storage": "disk"}, "storage disk needs memory"),
        ({"memory": "1GiB"}, "memory 1GiB bounds what features on disk take"),
        ({"storage": "disk", "memory": "much"}, "is not a size"),
        ({"storage": "disk", "memory": "0MiB"}, "memory must be above 0"),
        ({"storage": "disk", "memory": "1GiB", "full_batch": True}, "full_batch computes on all features at once"),
        ({"storage": "disk", "memory": "1GiB", "partitions": 8}, "partitions are for storage resident"),
        ({"storage": "resident", "memory": "1GiB", "partitions": 1}, "at least 2"),
        ({"storage": "ssd", "memory": "1GiB"}, "storage must be one of memory, disk, resident"),
    ],
)
def test_options_that_do_not_go_together_are_refused(given, message):
    with pytest.raises(ValueError, match=message):
        NodeOptions(**given)


def test_options_of_a_gpu_that_samples_are_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    NodeOptions(device="cuda", **DISK)
    for more in ({"mode": "uva"}, {"device_cache": "20%"}, {"hot": "probability"}):
        with pytest.raises(ValueError, match="with storage disk batches are made in main memory"):
            NodeOptions(device="cuda", **DISK, **more)


def test_budgets_that_are_too_small_are_refused_with_what_is_needed(stored, tmp_path):
    with pytest.raises(
        ValueError, match=r"memory is 100 KiB and .* are needed \(rows of batches .*\): give memory 1MiB, or a smaller"
    ):
        node(stored, options=options(storage="disk", memory="100KiB"), out=tmp_path / "run")
    with pytest.raises(ValueError, match=r"memory is 20.0 KiB .* 3 of 40 partitions.*: give memory 1MiB, or more partitions"):
        node(stored, options=options(storage="resident", memory="20KiB", partitions=40), out=tmp_path / "run")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("storage", [DISK, RESIDENT], ids=["disk", "resident"])
def test_bad_data_is_refused(stored, storage):
    with pytest.raises(ValueError, match="has no features"):
        node(replace(stored, x=None), options=options(**storage))
    spoilt = stored.x.clone()
    spoilt[3210, 5] = float("nan")
    with pytest.raises(ValueError, match=r"features must be finite: x\[\d+, 5\] is nan"):
        node(replace(stored, x=spoilt), options=options(**storage))


def test_a_full_disk_is_named(data, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(ArrayFile, "append", full)
    with pytest.raises(OSError, match=r"rows of .* do not fit in .* \(No space left on device\): give out on a larger disk"):
        node(data, options=options(**DISK), out=tmp_path / "run")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("staleness", [0, 7])
def test_batches_ahead_change_nothing(stored, staleness):
    seen = [Batches(), Batches()]
    for watcher, ahead in zip(seen, (2, staleness), strict=True):
        node(stored, options=options(epochs=1, validate="none", staleness=ahead, **RESIDENT), watcher=watcher)
    assert seen[0].losses == seen[1].losses


# Under a hard limit.


@linux
def test_features_of_four_times_the_memory_train_under_a_hard_limit(tmp_path):
    child = Path(__file__).parents[2] / "node_memory_child.py"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "MALLOC_ARENA_MAX": "1", "OMP_NUM_THREADS": "1"}
    command = ["bash", "-c", 'ulimit -s 256; exec "$@"', "-", sys.executable, str(child), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["whole"] == "does not fit"  # the limit is one
    assert found["features"] >= 4 * found["allowed"] > 4 * found["memory"]  # with all else that training takes
    for storage in ("disk", "resident"):
        assert found[storage]["accuracy"] > 0.5
        assert all(line["bytes_read"] > 0 for line in found[storage]["disk"])
