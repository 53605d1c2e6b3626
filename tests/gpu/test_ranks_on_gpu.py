"""Ranks that train on a GPU. Two of them share the one GPU there may be: losses are those of a CPU."""

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

WAYS = {
    "all on the GPU": {},
    "captured": {"capture": "always"},
    "uva, 20 % hot": {"mode": "uva", "device_cache": "20%"},
    "spread over ranks": {"share": "ranks"},
    "spread, launched one by one": {"share": "ranks", "capture": "never"},
    "the graph split": {"topology": "split"},
}


def trained(device, **way):
    data = hr.generate.community(nodes=4_000, edges=80_000, classes=5, features=32, seed=1)
    options = hr.train.NodeOptions(
        hidden=64, fanout=(10, 5), epochs=3, batch_size=64, dropout=0.0, accumulate=2, log_every=1, device=device, seed=2, **way
    )
    losses = []

    class Losses(hr.train.Watcher):
        def step(self, event, clock):
            losses.append(event.loss)

    hr.train.node(data, options=options, watcher=Losses())
    return losses


def test_two_ranks_of_one_gpu_have_the_losses_of_a_cpu(tmp_path):
    from rank_jobs import Job

    wanted = trained("cpu")
    job = Job(__file__, [tmp_path / "losses.json"], size=2, folder=tmp_path)
    try:
        assert job.wait(300) == [0, 0], job.said(0) + job.said(1)
    finally:
        job.end()
    for way, losses in json.loads((tmp_path / "losses.json").read_text()).items():
        assert losses == pytest.approx(wanted, abs=1e-4), way


def main(place: Path) -> None:
    losses = {name: trained("cuda", **way) for name, way in WAYS.items()}
    if losses["captured"]:  # rank 0 alone is told of steps
        place.write_text(json.dumps(losses))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
