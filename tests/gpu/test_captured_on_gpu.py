import signal

import pytest
import torch

import headrace as hr
from headrace.loader.padded import Shape
from headrace.train.captured import CapturedStep

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU that torch sees"),
]


@pytest.fixture(scope="module")
def data():
    return hr.generate.community(nodes=20_000, edges=400_000, classes=5, features=32)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("mode", ["gpu", "uva", "cpu"])
def test_a_captured_run_learns_what_a_plain_one_learns(data, mode, precision):
    options = {"hidden": 64, "fanout": (8, 5), "batch_size": 200, "epochs": 3, "lr": 0.01, "dropout": 0.0, "device": "cuda"}
    plain, captured = (
        hr.train.node(data, options=hr.train.NodeOptions(**options, mode=mode, precision=precision, capture=c))
        for c in ("never", "always")
    )
    assert captured.test_accuracy > 0.7
    assert abs(captured.test_accuracy - plain.test_accuracy) < 0.02
    if precision == "fp32":
        for a, b in zip(captured.model.parameters(), plain.model.parameters(), strict=True):
            assert torch.allclose(a, b, rtol=0.05, atol=0.02)


@pytest.mark.parametrize("model", ["sage", "gcn", "gat"])
def test_replays_draw_new_dropout_and_give_the_gradients(data, model):
    loader = hr.loader.NeighborLoader(data, [8, 5], "train", batch_size=128, device="cuda", drop_last=True)
    batches = list(loader)[:12]
    net = hr.nn.GNN(32, 64, 5, layers=2, conv=model, dropout=0.5).cuda()

    def loss(batch):
        rows = net(batch)
        return torch.nn.functional.cross_entropy(rows, batch.y), (rows.argmax(1) == batch.y).sum()

    step = CapturedStep(net, loss, Shape)
    found = [step(batch) for batch in batches]
    assert found[:4] == [None] * 4
    assert step.replays == 8
    losses = [float(step(batches[-1])[0]) for _ in range(4)]
    assert len(set(losses)) == 4  # dropout is drawn anew at each replay
    net.eval()
    still = CapturedStep(net, loss, Shape)
    for batch in batches:
        result = still(batch)
        if result is None:
            continue
        found = [p.grad.clone() for p in net.parameters()]
        for p in net.parameters():
            p.grad = None
        expected, right = loss(batch)
        expected.backward()
        assert torch.allclose(result[0], expected, rtol=1e-4)
        assert int(result[1]) == int(right)
        for a, p in zip(found, net.parameters(), strict=True):
            assert torch.allclose(a, p.grad, rtol=1e-2, atol=1e-5)


def test_models_that_cannot_be_captured_are_refused(data):
    with pytest.raises(ValueError, match="normalizes"):
        hr.train.node(data, options=hr.train.NodeOptions(norm="batch", device="cuda", capture="always"))


def test_steps_are_captured_where_it_pays_and_that_is_said(data):
    class Notes(hr.train.Watcher):
        def __init__(self):
            self.said = []

        def note(self, text):
            self.said.append(text)

    small = {"hidden": 32, "fanout": (5, 4), "batch_size": 500, "epochs": 1, "device": "cuda"}
    for more, captured in (({}, True), ({"capture": "never"}, False), ({"norm": "batch"}, False)):
        notes = Notes()
        hr.train.node(data, hr.train.NodeOptions(**small, **more), watcher=notes)
        assert any("replayed" in text for text in notes.said) == captured, more


@pytest.mark.parametrize("stop", [2, 7, 25])  # before the first recording, and after it
@pytest.mark.parametrize("storage", [{}, {"storage": "disk", "memory": "4MiB"}])
def test_a_captured_run_that_was_interrupted_has_the_bits_of_one_that_was_not(data, tmp_path, stop, storage):
    class CtrlC(hr.train.Watcher):
        steps = 0

        def step(self, *event, **facts):
            self.steps += 1
            if self.steps == stop:
                signal.raise_signal(signal.SIGINT)

    small = {"hidden": 32, "fanout": (5, 4), "batch_size": 100, "epochs": 2, "device": "cuda", "staleness": 2}
    options = hr.train.NodeOptions(**small, **storage, capture="always", log_every=1)
    stored = data
    if storage:
        data.save(tmp_path / "data")
        stored = hr.open(tmp_path / "data")
    whole = hr.train.node(stored, options, out=tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        hr.train.node(stored, options, out=tmp_path / "cut", watcher=CtrlC())
    resumed = hr.train.node(stored, options, out=tmp_path / "cut", resume=True)
    for a, b in zip(whole.model.parameters(), resumed.model.parameters(), strict=True):
        assert torch.equal(a, b)


def test_a_run_too_short_to_be_recorded_stays_so_when_it_is_extended(data, tmp_path):
    class Notes(hr.train.Watcher):
        said = ""

        def note(self, text):
            self.said += text

    small = {"hidden": 32, "fanout": (5, 4), "batch_size": 2000, "device": "cuda"}
    notes = Notes()
    hr.train.node(data, hr.train.NodeOptions(**small, epochs=2), out=tmp_path / "run", watcher=notes)
    assert "steps are not recorded (capture auto" in notes.said
    extended = hr.train.node(data, hr.train.NodeOptions(**small, epochs=10), out=tmp_path / "run", resume=True)
    plain = hr.train.node(data, hr.train.NodeOptions(**small, epochs=10, capture="never"))
    for a, b in zip(extended.model.parameters(), plain.model.parameters(), strict=True):
        assert torch.equal(a, b)
