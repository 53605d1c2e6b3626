"""What is learnt of events: whether they come (`LinkHead`), or of which class they are (`ClassHead`); and how good that is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from headrace.graph import EventStream
from headrace.nn import event_losses
from headrace.sample import EventNegatives
from headrace.temporal import Events
from headrace.temporal.heuristics import LabelHistory, Recency, tie_ranks
from headrace.train.events.candidates import Candidates, EveryDestination
from headrace.train.events.options import TemporalOptions
from headrace.train.inference.ranking import RankMetrics
from headrace.train.measure import Measure, auc, average_precision

if TYPE_CHECKING:
    from headrace.train.events.forward import Forward

_MOST_CLASSES = 1024
_TIE = 1e-5  # scores that differ by less, relatively, are equal: rows of a product round by where they stand


class Head(Protocol):
    """What the recipe and the evaluator ask of a task."""

    @property
    def measures(self) -> tuple[Measure, ...]:
        """Figures that the log has, the one that decides first."""
        ...

    @property
    def draws(self) -> bool:
        """Whether training needs negatives."""
        ...

    @property
    def classes(self) -> int:
        """Logits of a pair."""
        ...

    def losses(self, model: Forward, z: Tensor, events: Events) -> Tensor:
        """Of each event; `z` has rows of sources, destinations and negatives.  # -> [events]"""
        ...

    @property
    def candidates(self) -> Candidates | None:
        """Whom an event is compared to in evaluation."""
        ...

    def outcome(self, model: Forward, z: Tensor, events: Events) -> Tensor:
        """What is kept of each event of an evaluated batch.  # -> [events, numbers]"""
        ...

    def measured(self, outcomes: Tensor, events: Tensor) -> dict[str, Any]:
        """Figures of events by their outcomes."""
        ...

    def heuristics(self, events: Tensor, before: Tensor, drawn: Tensor | None) -> dict[str, Tensor]:
        """Outcomes of what needs no learning, where event n sees places before `before[n]`."""
        ...

    def protocol(self) -> dict[str, Any]:
        """How it is measured."""
        ...


class LinkHead:
    """Which events come: each against destinations that it might have had.

    AP and AUC are global: over all events, with one candidate each. MRR and hits rank an event among all its candidates, ties half.
    """

    measures = (Measure("ap", format=".2%"), Measure("auc"), Measure("mrr"))
    draws, classes = True, 1

    def __init__(self, stream: EventStream, options: TemporalOptions, train_end: int) -> None:
        self.stream, self.options = stream, options
        amount = options.candidates or 1
        drawn = EventNegatives(stream, amount=amount, kind=options.evaluate, train_end=train_end, seed=options.seed)
        self.candidates: Candidates = drawn if options.candidates else EveryDestination(stream, drawn)
        self._apart = 0 if options.candidates else 1  # whether the candidate of AP is beside those that are ranked
        self._recency: Recency | None = None

    def losses(self, model: Forward, z: Tensor, events: Events) -> Tensor:
        return event_losses(model.scores(z, events), self.options.loss)

    def outcome(self, model: Forward, z: Tensor, events: Events) -> Tensor:
        return self._outcome(model.scores(z, events).double(), _TIE)

    def _outcome(self, scores: Tensor, slack: float = 0.0) -> Tensor:
        """The event's score, that of one candidate, and its rank.  # [n, 1 + candidates] -> [n, 3]"""
        ranks = tie_ranks(scores[:, 0], scores[:, 1 + self._apart :], slack=slack)
        return torch.stack([scores[:, 0], scores[:, 1], ranks], dim=1).cpu()

    def measured(self, outcomes: Tensor, events: Tensor) -> dict[str, Any]:
        pairs = outcomes[:, :2].T.flatten()
        true = torch.arange(len(pairs)) < len(outcomes)
        return {"ap": average_precision(pairs, true), "auc": auc(pairs, true), **RankMetrics.of(outcomes[:, 2]).plain()}

    def heuristics(self, events: Tensor, before: Tensor, drawn: Tensor | None) -> dict[str, Tensor]:
        """EdgeBank and recency, on the same events, candidates and visibility."""
        assert drawn is not None
        if self._recency is None:
            self._recency = Recency(self.stream)
        candidates = torch.cat([self.stream.dst[events].long()[:, None], drawn], dim=1)
        src, place = (values[:, None].expand_as(candidates).reshape(-1) for values in (self.stream.src[events].long(), before))
        asked = src, candidates.flatten(), place
        return {
            "edgebank": self._outcome(self._recency.met(*asked).view_as(candidates)),
            "recency": self._outcome(self._recency.scores(*asked).view_as(candidates)),
        }

    def protocol(self) -> dict[str, Any]:
        return {"task": "link", "negatives": self.options.evaluate, "candidates": self.options.candidates or "all"}


class ClassHead:
    """Of which class events are, as their ends were before them: a logit a class. Classes are the distinct values of the labels.

    Of two classes the later one is found: AUC, AP and accuracy (`f1_micro`). Of more, micro-F1 (which is accuracy) and macro-F1.
    """

    draws = False
    candidates = None
    _binary: ClassVar = (Measure("auc"), Measure("ap", format=".2%"), Measure("f1_micro", format=".2%"))
    _several: ClassVar = (Measure("f1_micro", format=".2%"), Measure("f1_macro", format=".2%"))

    def __init__(self, stream: EventStream, train_end: int) -> None:
        if stream.label is None:
            raise ValueError(
                "edge_class needs a class for every event, and the data has none: give EventStream(label=), or name an array of "
                "the dataset's extra by label"
            )
        self.values, self.labels = torch.unique(stream.label, return_inverse=True)
        self.classes = len(self.values)
        if not 2 <= self.classes <= _MOST_CLASSES:
            raise ValueError(f"events have {self.classes} different labels: edge_class needs from 2 to {_MOST_CLASSES} classes")
        if len(torch.unique(self.labels[:train_end])) < 2:
            only = int(self.values[self.labels[0]])
            raise ValueError(f"all {train_end} training events have label {only}: there is nothing to tell apart")
        self.measures = self._binary if self.classes == 2 else self._several
        self.stream, self.train_end = stream, train_end
        self._placed = self.labels  # where they were asked for last
        self._history: LabelHistory | None = None

    def losses(self, model: Forward, z: Tensor, events: Events) -> Tensor:
        if self._placed.device != z.device:
            self._placed = self.labels.to(z.device)
        return F.cross_entropy(self._logits(model, z, events), self._placed[events.event], reduction="none")

    def _logits(self, model: Forward, z: Tensor, events: Events) -> Tensor:
        by_end = z.view(events.lanes, -1, events.size, z.shape[1])
        return model.tgn.score(by_end[:, 0].flatten(0, 1), by_end[:, 1].flatten(0, 1))

    def outcome(self, model: Forward, z: Tensor, events: Events) -> Tensor:
        return self._logits(model, z, events).double().cpu()

    def measured(self, outcomes: Tensor, events: Tensor) -> dict[str, Any]:
        labels, chosen = self.labels[events], outcomes.argmax(1)
        figures: dict[str, Any] = {"f1_micro": float((chosen == labels).double().mean())}
        if self.classes > 2:
            return figures | {"f1_macro": _macro_f1(chosen, labels, self.classes)}
        scores, true = outcomes[:, 1] - outcomes[:, 0], labels == 1
        return {"auc": auc(scores, true), "ap": average_precision(scores, true), **figures}

    def heuristics(self, events: Tensor, before: Tensor, drawn: Tensor | None) -> dict[str, Tensor]:
        """The shares of classes in training, and those of the destination's events so far."""
        if self._history is None:
            self._history = LabelHistory(self.stream, self.labels, self.classes, self.train_end)
        prior = self._history.prior.expand(len(events), -1)
        return {"majority": prior, "history": self._history.shares(self.stream.dst[events].long(), before)}

    def protocol(self) -> dict[str, Any]:
        return {"task": "edge_class", "classes": self.values.tolist()}


def make_head(stream: EventStream, options: TemporalOptions, train_end: int) -> LinkHead | ClassHead:
    """The head of a task."""
    return LinkHead(stream, options, train_end) if options.task == "link" else ClassHead(stream, train_end)


def _macro_f1(chosen: Tensor, labels: Tensor, classes: int) -> float:
    """The mean over the classes that occur, or were chosen, of the harmonic mean of precision and recall."""
    right = torch.bincount(labels[chosen == labels], minlength=classes).double()
    both = (torch.bincount(labels, minlength=classes) + torch.bincount(chosen, minlength=classes)).double()
    return float((2 * right[both > 0] / both[both > 0]).mean())
