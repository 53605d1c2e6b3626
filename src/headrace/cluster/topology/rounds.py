"""`Rounds`: messages of every rank to every other, and errors that reach all of them at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import IntEnum

from torch import Tensor

from headrace.ranks import Exchange

Message = tuple[Tensor, Sequence[int]]  # words, and how many of them go to each rank, in order of ranks


class Kind(IntEnum):
    """The call that a rank is making."""

    sample = 0
    degrees = 1
    finished = 2  # it has nothing to ask any more, and answers the others
    failed = 3  # it cannot go on with this call, and neither can the others


class Rounds:
    """The collectives of a `SplitSampler`, all of them through one exchange; without one, this rank is the only one.

    An error on one rank is told in place of its next message and raised on all of them, so that none waits for it, and all
    ranks have left the call at the same point: the next one can be made.
    """

    def __init__(self, exchange: Exchange | None) -> None:
        self.exchange = exchange
        self.rank, self.size = (0, 1) if exchange is None else (exchange.rank, exchange.size)

    def agree(self, same: dict[str, str], *, problem: str | None) -> None:
        """Raise on all ranks alike if `same` differs between them, or if one has a problem."""
        if self.exchange is not None:
            self.exchange.agree(same if problem is None else {}, problem=problem, told={})
        elif problem is not None:
            raise ValueError(problem)

    def send(self, phase: str, kind: Kind, prepare: Callable[[], Message]) -> tuple[list[Kind], list[Tensor]]:
        """Send what `prepare` returns. Return what every rank came for, and what it sent to this one.

        `prepare` may raise, but must make no collective call. Two collectives: counts, and the words under `phase`.
        """
        error, message = None, None
        try:
            message = prepare()
        except Exception as raised:
            error = raised
        if self.exchange is None or self.size == 1:
            if error is not None:
                raise error
            assert message is not None
            return [kind], [message[0]]
        sending = [0] * self.size if message is None else message[1]
        kinds, receiving = self.exchange.counts("counts", kind if error is None else Kind.failed, sending)
        self._check(kinds, error)
        assert message is not None
        return kinds, self.reply(phase, message[0], sending=sending, receiving=receiving)

    def reply(self, phase: str, words: Tensor, *, sending: Sequence[int], receiving: Sequence[int]) -> list[Tensor]:
        """Send words where every rank knows how many come. Return those of each rank."""
        if self.exchange is None or self.size == 1:
            return [words]
        received = self.exchange.all_to_all(phase, words, sending=sending, receiving=receiving).wait()
        return list(received.split(list(receiving)))

    def _check(self, kinds: list[Kind], error: Exception | None) -> None:
        """Raise on all ranks if one has failed, or if they came for different things."""
        assert self.exchange is not None
        if Kind.failed in kinds:
            try:
                self.exchange.agree({}, problem=None if error is None else f"{type(error).__name__}: {error}", told={})
            except ValueError:
                if error is not None:
                    raise error from None
                raise
        active = {kind: kinds.index(kind) for kind in kinds if kind != Kind.finished}
        if len(active) > 1:
            calls = ", ".join(f"rank {rank} called {kind.name}" for kind, rank in active.items())
            raise RuntimeError(f"exchange {self.exchange.exchanges}: {calls}. All ranks must make the same calls in the same order")
