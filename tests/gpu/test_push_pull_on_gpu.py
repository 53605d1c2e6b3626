"""Push-pull training by two ranks that share a GPU, through gloo: weights and losses are those of one process on a CPU."""

import json
import sys
from pathlib import Path

import pytest
import torch

import headrace as hr

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU that torch sees"),
]

WAYS = {model: {"model": model} for model in ("sage", "gcn", "gin", "gat", "gatv2")} | {
    "sage, the graph split": {"topology": "split"},
    "sage, sampled from host memory": {"mode": "uva", "device_cache": "20%"},
    "gcn, sampled by CPU threads": {"model": "gcn", "mode": "cpu"},
}


def trained(device, **way):
    """The loss of every batch, and the final weights."""
    data = hr.generate.community(nodes=4_000, edges=60_000, classes=5, features=37, seed=1)
    options = hr.train.NodeOptions(
        **{
            "hidden": 32,
            "heads": 4,
            "fanout": (6, 4),
            "epochs": 2,
            "batch_size": 64,
            "dropout": 0.4,
            "input_dropout": 0.2,
            "class_weights": "balanced",
            "clip": 1.0,
            "optimizer": "sgd",
            "lr": 0.05,
            "accumulate": 4,
            "log_every": 1,
            "inner_norm": "layer" if way.get("model") == "gin" else "batch",
            "device": device,
            "seed": 2,
            **way,
        }
    )
    losses = []

    class Losses(hr.train.Watcher):
        def step(self, event, clock):
            losses.append(event.loss)

    result = hr.train.node(data, options=options, watcher=Losses())
    return losses, {name: tensor.cpu() for name, tensor in result.model.state_dict().items()}


@pytest.fixture(scope="module")
def by_ranks(tmp_path_factory):
    from rank_jobs import Job

    folder = tmp_path_factory.mktemp("push_pull")
    job = Job(__file__, [folder], size=2, folder=folder)
    try:
        assert job.wait(400) == [0, 0], job.said(0) + job.said(1)
    finally:
        job.end()
    return json.loads((folder / "losses.json").read_text()), torch.load(folder / "weights.pt")


@pytest.mark.parametrize("way", WAYS)
def test_two_ranks_of_one_gpu_equal_one_process_on_a_cpu(by_ranks, way):
    alone = {name: value for name, value in WAYS[way].items() if name == "model"}
    losses, weights = trained("cpu", **alone)
    assert by_ranks[0][way] == pytest.approx(losses, abs=1e-5), way
    largest = max(float(tensor.abs().max()) for tensor in weights.values())
    for name, tensor in weights.items():
        assert float((by_ranks[1][way][name] - tensor).abs().max()) <= 1e-5 * largest, f"{way}: {name}"


def test_a_delay_on_a_gpu_is_that_of_a_cpu(by_ranks):
    """Two ranks that delay by three steps: on the GPU as on the CPU."""
    on_gpu, on_cpu = by_ranks[0]["stash"], by_ranks[0]["stash on a CPU"]
    assert on_gpu == pytest.approx(on_cpu, abs=1e-5)
    assert on_gpu != pytest.approx(by_ranks[0]["sage"], abs=1e-5)


def main(folder: Path) -> None:
    results = {name: trained("cuda", parallel="push_pull", **way) for name, way in WAYS.items()}
    delayed = {"parallel": "push_pull", "versions": "stash"}
    results |= {"stash": trained("cuda", **delayed), "stash on a CPU": trained("cpu", **delayed)}
    if results["sage"][0]:  # rank 0 alone is told of steps
        (folder / "losses.json").write_text(json.dumps({name: losses for name, (losses, _) in results.items()}))
        torch.save({name: weights for name, (_, weights) in results.items()}, folder / "weights.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
