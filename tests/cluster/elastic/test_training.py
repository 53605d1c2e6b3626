"""Whole trainings by servers in processes of their own are those of `full_batch` in one process. Servers start thrice."""

import json
import shutil

import pytest
import torch

import elastic_training
from elastic_training import SERVERS, data_of, dataset, options
from headrace import generate
from headrace.cluster import partition
from headrace.train import Watcher, node
from namespaces import in_namespaces, namespaces
from rank_jobs import Job

FLOWS = ("sync", "pipe")
EXACT = [f"sage:{flow}:4" for flow in FLOWS]
FURTHER = [f"{model}:{flow}:4" for model in ("gcn", "gin") for flow in FLOWS]
CULPRIT = 1
KILLED = [f"sage:{flow}:4" for flow in FLOWS]


def start(folder, cases, *, size=SERVERS, **how):
    return Job(elastic_training.__file__, [folder, *cases], size=size, folder=folder, **how)


def ran(folder, cases, *, size=SERVERS, **how):
    """The folder of servers that have ended well."""
    job = start(folder, cases, size=size, **how)
    try:
        assert job.wait(300) == [0] * size, "\n".join(job.said(rank) for rank in range(size))
    finally:
        job.end()
    return folder


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Three servers, also with a part's files each, and with training nodes on one of them alone."""
    folder = tmp_path_factory.mktemp("servers")
    partition(dataset(), folder / "parts", parts=SERVERS, by="ldg")
    for rank in range(SERVERS):
        shutil.move(folder / "parts" / f"part-{rank}", folder / f"part-{rank}")
    shutil.rmtree(folder / "parts")
    return ran(folder, [f"{EXACT[0]}/late", *EXACT[1:], "gcn:pipe:3:part", "sage:pipe:4:bare"])


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """Runs whose server 1 was killed in the middle of an epoch, and what the others said within 10 seconds."""
    folder, said = tmp_path_factory.mktemp("killed"), {}
    for case in KILLED:
        job = start(folder, [f"{case}/kill={CULPRIT}@100"])
        try:
            assert job.processes[CULPRIT].wait(120) == -9, job.said(CULPRIT)
            statuses = job.wait(10)
            said[case] = [job.said(rank) for rank in range(SERVERS)]
            assert None not in statuses, (statuses, said)
            assert all(statuses), said
        finally:
            job.end()
    return folder, said


@pytest.fixture(scope="module")
def further(tmp_path_factory):
    """Three servers with other models."""
    return ran(tmp_path_factory.mktemp("further"), FURTHER)


def assert_close(found, wanted, tolerance=1e-5):
    largest = max(float(tensor.abs().max()) for tensor in wanted.values())
    for name, tensor in wanted.items():
        assert float((found[name] - tensor).abs().max()) <= tolerance * largest, name


def assert_same_bits(found, wanted):
    assert all(torch.equal(found[name], wanted[name]) for name in wanted | found)


def weights(folder, case):
    return torch.load(folder / f"{case.replace(':', '-')}.pt")


def facts(folder, case, size=SERVERS):
    return [json.loads((folder / f"{case.replace(':', '-')}.{rank}.json").read_text()) for rank in range(size)]


@pytest.fixture(scope="module")
def whole():
    """Weights of `full_batch` in one process."""
    known = {}

    def weights_of(model, kind="whole"):
        if (model, kind) not in known:
            data = dataset() if kind == "part" else data_of(kind, None, 0)
            known[model, kind] = node(data, options(model), watcher=Watcher()).model.state_dict()
        return known[model, kind]

    return weights_of


@pytest.mark.slow
@pytest.mark.parametrize("case", FURTHER)
def test_weights_of_other_models_are_those_of_full_batch(further, whole, case):
    assert_close(weights(further, case), whole(case.split(":")[0]))
    assert_same_bits(weights(further, case), weights(further, case.replace("sync", "pipe")))


@pytest.mark.parametrize("case", EXACT)
def test_weights_are_those_of_full_batch(trained, whole, case):
    assert_close(weights(trained, case), whole(case.split(":")[0]))


def test_pipe_has_the_bits_of_sync(trained):
    assert_same_bits(weights(trained, "sage:pipe:4"), weights(trained, "sage:sync:4"))


def test_a_server_needs_its_own_part_alone(trained, whole):
    assert_close(weights(trained, "gcn:pipe:3:part"), whole("gcn"))


def test_servers_without_training_nodes(trained, whole):
    assert [one["seeds"] > 0 for one in facts(trained, "sage:pipe:4:bare")] == [True, False, False]
    assert_close(weights(trained, "sage:pipe:4:bare"), whole("sage", "bare"))


@pytest.mark.parametrize("case", EXACT)
def test_servers_send_the_bytes_of_the_formula_and_make_a_call_for_each_task(trained, case):
    for one in facts(trained, case):
        assert one["rows"] == one["formula"] > 0
        assert one["calls"] == one["tasks"]
        assert one["rows_here"] <= one["own_and_ghosts"] < dataset().num_nodes


@pytest.mark.parametrize("flow", ["sync", "pipe"])
def test_one_server_alone_has_the_weights_of_full_batch(whole, flow):
    for model in ("sage", "gcn", "gin"):
        result = node(dataset(), options(model, flow=flow, intervals=5), watcher=Watcher())
        assert_close(result.model.state_dict(), whole(model))


@pytest.mark.slow
@pytest.mark.parametrize("case", KILLED)
def test_a_killed_server_ends_all_and_is_named(killed, case):
    for rank in {0, 1, 2} - {CULPRIT}:
        assert f"rank {CULPRIT} (process" in killed[1][case][rank]
        assert "has ended without a word" in killed[1][case][rank]


@pytest.mark.slow
def test_a_killed_run_goes_on_to_the_same_bits(killed, trained, tmp_path):
    shutil.copytree(killed[0], tmp_path, dirs_exist_ok=True)
    ran(tmp_path, [f"{case}/resume" for case in KILLED])
    for case in KILLED:
        assert_same_bits(weights(tmp_path, case), weights(trained, case))


@pytest.mark.slow
def test_a_killed_run_goes_on_with_another_number_of_servers_and_two_train_as_three_do(killed, whole, tmp_path):
    shutil.copytree(killed[0], tmp_path, dirs_exist_ok=True)
    cases = ["sage:sync:7", "sage:pipe:7", "gcn:pipe:7", "gin:pipe:7"]
    ran(tmp_path, [*(f"{case}/resume" for case in KILLED), *cases], size=2)
    for case in (*KILLED, *cases):
        assert_close(weights(tmp_path, case), whole(case.split(":")[0]))
    assert_same_bits(weights(tmp_path, "sage:pipe:7"), weights(tmp_path, "sage:sync:7"))


@pytest.mark.slow
def test_bytes_on_the_link_are_at_most_three_percent_more(tmp_path):
    with namespaces(SERVERS) as network:
        ran(tmp_path, ["sage:pipe:4:wide"], **in_namespaces(network, range(SERVERS)))
    for one in facts(tmp_path, "sage:pipe:4:wide"):
        assert one["rows"] == one["formula"]
        assert one["rows"] <= one["on_link"] <= 1.03 * one["sent"], one


@pytest.mark.slow
@pytest.mark.parametrize("model", ["sage", "gat"])
def test_each_of_three_machines_has_its_own_part_alone_and_the_memory_that_it_said(tmp_path, model):
    large = generate.community(nodes=90_000, edges=900_000, classes=4, features=256, seed=5)
    partition(large, tmp_path / "parts", parts=SERVERS)
    for rank in range(SERVERS):
        shutil.move(tmp_path / "parts" / f"part-{rank}", tmp_path / f"part-{rank}")
    shutil.rmtree(tmp_path / "parts")
    case = f"{model}:pipe:8:part"
    with namespaces(SERVERS) as network:
        ran(tmp_path, [case], **in_namespaces(network, range(SERVERS)))
    for one in facts(tmp_path, case):
        assert one["rows_here"] <= one["own_and_ghosts"] < large.num_nodes
        assert 0.85 * one["estimate"] <= one["peak"] <= 1.15 * one["estimate"], one
        assert one["peak"] > 400 << 20  # so most of it is no library's


@pytest.mark.slow
def test_a_run_of_flow_async_that_was_killed_goes_on_with_fewer_servers(tmp_path):
    case = "sage:async1:4"
    job = start(tmp_path, [f"{case}/kill={CULPRIT}@150"])
    try:
        assert job.processes[CULPRIT].wait(120) == -9, job.said(CULPRIT)
        assert None not in job.wait(10)
    finally:
        job.end()
    ran(tmp_path, [f"{case}/resume"], size=2)
    assert all(bool(torch.isfinite(weight).all()) for weight in weights(tmp_path, case).values())
    for one in facts(tmp_path, case, size=2):
        assert one["lead"] <= 1
        assert one["age"] <= 2
