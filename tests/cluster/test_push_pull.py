"""Push-pull training: exact, with the bytes of its formulas, the delays of their functions, and the same end after a kill."""

import json
import random
import shutil
import signal
from pathlib import Path

import pytest
import torch

import push_pull_checks
import rank_training
from headrace.cluster import Grid, first_layer
from headrace.nn import GNN, GATConv, GINConv, Layer, SAGEConv, SplitError
from headrace.train import NodeOptions, Run
from rank_jobs import Job
from training_cases import assert_same_weights, lasting

CHECKS = [name for name in vars(push_pull_checks) if name.startswith("check_")]
QUICK = [
    "check_delays_are_a_replay_of_their_function",
    "check_bytes_are_those_of_the_formula",
    "check_sums_that_travel_in_bf16",
    "check_a_split_graph",
    "check_a_residual_of_the_columns_themselves",
    "check_further_slices",
]
TRAINING = Path(rank_training.__file__)


def ended(job, ranks, seconds=300):
    try:
        assert job.wait(seconds) == [0] * ranks, "\n".join(job.said(rank) for rank in range(ranks))
    finally:
        job.end()


def found_by(ranks, folder, checks):
    """What each rank found in these checks."""
    ended(Job(push_pull_checks.__file__, [folder, *checks], size=ranks, folder=folder), ranks)
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(ranks)]


def assert_found(results, check):
    for rank, result in enumerate(results):
        assert result[check] == "", f"rank {rank}: {result[check]}"


@pytest.fixture(scope="module")
def on_two(tmp_path_factory):
    return found_by(2, tmp_path_factory.mktemp("checks"), QUICK)


@pytest.fixture(scope="module", params=[2, 3, 4])
def on_more(request, tmp_path_factory):
    return found_by(request.param, tmp_path_factory.mktemp("checks"), CHECKS)


@pytest.mark.parametrize("check", QUICK)
def test_on_two_ranks(on_two, check):
    assert_found(on_two, check)


@pytest.mark.slow
@pytest.mark.parametrize("check", CHECKS)
def test_on_all_ranks(on_more, check):
    assert_found(on_more, check)


def trained_by(ranks, folder, case):
    folder.mkdir(exist_ok=True)
    ended(Job(TRAINING, [folder, case], size=ranks, folder=folder), ranks)
    return torch.load(folder / f"{case.partition(':')[0]}.pt")


def killed(folder, case, kills):
    """Kill rank 0 after so many batches on so many ranks, one after the other."""
    folder.mkdir()
    for number, (ranks, batches) in enumerate(kills):
        job = Job(TRAINING, [folder, f"{case}:resume:{batches}" if number else f"{case}:{batches}"], size=ranks, folder=folder)
        try:
            codes = job.wait(60)
            assert codes[0] == -signal.SIGKILL
            assert all(codes), codes
        finally:
            job.end()


def batches_of(folder, case):
    """Which batches of which epochs a run's log counts."""
    return [(line["epoch"], line["batch"]) for line in Run(folder / case).metrics() if line["kind"] == "step"]


def assert_near(cut, uncut):
    """Of weights: sums over another number of slices are rounded otherwise."""
    largest = max(float(tensor.abs().max()) for tensor in uncut.values())
    for name, tensor in uncut.items():
        assert float((cut[name] - tensor).abs().max()) <= 1e-5 * largest, name


@pytest.mark.parametrize("case", ["gat@stash", pytest.param("sage@push", marks=pytest.mark.slow)])
def test_a_killed_run_goes_on_with_the_same_bits_on_as_many_ranks_and_near_them_on_one(tmp_path, case):
    uncut = trained_by(2, tmp_path / "uncut", case)
    killed(tmp_path / "cut", case, [(2, 33)])
    shutil.copytree(tmp_path / "cut", tmp_path / "one")
    assert_same_weights(trained_by(2, tmp_path / "cut", f"{case}:resume"), uncut)
    assert lasting(Run(tmp_path / "cut" / case).metrics()) == lasting(Run(tmp_path / "uncut" / case).metrics())
    rank_training.main(tmp_path / "one", [f"{case}:resume"])
    assert_near(torch.load(tmp_path / "one" / f"{case}.pt"), uncut)
    assert batches_of(tmp_path / "one", case) == batches_of(tmp_path / "uncut", case)  # each of them once an epoch


def near_the_end_of_an_uncut_run(tmp_path, case, kills, ranks):
    uncut = trained_by(2, tmp_path / "uncut", case)
    killed(tmp_path / "cut", case, kills)
    assert_near(trained_by(ranks, tmp_path / "cut", f"{case}:resume"), uncut)
    assert batches_of(tmp_path / "cut", case) == batches_of(tmp_path / "uncut", case)


@pytest.mark.slow
def test_a_killed_run_goes_on_with_another_number_of_ranks(tmp_path):
    near_the_end_of_an_uncut_run(tmp_path, "sage@push", [(2, 26)], 4)


@pytest.mark.slow
@pytest.mark.parametrize("case", ["sage@push", "gcn@stash"])
def test_twenty_kills_at_random_steps_with_other_numbers_of_ranks(tmp_path, case):
    drawn = random.Random(11)
    steps = sorted(drawn.sample(range(1, 4 * 18), 20))
    near_the_end_of_an_uncut_run(tmp_path, case, [(drawn.choice([1, 2, 4]), step) for step in steps], 4)


def test_layers_that_are_not_linear_in_columns_say_why():
    for layer, reason in (
        (Layer(SAGEConv(8, 4, aggr="max"), 8, 4), "a maximum"),
        (Layer(SAGEConv(8, 4, project=True), 8, 4), "a projection"),
        (Layer(GINConv(torch.nn.ReLU()), 8, 8), "does not begin with a linear map"),
        (Layer(GINConv(torch.nn.Linear(8, 4), train_eps=True), 8, 4), "learns eps"),
        (Layer(GATConv(8, 4, residual=True), 8, 4), "a residual of its own"),
        (Layer(torch.nn.Linear(8, 4), 8, 4), "no conv with split"),
    ):
        with pytest.raises(SplitError, match=reason):
            layer.split()
    with pytest.raises(ValueError, match=r"model\.layers\[0\] by columns"):
        first_layer(torch.nn.Linear(3, 3))
    assert first_layer(GNN(8, 8, 3)).split().names == ("conv.lin_l.weight", "conv.lin_r.weight")


def test_options_that_do_not_go_together_are_refused():
    for how, reason in (
        ({"versions": "stash(x)"}, "flush, stash"),
        ({"parallel": "data", "versions": "stash"}, "of push_pull"),
        ({"parallel": "data", "wire": "bf16"}, "of push_pull"),
        ({"slices": 0}, "slices must be at least 1"),
        ({"replicate": "20%"}, "needs share ranks"),
        ({"replicate": "120%", "share": "ranks"}, "a share of the nodes"),
    ):
        with pytest.raises(ValueError, match=reason):
            NodeOptions(**how)


def test_more_ranks_than_columns_and_slices_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="3 columns of features cannot be cut into 4 slices"):
        Grid(0, 4).columns(3)
    with pytest.raises(ValueError, match="must divide the 4 ranks, and 3 does not: use 1, 2, 4"):
        Grid(0, 4, held=3)
