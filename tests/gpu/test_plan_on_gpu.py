"""Plans for a GPU: measured, made and verified there."""

import json

import pytest
import torch

import headrace as hr
from headrace.plan import Machine, advise, probe, verify

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def gpu() -> Machine:
    return probe("cuda", repeats=2)


def test_a_probe_finds_plausible_figures(gpu):
    assert gpu.device == "cuda"
    assert gpu.cache_bytes >= 1 << 20
    assert gpu.stream_rate > 1e10
    assert gpu.miss_seconds(256) >= gpu.hit_seconds(256, table_bytes=gpu.cache_bytes) > 0
    assert gpu.product_rate(256, dtype=torch.bfloat16) > 1e12
    json.dumps(gpu.as_dict())


@pytest.mark.parametrize("model", ["gcn", "gin", "sage", "gat", "gatv2"])
def test_choices_and_alternatives_run(gpu, model):
    data = hr.generate.community(nodes=20_000, edges=400_000, classes=8, features=64, seed=0)
    plan = advise(data, model, "cuda", hidden=32, input_dropout=0.0, machine=gpu)
    found = verify(plan, data, repeats=2)
    assert all(row.measured > 0 for row in found.rows)
    if model not in ("gat", "gatv2"):
        assert {row.what for row in found.rows} > {"step"}  # kernels were timed too
        assert any(row.name.startswith("window") for row in found.rows)
    assert plan.apply(data).num_edges == data.num_edges


def test_the_planned_model_computes_what_the_cpu_does(gpu):
    data = hr.generate.community(nodes=2000, edges=40_000, classes=4, features=32, seed=1)
    plan = advise(data, "gin", "cuda", hidden=16, epochs=1000, machine=gpu, dtype=torch.float32)
    model = plan.workload.build().eval()
    with torch.no_grad():
        plain = model(hr.loader.WholeBatch(data, 2, keep_sum="never"))
        there = hr.loader.WholeBatch(plan.apply(data), 2, keep_sum=plan.configuration.keep_sum).to("cuda")
        planned = plan.configuration.apply_to(model.to("cuda"))(there).cpu()
    if plan.order is not None:
        plain = plain[plan.order]
    torch.testing.assert_close(planned, plain, rtol=1e-3, atol=1e-3)
