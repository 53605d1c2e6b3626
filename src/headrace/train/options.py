"""Options of a training run: one frozen dataclass per recipe, from which the command line and config files are made."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import torch

T = TypeVar("T", bound="LoopOptions")
_MAY_BE_INFINITE = {"checkpoint_seconds", "clip"}


def option(default: Any, text: str) -> Any:
    """A field with a default and the help line that the command line shows."""
    return field(default=default, metadata={"help": text})


@dataclass(frozen=True)
class LoopOptions:
    """What every training loop has: how long and how fast it goes, from which seed, where, and what it writes."""

    epochs: int = option(10, "passes over the training nodes")
    lr: float = option(0.003, "learning rate")
    schedule: Literal["constant", "cosine", "linear"] = option("constant", "how the learning rate changes to the last epoch")
    warmup: float = option(0.0, "epochs over which the learning rate rises to its value")
    validate_every: int = option(1, "epochs from one validation to the next (0: only after the last)")
    patience: int = option(0, "stop after this many validations without a better one (0: never)")
    repeats: int = option(1, "runs, each with the next seed")
    seed: int = option(0, "decides everything random")
    threads: int | None = option(None, "threads (default: all processors)")
    staleness: int = option(2, "batches sampled ahead (0: on demand); never changes a result")
    device: str = option("cpu", "cpu or cuda")
    checkpoint_seconds: float = option(60.0, "seconds from one checkpoint to the next, at the least")
    log_every: int = option(10, "batches from one logged loss to the next")
    tensorboard: bool = option(False, "also write TensorBoard events (needs the tensorboard extra)")

    def __post_init__(self) -> None:
        self._check_choices()
        self._check_at_least(**self._bounds())
        if not self.lr > 0:
            raise ValueError(f"lr must be above 0, not {self.lr}")
        self._check_numbers()
        self._check_not_negative("warmup", "checkpoint_seconds")
        if self.device.partition(":")[0] not in ("cpu", "cuda"):
            raise ValueError(f"device must be cpu or cuda (or cuda:0, ...), not {self.device!r}")
        if self.device.startswith("cuda") and not torch.cuda.is_available():
            raise ValueError(f"device is {self.device!r}, but torch sees no GPU here")

    def _bounds(self) -> dict[str, int]:
        """The least that an option may be."""
        return {"epochs": 1, "validate_every": 0, "patience": 0, "repeats": 1, "staleness": 0, "log_every": 1, "seed": 0}

    def _check_choices(self) -> None:
        """Every field with a Literal type has one of its values."""
        hints = get_type_hints(type(self))
        for name in (f.name for f in fields(self) if get_origin(hints[f.name]) is Literal):
            if getattr(self, name) not in get_args(hints[name]):
                raise ValueError(f"{name} must be one of {', '.join(get_args(hints[name]))}, not {getattr(self, name)!r}")

    def _check_numbers(self) -> None:
        """Whole numbers fit 64 bits, and others are numbers."""
        for field_ in fields(self):
            value, name = getattr(self, field_.name), field_.name
            if isinstance(value, int) and abs(value) >= 2**63:
                raise ValueError(f"{name} must be below 2**63, not {value}")
            if isinstance(value, float) and not math.isfinite(value) and (name not in _MAY_BE_INFINITE or math.isnan(value)):
                raise ValueError(f"{name} must be a finite number, not {value}")

    def _check_at_least(self, **bounds: int) -> None:
        for name, least in bounds.items():
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, not {getattr(self, name)}")

    def _check_not_negative(self, *names: str) -> None:
        for name in names:
            value = getattr(self, name)
            if value is not None and not value >= 0:
                raise ValueError(f"{name} must not be negative, got {value}")


@dataclass(frozen=True)
class RunOptions(LoopOptions):
    """What recipes have whose weights one optimizer updates."""

    weight_decay: float | None = option(0.0, "weight decay")
    optimizer: Literal["adam", "adamw", "sgd"] = option("adam", "how weights are updated")
    clip: float = option(0.0, "largest norm of the gradient (0: no limit)")
    precision: Literal["fp32", "bf16"] = option("fp32", "type that products are computed in; weights stay fp32")
    accumulate: int = option(0, "batches per step, over all ranks: any number of ranks gives the same bits (0: one for each rank)")

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_at_least(accumulate=0)
        self._check_not_negative("weight_decay", "clip")


def as_plain(options: LoopOptions) -> dict[str, Any]:
    """The options as JSON and TOML have them."""
    plain = {f.name: getattr(options, f.name) for f in fields(options)}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in plain.items()}


def from_plain(kind: type[T], plain: dict[str, Any]) -> T:
    """The options that `as_plain` turned into plain values; a ValueError says what is wrong with them."""
    values: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in plain.items()}
    if unknown := sorted(values.keys() - {f.name for f in fields(kind)}):
        raise ValueError(f"the options name {unknown[0]}, which this version does not know: use the version that wrote them")
    try:
        return kind(**values)
    except (TypeError, AttributeError) as error:
        raise ValueError(f"an option has a value of the wrong type: {error}") from None
