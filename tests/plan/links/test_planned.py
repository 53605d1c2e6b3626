"""Options of link prediction that a plan completes."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace as hr
from headrace.plan import link_plan, planned_link
from headrace.plan.links.probe import disk_rate, edge_rate
from headrace.train import LinkOptions, Run, link
from headrace.train.links.data import LinkData
from headrace.train.links.memory import spare_slots
from headrace.train.links.predicted import beside_measured

RATES = {"edges_per_second": 1e5, "disk": 1e9}


@pytest.fixture(scope="module")
def data():
    return hr.generate.community(nodes=6000, edges=9000, classes=2, features=2)


def test_what_is_not_given_is_planned(data):
    made = planned_link(data, {"dim": 64, "memory": "1GiB"}, **RATES)
    assert (made.options.storage, made.options.dim, made.options.memory) == ("host", 64, "1GiB")
    assert made.options.batch_size == made.plan.batch_size
    assert made.chosen == ("dim", "memory")
    assert made.record()["predicted"] == {"read": 0.0, "written": 0.0, "seconds": made.plan.setting.edges / 1e5}


@settings(max_examples=15, deadline=None)
@given(st.integers(7, 40), st.booleans())
def test_training_accepts_what_is_planned_for_its_memory(data, mebibytes, raw):
    edges = LinkData.of(data)
    sizes = {"nodes": edges.num_nodes, "train": len(edges.train), "others": len(edges.val) + len(edges.test)}
    sizes["edge_bytes"] = edges.train[:1].nbytes
    options = {"dim": 128, "memory": f"{mebibytes}MiB", "raw": raw}
    try:
        made = planned_link(data, options, **RATES)
    except ValueError as error:
        assert "is too small" in str(error)  # noqa: PT017
        least = LinkOptions(**options, storage="disk", partitions=16, buffer=2, batch_size=100)
        with pytest.raises(ValueError, match="are needed"):  # a plan refuses what training refuses
            spare_slots(least, **sizes)
        return
    assert spare_slots(made.options, **sizes) >= 0


def test_memory_decides_between_rows_in_memory_and_on_disk(data):
    few, many = (
        planned_link(data, {"dim": 500, "memory": size, "raw": True, "negatives": 10}, **RATES).options
        for size in ("24MiB", "256MiB")
    )
    assert (few.storage, few.order, many.storage) == ("disk", "comet", "host")
    assert 0 < few.buffer < few.partitions


@pytest.mark.parametrize(
    "asked",
    [
        {"storage": "disk"},
        {"storage": "device"},
        {"partitions": 8},
        {"buffer": 4},
        {"partitions": 10, "buffer": 3},
        {"order": "beta", "storage": "disk"},
        {"batch_size": 77, "staleness": 3},
        {"storage": "host", "partitions": 8, "buffer": 4},
    ],
    ids=str,
)
def test_explicit_options_win(data, asked):
    made = planned_link(data, {"dim": 16, "memory": "1GiB", **asked}, **RATES)
    assert {name: getattr(made.options, name) for name in asked} == asked
    if "storage" not in asked and ("partitions" in asked or "buffer" in asked):
        assert made.options.storage == "disk"
    if asked == {"partitions": 10, "buffer": 3}:
        assert made.options.order == "best"
        assert "no groups for comet" in made.plan["order"].reason


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"storage": "host", "memory": "3MiB"}, "storage host needs"),
        ({"partitions": 10, "buffer": 3, "order": "comet"}, "order comet does not go with partitions 10 and buffer 3"),
        ({"partitions": 4, "buffer": 5}, "buffer must be less than the 4 partitions"),
        ({"partitions": 4, "memory": "3MiB"}, "even on disk with partitions 4"),
        ({"storage": "host", "partitions": 8}, "give both, or neither"),
        ({"storage": "tape"}, "storage must be one of"),
        ({"staleness": -1}, "staleness must be at least 0"),
        ({"negatives": 0}, "there is nothing to plan"),
        ({"decoder": "transf"}, "decoder must be one of"),
    ],
)
def test_what_cannot_be_is_refused(data, asked, message):
    with pytest.raises(ValueError, match=message):
        planned_link(data, {"dim": 200, "memory": "1GiB", **asked}, **RATES)


def test_a_buffer_that_the_gpu_cannot_hold_is_refused():
    sizes = {"memory": 8 << 30, "device_memory": 1 << 30, "storage": "disk"}
    assert link_plan(10_000_000, 1000, 200, **sizes, buffer_on="host").buffer_on == "host"
    with pytest.raises(ValueError, match="buffer_on device needs"):
        link_plan(10_000_000, 1000, 200, **sizes, partitions=8, buffer=4, buffer_on="device")
    with pytest.raises(ValueError, match="storage device needs"):
        link_plan(10_000_000, 1000, 200, memory=8 << 30, device_memory=1 << 30, storage="device")


def test_a_run_keeps_its_plan_and_its_bytes_are_as_predicted(data, tmp_path):
    asked = {"dim": 32, "storage": "disk", "partitions": 8, "buffer": 4, "epochs": 3, "threads": 1, "test_edges": 20}
    made = planned_link(data, asked, **RATES)
    result = link(data, made.options, out=tmp_path / "run", plan=made.record())
    predicted, measured = result.plan["predicted"], result.plan["measured"]
    moved = predicted["read"] - 12 * made.plan.setting.edges
    assert measured["written"] == predicted["written"] == moved
    assert measured["read"] - moved in (12 * made.plan.setting.edges, 24 * made.plan.setting.edges)
    assert measured["seconds"] > 0
    run = Run(tmp_path / "run")
    assert run.header["plan"]["choices"][0]["name"] == "storage"
    assert run.result()["plan"] == result.plan
    again = link(data, made.options, out=tmp_path / "run", resume=True)
    assert again.plan == result.plan


def test_runs_without_a_plan_have_none(data):
    assert link(data, LinkOptions(dim=4, epochs=1, test_edges=5, val_edges=5, threads=1)).plan is None
    assert beside_measured({"predicted": {"seconds": 1.0}}, [])["measured"] is None


def test_rates_are_measured(data, tmp_path):
    options = LinkOptions(dim=8, batch_size=300, negatives=10, threads=1)
    assert edge_rate(LinkData.of(data), options) > 1000
    assert disk_rate(tmp_path, size=1 << 20, times=1) > 1e5
    assert not list(tmp_path.iterdir())
