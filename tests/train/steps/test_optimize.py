import math

import pytest
import torch
from torch import nn

from headrace.train import RunOptions
from headrace.train.steps.optimize import learning_rate, make_optimizer


def rates(batches: int, **options) -> list[float]:
    made = RunOptions(**{"lr": 0.1, **options})
    return [learning_rate(made, step, batches) for step in range(made.epochs * batches)]


def test_a_constant_rate_stays():
    assert rates(5, epochs=3) == [0.1] * 15


def test_a_cosine_falls_from_the_rate_to_zero():
    found = rates(5, epochs=4, schedule="cosine")
    assert found == pytest.approx([0.05 * (1 + math.cos(math.pi * step / 20)) for step in range(20)])
    assert found[0] == 0.1
    assert found == sorted(found, reverse=True)
    assert found[10] == pytest.approx(0.05)
    assert 0 < found[-1] < 0.001


def test_a_line_falls_from_the_rate_to_zero():
    assert rates(5, epochs=4, schedule="linear") == pytest.approx([0.1 * (20 - step) / 20 for step in range(20)])


@pytest.mark.parametrize("schedule", ["constant", "cosine", "linear"])
@pytest.mark.parametrize("warmup", [1.0, 2.5])
def test_warmup_rises_in_equal_steps_and_the_schedule_follows(schedule, warmup):
    batches, epochs = 4, 6
    found = rates(batches, epochs=epochs, schedule=schedule, warmup=warmup)
    warm = int(warmup * batches)
    rising = found[: warm + 1]
    assert rising[0] > 0
    assert torch.tensor(rising).diff().tolist() == pytest.approx([0.1 / (warm + 1)] * warm, rel=1e-5)
    assert found[warm] == pytest.approx(0.1)
    after = rates(1, epochs=epochs * batches - warm, schedule=schedule)
    assert found[warm:] == pytest.approx(after)


def test_steps_beyond_the_end_have_a_rate_too():
    for schedule in ("cosine", "linear"):
        options = RunOptions(lr=0.1, epochs=2, schedule=schedule)
        assert [learning_rate(options, step, 3) for step in (6, 7, 100)] == pytest.approx([0.0] * 3, abs=1e-12)
    assert learning_rate(RunOptions(lr=0.1, epochs=1, warmup=3.0), 2, 1) == pytest.approx(0.1 * 3 / 4)  # longer than the run


@pytest.mark.parametrize(("name", "kind"), [("adam", torch.optim.Adam), ("adamw", torch.optim.AdamW), ("sgd", torch.optim.SGD)])
def test_the_optimizer_is_the_one_that_was_asked_for(name, kind):
    model = nn.Linear(3, 2)
    model.bias.requires_grad_(False)
    optimizer = make_optimizer(model, RunOptions(optimizer=name, lr=0.25, weight_decay=0.5))
    assert type(optimizer) is kind
    (group,) = optimizer.param_groups
    assert (group["lr"], group["weight_decay"]) == (0.25, 0.5)
    assert len(group["params"]) == 1
    before = model.bias.clone()
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    assert torch.equal(model.bias, before)


def test_a_model_without_parameters_cannot_be_optimized():
    with pytest.raises(ValueError, match="no parameters to train"):
        make_optimizer(nn.ReLU(), RunOptions())
