"""Plans: what is chosen where the answer is clear, what they hold, and what is refused."""

import json
from dataclasses import replace

import pytest
import torch

import headrace as hr
from headrace import _native
from headrace.plan import Workload, advise
from headrace.plan.whole.cost import Cost
from headrace.plan.whole.steps import forward_cost, gradient_sums, step_cost, sums_per_step, ways
from machines import CACHE, round_machine

MACHINE = round_machine()


@pytest.fixture(scope="module")
def data() -> hr.Dataset:
    return hr.generate.community(nodes=2000, edges=40_000, classes=4, features=32, seed=1)


def operations(plan) -> list[str]:
    return [plan[f"layer {i + 1}: operations"].chosen for i in range(len(plan.workload.layers))]


def test_the_smaller_width_is_summed(data):
    plan = advise(data, [512, 8, 512], conv="gcn", machine=MACHINE, dtype=torch.float32, input_dropout=0.5)
    assert operations(plan) == ["transform", "aggregate"]
    assert plan.configuration.hows == ("transform", "aggregate")


def test_a_first_layer_sums_first_up_to_twice_the_width(data):
    """Its features want no gradient: one sum before the map stands against two after it."""
    graph = hr.Graph.from_edges(torch.randint(500, (200_000,)), torch.randint(500, (200_000,)), 500)
    for wide, expected in ((100, "aggregate"), (200, "transform")):
        plan = advise(graph, [wide, 64, 64], conv="sage", machine=round_machine(products=_fast_products()), dtype=torch.float32)
        assert operations(plan)[0] == expected


def test_sums_of_features_are_made_once_where_that_pays(data):
    machine = round_machine(products=_fast_products())
    often = advise(data, "gin", hidden=32, epochs=1000, machine=machine)
    once = advise(data, [512, 8, 4], conv="gin", epochs=1, machine=machine)
    little = advise(data, "gin", hidden=512, epochs=1000, machine=MACHINE)  # slow products: a fiftieth is not saved
    assert often["layer 1: sums of features"].chosen == "made once"
    assert often.configuration.keep_sum == "always"
    for plan in (once, little):
        assert plan["layer 1: sums of features"].chosen == "at every step"
        assert len(plan["layer 1: sums of features"].alternatives) == 2
    assert once.configuration.keep_sum == "never"


def test_dropout_of_the_input_forbids_kept_sums(data):
    plan = advise(data, "gcn", epochs=1000, machine=MACHINE)  # our GCN drops features, as its paper does
    choice = plan["layer 1: sums of features"]
    assert choice.chosen == "at every step"
    assert len(choice.alternatives) == 1
    assert "dropout of the input (0.5)" in choice.reason
    assert advise(data, "gcn", epochs=1000, input_dropout=0.0, machine=MACHINE).configuration.hows[0] == "kept"


def test_bf16_is_suggested_where_sums_bound_the_step(data):
    bound_by_sums = round_machine(products=_fast_products())
    plan = advise(data, "sage", machine=bound_by_sums)
    assert plan["type"].chosen == "bfloat16"
    assert "x as fast" in plan["type"].reason
    bound_by_products = advise(data, "sage", hidden=512, machine=MACHINE)  # products are as fast in either type
    assert bound_by_products["type"].chosen == "float32"
    assert advise(data, "sage", machine=bound_by_sums, dtype=torch.float32)["type"].reason == "as asked"


def test_a_graph_whose_rows_fit_into_the_cache_stays_as_it_is(data):
    plan = advise(data, "sage", machine=MACHINE)
    assert plan["order of nodes"].chosen == "as it is"
    assert "in any order" in plan["order of nodes"].reason
    assert plan.order is None
    assert plan.apply(data).graph is data.graph


def test_communities_that_were_shuffled_are_reordered_where_the_epochs_pay_for_it():
    data = hr.generate.community(nodes=20_000, edges=400_000, classes=40, features=64, homophily=0.98, seed=0)
    small = round_machine(cache_bytes=CACHE // 2)
    many = advise(data, "gcn", epochs=100_000, machine=small, dtype=torch.float32)
    assert many["order of nodes"].chosen in ("rabbit", "first_neighbor")
    as_it_is, reordered = many["order of nodes"].alternatives[0], many["order of nodes"].candidate
    assert as_it_is.name == "as it is"
    assert reordered.seconds < as_it_is.seconds
    assert reordered.bytes < as_it_is.bytes
    moved = many.apply(data)
    assert moved.num_edges == data.num_edges
    assert torch.equal(moved.original_ids, many.order)
    quick = round_machine(cache_bytes=CACHE // 2, reads=tuple(replace(r, seconds=r.seconds / 100) for r in small.reads))
    once = advise(data, "gcn", epochs=1, machine=quick, dtype=torch.float32)["order of nodes"]
    assert once.chosen == "as it is"
    assert "epochs" in once.reason


def test_apply_gives_features_in_the_type_that_was_chosen(data):
    plan = advise(data, "sage", machine=MACHINE, dtype=torch.bfloat16)
    assert plan.apply(data).x.dtype == torch.bfloat16
    assert plan.apply(data, features=False).x.dtype == torch.float32
    other = hr.generate.community(nodes=100, edges=600, classes=3, features=32)
    with pytest.raises(ValueError, match=r"this plan is for 2000 nodes and 40000 edges, the dataset has 100 and 600"):
        plan.apply(other)


@pytest.mark.parametrize("model", ["gcn", "gin", "sage", "gat", "gatv2"])
def test_every_kind_of_model_has_a_plan_that_says_why(data, model):
    plan = advise(data, model, hidden=16, layers=3, machine=MACHINE)
    assert plan.workload.dims == (32, 16, 16, 4)
    assert plan.step.seconds > plan.forward.seconds > 0
    assert plan.step.bytes > plan.forward.bytes > 0
    for choice in plan:
        assert choice.chosen in [candidate.name for candidate in choice.alternatives]
        assert choice.candidate.seconds >= 0
        assert len(choice.reason) > 5
        assert choice.name in str(plan)
    assert min(plan.seconds_of.values()) <= plan.step.seconds * (1 + 1e-9)
    assert plan.seconds_of[plan.configuration] == pytest.approx(plan.step.seconds)
    found = json.loads(json.dumps(plan.as_dict()))
    assert set(found) == {"model", "epochs", "dtype", "choices", "kernels", "forward", "step", "properties", "machine"}
    assert found["choices"][0]["alternatives"][0].keys() == {"name", "bytes", "seconds"}


@pytest.mark.parametrize("model", ["gcn", "gin", "sage", "gat", "gatv2"])
def test_the_planned_model_computes_the_same(data, model):
    plan = advise(data, model, hidden=16, input_dropout=0.0, machine=MACHINE, dtype=torch.float32, epochs=1000)
    network = plan.workload.build().eval()
    plain = network(hr.loader.WholeBatch(data, 2, keep_sum="never"))
    planned = plan.configuration.apply_to(network)(hr.loader.WholeBatch(data, 2, keep_sum=plan.configuration.keep_sum))
    torch.testing.assert_close(planned, plain, rtol=1e-4, atol=1e-4)
    with pytest.raises(ValueError, match="for 2 layers, the model has 3"):
        plan.configuration.apply_to(hr.nn.GNN(32, 16, 4, layers=3))


def test_a_model_is_read_as_it_is(data):
    for kind in ("gcn", "gin", "sage", "gat", "gatv2"):
        made = hr.nn.GNN(32, 16, 4, layers=3, conv=kind, heads=4, dropout=0.25)
        plan = advise(data, made, machine=MACHINE)
        assert (plan.workload.kind, plan.workload.dims) == (kind, (32, 16, 16, 4))
        assert plan.workload.input_dropout == (0.25 if kind in ("gcn", "gat", "gatv2") else 0.0)
        assert plan.workload.dropout == 0.25
    assert advise(data, hr.nn.GCNConv(32, 7), machine=MACHINE).workload.dims == (32, 7)


def test_orders_of_operations_by_hand():
    gcn = Workload("gcn", (100, 10, 5), input_dropout=0.0)
    first, second = gcn.layers
    assert ways(first, may_keep=True) == ("transform", "aggregate", "kept")
    assert ways(second, may_keep=True) == ("transform", "aggregate")
    assert [sums_per_step(first, how) for how in ("transform", "aggregate", "kept")] == [2, 1, 0]
    assert [sums_per_step(second, how) for how in ("transform", "aggregate")] == [2, 2]
    assert not gradient_sums(first, "aggregate")
    free = round_machine(stream_rate=1e30, own_rates=())  # so that products and sums alone are left
    cost = {"rows": 1000, "dtype": torch.float32, "sums": lambda width: Cost(0.0, float(width))}
    product = 2 * 1000 * 100 * 10 * 1e-9
    assert forward_cost(free, first, "transform", **cost).seconds == pytest.approx(product + 10)
    assert step_cost(free, first, "transform", **cost).seconds == pytest.approx(2 * product + 20)
    assert step_cost(free, first, "aggregate", **cost).seconds == pytest.approx(2 * product + 100)
    assert step_cost(free, first, "kept", **cost).seconds == pytest.approx(2 * product)
    assert step_cost(free, second, "transform", **cost).seconds == pytest.approx(3 * 2 * 1000 * 10 * 5 * 1e-9 + 10)


def test_gin_maps_with_its_first_linear():
    gin = Workload("gin", (100, 16, 16, 3)).layers
    assert [(layer.wide, layer.mapped, layer.narrow) for layer in gin] == [(100, 16, 16), (16, 16, 16), (16, 16, 3)]


def test_kernels_of_a_gpu_are_weighed_from_anywhere(data):
    """The router is a pure function: a plan for a GPU that was measured elsewhere needs none here."""
    plan = advise(data, "gcn", "cuda", machine=round_machine("cuda"))
    choice = plan["layer 1: kernel"]
    assert [c.name.split(",")[0].split()[0] for c in choice.alternatives].count("row") == 1
    assert len(choice.alternatives) == 3
    assert choice.chosen == choice.alternatives[0].name
    assert "at most" in choice.reason
    assert plan.as_dict()["kernels"]["layer 1: kernel"]["launch"].keys() >= {"variant", "group", "columns", "entries", "warps"}


def test_a_hub_makes_one_program_per_row_slow():
    hub = hr.Graph.from_edges(torch.arange(20_000), torch.zeros(20_000, dtype=torch.int64), 20_000)
    plan = advise(hub, [16, 16], "cuda", machine=round_machine("cuda"), dtype=torch.float32)
    named = {c.name.split()[0].strip(","): c for c in plan["layer 1: kernel"].alternatives}
    assert plan["layer 1: kernel"].chosen.startswith("split")
    assert named["row"].seconds > 2 * named["split"].seconds


def test_windows_are_chosen_where_rows_share_their_neighbors():
    """Blocks of sixteen rows that all read the same hundred."""
    rows = torch.arange(1600)
    block = hr.Graph.from_edges(
        (rows // 16 * 16).repeat_interleave(100) + torch.arange(100).repeat(1600), rows.repeat_interleave(100), 1700
    )
    plan = advise(block, [64, 64], "cuda", machine=round_machine("cuda"), dtype=torch.bfloat16)
    named = {c.name.split()[0].strip(","): c for c in plan["layer 1: kernel"].alternatives}
    assert plan["layer 1: kernel"].chosen.startswith("window of 16")
    assert named["window"].bytes < named["row"].bytes


def test_slices_of_columns_are_weighed_where_rows_outgrow_the_cache():
    edges = torch.randint(20_000, (2, 800_000), generator=torch.Generator().manual_seed(0))
    graph = hr.Graph.from_edges(*edges, 20_000)
    plan = advise(graph, [256, 256], machine=MACHINE, dtype=torch.float32, orders=())  # 20 caches of rows, each read 40 times
    choice = plan["layer 1: kernel"]
    expected = _native.column_tile(20_000, 256, 4, MACHINE.cache_bytes, 40.0)
    assert choice.chosen == ("32 columns at a time" if expected < 256 else "all columns at once")
    assert {candidate.name for candidate in choice.alternatives} == {"32 columns at a time", "all columns at once"}
    sliced, whole = sorted(choice.alternatives, key=lambda candidate: candidate.name)
    assert sliced.bytes != whole.bytes
    assert len(advise(graph, [8, 8], machine=MACHINE)["layer 1: kernel"].alternatives) == 1  # narrower than a slice


def test_graphs_of_no_size_have_plans():
    for graph in (hr.Graph.from_edges([], [], 0), hr.Graph.from_edges([], [], 5), hr.Graph.from_edges([0], [0], 1)):
        assert advise(graph, [8, 4], machine=MACHINE).step.seconds >= 0


def test_what_cannot_be_planned_is_refused(data):
    bare = hr.Dataset(data.graph)
    for arguments, message in (
        ((data, "gnc"), "model must be one of sage, gcn, gin, gat, gatv2, a GNN or a list of widths, not 'gnc'"),
        ((bare, "gcn"), r"no features whose width is known: give dims in place of a name"),
        ((data.graph, "gcn"), "no features whose width is known"),
        ((data, [16]), "at least two of them"),
        ((data, [16, 0]), "all positive"),
        ((data, torch.nn.Linear(3, 4)), "a Linear cannot be planned for"),
    ):
        with pytest.raises(ValueError, match=message):
            advise(*arguments, machine=MACHINE)
    for options, message in (
        ({"epochs": 0}, "epochs must be at least 1"),
        ({"hidden": 0}, "hidden must be at least 1"),
        ({"layers": 0}, "layers must be at least 1"),
        ({"dtype": torch.float16}, r"dtype must be torch.float32, torch.bfloat16 or None, not torch.float16"),
        ({"orders": ["rabit"]}, "there is no order 'rabit': choose among"),
        ({"input_dropout": 1.0}, "input_dropout must be from 0 to below 1"),
        ({"device": "cuda"}, "machine is of a cpu, the plan is for cuda"),
    ):
        with pytest.raises(ValueError, match=message):
            advise(data, "gcn", machine=MACHINE, **options)
    with pytest.raises(ValueError, match="hidden must be a multiple of heads"):
        advise(data, "gat", hidden=20, machine=MACHINE)
    with pytest.raises(KeyError, match="no choice 'x': it has order of nodes"):
        advise(data, "gcn", machine=MACHINE)["x"]


def _fast_products():
    return tuple(type(p)(p.dtype, p.width, 1e15, 1e15) for p in MACHINE.products)
