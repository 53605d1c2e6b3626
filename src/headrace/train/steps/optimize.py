"""How weights are updated, and how fast."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from headrace import _native
from headrace.train.options import LoopOptions, RunOptions


class Update:
    """The optimizer of a model, with what comes before and after: the seed of a batch's dropout, the rate, the clip."""

    def __init__(self, model: nn.Module, options: RunOptions) -> None:
        self.model, self.options = model, options
        self.optimizer = make_optimizer(model, options)
        self.parameters: list[nn.Parameter] = self.optimizer.param_groups[0]["params"]
        devices = {parameter.device for parameter in self.parameters}
        self.norm: Callable[[Sequence[nn.Parameter]], Tensor] | None = None  # of the whole gradient, where ranks hold parts of it
        self._generators = [torch.default_generator, *(_generator(device) for device in devices if device.type == "cuda")]

    def begin(self, rate: float) -> None:
        """Before the batches of a step."""
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.model.train()
        self.optimizer.zero_grad(set_to_none=True)

    def seed(self, epoch: int, batch: int) -> None:
        """Before a batch: what it draws from torch, as dropout does, depends on (seed, epoch, batch) alone."""
        seed = _native.stream_key(self.options.seed, epoch, batch, _native.Purpose.step)
        for generator in self._generators:  # torch.manual_seed asks after every kind of device there is, which takes longer
            generator.manual_seed(seed)

    def __call__(self) -> None:
        """Update the weights by their gradients."""
        if self.options.clip and self.norm is not None:
            torch.nn.utils.clip_grads_with_norm_(self.parameters, self.options.clip, self.norm(self.parameters))
        elif self.options.clip:
            torch.nn.utils.clip_grad_norm_(self.parameters, self.options.clip)
        self.optimizer.step()


def _generator(device: torch.device) -> torch.Generator:
    return torch.cuda.default_generators[torch.cuda.current_device() if device.index is None else device.index]


def make_optimizer(model: nn.Module, options: RunOptions) -> torch.optim.Optimizer:
    """The optimizer of a run."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    if not parameters:
        raise ValueError("the model has no parameters to train")
    kind = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}[options.optimizer]
    more = {"momentum": 0.9} if options.optimizer == "sgd" else {}
    optimizer: torch.optim.Optimizer = kind(parameters, lr=options.lr, weight_decay=options.weight_decay or 0.0, fused=True, **more)
    return optimizer


def learning_rate(options: LoopOptions, done: int, batches: int) -> float:
    """The learning rate after `done` batches, `batches` of them an epoch: a function of numbers, so that there is nothing to save.

    Rises over `warmup` epochs, then stays, or falls to 0 at the end along a cosine or a line.
    """
    warm, total = options.warmup * batches, options.epochs * batches
    if done < warm:
        return options.lr * (done + 1) / (warm + 1)
    share = (done - warm) / max(total - warm, 1)
    if options.schedule == "cosine":
        return options.lr * 0.5 * (1 + math.cos(math.pi * min(share, 1.0)))
    if options.schedule == "linear":
        return options.lr * max(1 - share, 0.0)
    return options.lr
