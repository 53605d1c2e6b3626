"""How weights are updated, and how fast."""

from __future__ import annotations

import math

import torch
from torch import nn

from headrace.train.options import LoopOptions, RunOptions


def make_optimizer(model: nn.Module, options: RunOptions) -> torch.optim.Optimizer:
    """The optimizer of a run."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    if not parameters:
        raise ValueError("the model has no parameters to train")
    kind = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}[options.optimizer]
    more = {"momentum": 0.9} if options.optimizer == "sgd" else {}
    optimizer: torch.optim.Optimizer = kind(parameters, lr=options.lr, weight_decay=options.weight_decay, fused=True, **more)
    return optimizer


def learning_rate(options: LoopOptions, step: int, batches: int) -> float:
    """The learning rate of a step: a function of its number, so that there is nothing to save.

    Rises over `warmup` epochs, then stays, or falls to 0 at the end along a cosine or a line.
    """
    warm, total = options.warmup * batches, options.epochs * batches
    if step < warm:
        return options.lr * (step + 1) / (warm + 1)
    done = (step - warm) / max(total - warm, 1)
    if options.schedule == "cosine":
        return options.lr * 0.5 * (1 + math.cos(math.pi * min(done, 1.0)))
    if options.schedule == "linear":
        return options.lr * max(1 - done, 0.0)
    return options.lr
