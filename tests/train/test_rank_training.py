"""Training on several ranks: the bits of one process, whatever their number; a resume on another number of them; ends in step."""

import random
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import rank_training
from headrace.train import Run, Trainer, Watcher, node
from headrace.train.nodes.node import make_model
from headrace.train.nodes.recipe import NodeRecipe
from rank_jobs import Job
from rank_threads import ThreadExchange, on_every_rank
from training_cases import assert_same_weights, lasting

SCRIPT = Path(rank_training.__file__)
MODELS = ("sage", "gcn", "gin", "gat", "gatv2")


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """Every model, trained by one process."""
    folder = tmp_path_factory.mktemp("alone")
    rank_training.main(folder, list(MODELS))
    return folder


def trained_by(ranks, folder, cases):
    folder.mkdir(exist_ok=True)
    job = Job(SCRIPT, [folder, *cases], size=ranks, folder=folder)
    try:
        assert job.wait(240) == [0] * ranks, "\n".join(job.said(rank) for rank in range(ranks))
    finally:
        job.end()
    return folder


@pytest.mark.parametrize("ranks", [2, *(pytest.param(size, marks=pytest.mark.slow) for size in (3, 4))])
def test_any_number_of_ranks_gives_the_bits_of_one(alone, tmp_path, ranks):
    folder = trained_by(ranks, tmp_path / "run", MODELS)
    for model in MODELS:
        assert_same_weights(torch.load(folder / f"{model}.pt"), torch.load(alone / f"{model}.pt"))
        found, wanted = Run(folder / model), Run(alone / model)
        assert lasting(found.metrics()) == lasting(wanted.metrics())  # one log, by rank 0, as one process writes it
        assert found.header["options"] == wanted.header["options"]


def test_features_that_are_spread_over_ranks_give_the_bits_of_one(alone, tmp_path):
    folder = trained_by(3, tmp_path / "run", ["sage@ranks", "gcn@copies"])
    for case in ("sage@ranks", "gcn@copies"):
        assert_same_weights(torch.load(folder / f"{case}.pt"), torch.load(alone / f"{case.partition('@')[0]}.pt"))


def killed_and_resumed(alone, folder, model, kills):
    """Kill rank 0 after so many batches on so many ranks, one after the other; each time another number of ranks goes on."""
    folder.mkdir()
    for number, (ranks, batches) in enumerate(kills):
        cases = [f"{model}:{batches}"] if number == 0 else [f"{model}:resume:{batches}"]
        job = Job(SCRIPT, [folder, *cases], size=ranks, folder=folder)
        try:
            begin = time.monotonic()
            codes = job.wait(60)
            assert None not in codes, f"after {time.monotonic() - begin:.0f} s"
            assert all(codes), codes
            assert codes[0] == -signal.SIGKILL, job.said(0)
        finally:
            job.end()
    trained_by(1 + len(kills) % 3, folder, [f"{model}:resume"])
    assert_same_weights(torch.load(folder / f"{model}.pt"), torch.load(alone / f"{model}.pt"))
    assert lasting(Run(folder / model).metrics()) == lasting(Run(alone / model).metrics())


@pytest.mark.parametrize("kills", [[(3, 9)], pytest.param([(3, 9), (2, 30)], marks=pytest.mark.slow)], ids=["once", "twice"])
def test_a_killed_job_goes_on_with_another_number_of_ranks(alone, tmp_path, kills):
    killed_and_resumed(alone, tmp_path / "job", "gat", kills)


@pytest.mark.slow
@pytest.mark.parametrize("model", ["sage", "gin"])
def test_ten_kills_at_random_steps_with_other_numbers_of_ranks(alone, tmp_path, model):
    drawn = random.Random(7)
    steps = sorted(drawn.sample(range(1, 4 * 19), 10))
    killed_and_resumed(alone, tmp_path / "job", model, [(drawn.choice([1, 2, 3, 4]), step) for step in steps])


class Seen(Watcher):
    def __init__(self):
        self.events = []

    def step(self, event, clock):
        self.events.append(event)


def test_a_step_of_several_batches_is_the_gradient_of_all_their_seeds():
    """Against plain torch: one loss over the seeds of all batches of a step, weighted by class."""
    graph, options = rank_training.data(), rank_training.options("gcn", full_batch=False)
    torch.manual_seed(options.seed)
    model = make_model(graph, options).eval()  # no dropout, which would differ
    for module in model.modules():
        module.train = lambda mode=True, module=module: module
    recipe = NodeRecipe(graph, model, options, accumulate=4)
    trainer = Trainer(recipe, options, None, Watcher(), accumulate=4)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    gradients = {}

    def update():
        gradients.update({name: p.grad.clone() for name, p in model.named_parameters()})
        raise StopIteration

    recipe.update.optimizer.step = update
    with pytest.raises((StopIteration, RuntimeError)):
        trainer.epoch()
    assert all(torch.equal(before[name], p) for name, p in model.named_parameters())
    batches = [batch for batch, _ in zip(recipe.batches(0, 0), range(4), strict=False)]
    rows = torch.cat([model(batch) for batch in batches])
    labels = torch.cat([batch.y for batch in batches])
    model.zero_grad()
    torch.nn.functional.cross_entropy(rows, labels.long(), weight=recipe.weight).backward()
    for name, parameter in model.named_parameters():
        assert torch.allclose(gradients[name], parameter.grad, rtol=1e-5, atol=1e-7), name


def test_the_bytes_of_a_step_are_those_of_the_formula():
    graph, options = rank_training.data(), replace(rank_training.options("gin"), epochs=1, dropout=0.0, validate="none")

    def work(ranks):
        torch.manual_seed(0)
        model, exchange = make_model(graph, options), ThreadExchange(ranks)
        recipe = NodeRecipe(graph, model, options, ranks=ranks, accumulate=4)
        trainer = Trainer(recipe, options, None, Watcher(), ranks=ranks, exchange=exchange, accumulate=4)
        trainer.epoch()
        steps = [4] * (recipe.num_batches(0) // 4) + [rest for rest in [recipe.num_batches(0) % 4] if rest]
        counted = sum(traffic.sent for traffic in exchange.traffic.values())
        return counted, sum(trainer.accumulator.bytes_sent(count) for count in steps), steps

    for result in on_every_rank(3, work):
        counted, formula, steps = result
        assert (counted, steps) == (formula, [4, 4, 4, 4, 2])
        assert counted > 0


def test_learning_rate_and_log_count_batches(tmp_path):
    graph, seen = rank_training.data(), Seen()
    node(graph, options=rank_training.options("sage", schedule="linear"), out=tmp_path / "run", watcher=seen)
    batches = seen.events[-1].step // 4
    assert [event.step for event in seen.events] == list(range(1, 4 * batches + 1))
    assert [event.batch for event in seen.events[: batches + 1]] == [*range(1, batches + 1), 1]
    epochs = Run(tmp_path / "run").metrics("epoch")
    assert epochs[-1]["lr"] == pytest.approx(0.01 / (4 * batches))


def test_fewer_batches_than_ranks_are_refused():
    from headrace.train.fit import _accumulated

    class Three:
        size = 3

    with pytest.raises(ValueError, match="accumulate 2 makes a step of 2 batches, and there are 3 ranks"):
        _accumulated(rank_training.options("sage").__class__(accumulate=2), None, Three())
    assert _accumulated(rank_training.options("sage").__class__(), None, Three())[1] == 3
    assert _accumulated(rank_training.options("sage").__class__(), {"accumulate": 5}, Three())[1] == 5
