"""Event streams trained on a GPU: the CPU's losses, whether steps are recorded or launched one by one, lanes or ranks."""

import json
import signal
import sys
from pathlib import Path

import pytest
import torch

import headrace as hr

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU that torch sees"),
]

MODELS = [
    {},
    {"edge": 5},
    {"model": "dyrep"},
    {"model": "jodie"},
    {"model": "tgat", "static": "features"},
    {"task": "edge_class"},
    {"attention": "pyg", "negatives": 3, "loss": "softmax"},
]


class Said(hr.train.Watcher):
    def __init__(self, stop=None):
        self.losses, self.notes, self.stop = [], [], stop

    def step(self, event, clock):
        self.losses.append(event.loss)
        if len(self.losses) == self.stop:
            signal.raise_signal(signal.SIGINT)

    def note(self, text):
        self.notes.append(text)


def data(edge=0):
    """Short times: the gradient of a frequency has the time as a factor, and steps on long ones amplify what was rounded."""
    made = hr.generate.events(nodes=200, events=4000, new=0.02, seed=5)
    long = hr.EventStream.of(made)
    stream = hr.EventStream(long.src, long.dst, long.time / 1000, num_nodes=200)
    rows = torch.randn(len(stream), edge, generator=torch.Generator().manual_seed(0)) if edge else None
    extra = {"src": stream.src, "dst": stream.dst, "time": stream.time, "edge_label": (torch.arange(4000) % 3 == 0).long()}
    extra |= {} if rows is None else {"edge_features": rows}
    x = torch.randn(200, 32, generator=torch.Generator().manual_seed(1)) / 3
    return hr.Dataset(stream.graph(), x=x, extra=extra)


def options(**more):
    base = {"epochs": 1, "hidden": 32, "neighbors": 5, "batch_size": 50, "dropout": 0.0, "optimizer": "sgd", "lr": 1e-3}
    run = {"candidates": 3, "log_every": 1, "threads": 1, "checkpoint_seconds": 0.0, "device": "cuda"}
    return hr.train.TemporalOptions(**(base | run | more))


def trained(stream, *, stop=None, out=None, resume=False, **more):
    said = Said(stop)
    result = hr.train.temporal(stream, options(**more), watcher=said, out=out, resume=resume)
    return said, result


def assert_close(a, b, tolerance):
    for (name, x), y in zip(a.model.state_dict().items(), b.model.state_dict().values(), strict=True):
        torch.testing.assert_close(x.cpu(), y.cpu(), rtol=0, atol=tolerance, msg=name)


@pytest.mark.parametrize("more", MODELS)
@pytest.mark.parametrize("how", [{"lanes": "apart"}, {"capture": "never"}, {"capture": "always"}])
def test_losses_are_those_of_a_cpu(more, how):
    more = dict(more)
    stream = data(more.pop("edge", 0))
    cpu, _ = trained(stream, **more, device="cpu")
    gpu, result = trained(stream, **more, **how)
    assert len(cpu.losses) == len(gpu.losses) > 40
    assert gpu.losses[:20] == pytest.approx(cpu.losses[:20], abs=1e-4)
    for value in result.test.values():
        assert value is not None


@pytest.mark.parametrize("parallel", ["1x1x1", "2x1x1", "1x2x1", "1x1x2", "2x2x2"])
def test_steps_that_are_replayed_train_as_those_launched_one_by_one_and_as_lanes_apart(parallel):
    stream = data()
    never, plain = trained(stream, parallel=parallel, capture="never")
    always, replayed = trained(stream, parallel=parallel, capture="always")
    apart, one_by_one = trained(stream, parallel=parallel, lanes="apart")
    assert always.losses == pytest.approx(never.losses, abs=1e-4)
    assert_close(plain, replayed, 1e-4)
    assert_close(plain, one_by_one, 1e-4)
    assert len(apart.losses) == len(never.losses) * one_by_one_trainers(parallel)


def one_by_one_trainers(parallel):
    i, j, k = map(int, parallel.split("x"))
    return i * j * k


def test_auto_records_and_says_so():
    said, _ = trained(data(), capture="auto")
    assert any("steps are recorded once and replayed as one launch" in note for note in said.notes)
    said, _ = trained(data(), capture="auto", batch_size=1000)
    assert any("fewer than 16 do not earn a recording" in note for note in said.notes)


@pytest.mark.parametrize("stop", [2, 7, 40])  # before the recording, and after it
@pytest.mark.parametrize("more", [{"parallel": "1x1x1"}, {"parallel": "1x2x2"}, {"parallel": "1x2x1", "lanes": "apart"}])
def test_a_run_that_was_interrupted_has_the_bits_of_one_that_was_not(tmp_path, stop, more):
    stream, more = data(), more | {"epochs": 4, "dropout": 0.2, "optimizer": "adam"}
    _, whole = trained(stream, out=tmp_path / "whole", **more)
    with pytest.raises(KeyboardInterrupt):
        trained(stream, out=tmp_path / "cut", stop=stop, **more)
    _, resumed = trained(stream, out=tmp_path / "cut", resume=True, **more)
    assert_close(whole, resumed, 0)
    assert whole.summary()["test"]["ap"] == resumed.summary()["test"]["ap"]
    ends = [hr.train.Run(tmp_path / name).load_checkpoint()["recipe"]["memory"] for name in ("whole", "cut")]
    assert all(torch.equal(a, b) for a, b in zip(*ends, strict=True))


@pytest.mark.parametrize("capture", ["never", "always"])
def test_running_ahead_and_prepared_batches_change_no_bit(tmp_path, capture):
    stream, more = data(), {"capture": capture, "parallel": "1x1x2", "dropout": 0.1}
    now, ahead, read = (
        trained(stream, **more, **how)[1] for how in ({"staleness": 0}, {"staleness": 6}, {"prepared": str(tmp_path / "p")})
    )
    assert_close(now, ahead, 0)
    assert_close(now, read, 0)


def test_static_rows_are_learnt_on_a_gpu():
    _, cpu = trained(data(), static="learned", static_epochs=1, device="cpu")
    _, gpu = trained(data(), static="learned", static_epochs=1)
    assert cpu.model.static.shape == gpu.model.static.shape
    torch.testing.assert_close(gpu.model.static.cpu(), cpu.model.static, rtol=0, atol=1e-3)


def test_two_ranks_of_one_gpu_have_the_losses_of_a_cpu(tmp_path):
    from rank_jobs import Job

    wanted = {parallel: trained(data(), parallel=parallel, device="cpu")[0].losses for parallel in ("1x1x2", "1x2x1")}
    job = Job(__file__, [tmp_path / "losses.json"], size=2, folder=tmp_path)
    try:
        assert job.wait(300) == [0, 0], job.said(0) + job.said(1)
    finally:
        job.end()
    for parallel, losses in json.loads((tmp_path / "losses.json").read_text()).items():
        assert losses[:40] == pytest.approx(wanted[parallel][:40], abs=1e-4), parallel


def main(place: Path) -> None:
    losses = {parallel: trained(data(), parallel=parallel)[0].losses for parallel in ("1x1x2", "1x2x1")}
    if losses["1x1x2"]:  # rank 0 alone is told of steps
        place.write_text(json.dumps(losses))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
