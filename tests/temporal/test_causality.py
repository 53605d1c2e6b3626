"""What comes later changes nothing: not the static rows, nor the weights, nor the scores of events before it."""

import pytest
import torch

import headrace as hr
from headrace.sample import EventNegatives
from headrace.temporal import EventBatches, cut_events
from headrace.train.events import event

SIZE = 20


@torch.no_grad()
def scored(model, stream, end):
    """Logits of the events before `end` and of their negatives, by a replay from an empty memory."""
    cuts = cut_events(stream, 0, end, SIZE)
    make = EventBatches(stream, cuts, EventNegatives(stream, amount=3, seed=1), neighbors=[4] * model.tgn.hops)
    rows = torch.zeros(stream.num_nodes, model.tgn.memory_width + model.tgn.mail_width)
    scores = []
    for index in range(make.num_batches):
        batch = make.make(index, 0)
        memory = model.update(rows[batch.nodes], batch, None)
        scores.append(model.scores(model.embed(memory, batch, None), batch))
        rows[batch.nodes[batch.written]] = model.letters(memory, batch, None)
    return torch.cat(scores)


@pytest.mark.slow
@pytest.mark.parametrize("layers", [1, 2])
def test_noise_after_a_batch_leaves_scores_and_static_rows_alone(layers, monkeypatch):
    stream = hr.EventStream.of(hr.generate.events(nodes=60, events=1000, new=0.02, seed=5, gap=0.7))
    cut = (stream.splits().val // SIZE + 3) * SIZE  # between two batches of test events
    noise = torch.Generator().manual_seed(1)
    src, dst = stream.src.clone(), stream.dst.clone()
    for ends in (src, dst):
        ends[cut:] = ends[cut:][torch.randperm(len(ends) - cut, generator=noise)]
    other = hr.EventStream(src, dst, stream.time, num_nodes=stream.num_nodes)
    make = event._tgn
    monkeypatch.setattr(event, "_tgn", lambda *given, **more: make(*given, **({"layers": layers} | more)))
    chosen = hr.train.TemporalOptions(
        epochs=1, hidden=8, neighbors=4, batch_size=SIZE, static="learned", static_epochs=1, threads=1, candidates=2, lr=0.01
    )
    model, changed = (hr.train.temporal(events, chosen).model.eval() for events in (stream, other))
    assert bool((model.static != 0).any())
    for name, tensor in [*model.state_dict().items(), ("static", model.static)]:
        assert torch.equal(tensor, dict([*changed.state_dict().items(), ("static", changed.static)])[name]), name
    before, after = scored(model, stream, len(stream)), scored(changed, other, len(stream))
    assert torch.equal(before[:cut], after[:cut])
    assert not torch.equal(before[cut:], after[cut:])
