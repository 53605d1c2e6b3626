"""`Residence`: which partitions are in memory in which epoch, and in which slots. A function of its fields: no rows, no files."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from headrace import _native


@dataclass(frozen=True)
class Residence:
    """`resident` of `partitions` each epoch: the first `pinned`, and others drawn anew (MariusGNN, EuroSys'23).

    A partition that stays keeps its slot. One that comes takes a free slot, or that of one that leaves when there is none: what
    comes to free slots can be read while the epoch before is trained on.
    """

    partitions: int
    pinned: int
    resident: int
    spare: int
    seed: int

    def __post_init__(self) -> None:
        if not 0 <= self.pinned <= self.resident <= self.partitions or self.resident < 1 or self.spare < 0:
            raise ValueError(
                f"of {self.partitions} partitions {self.resident} cannot be resident, {self.pinned} of them pinned, "
                f"with {self.spare} spare slots"
            )

    @property
    def slots(self) -> int:
        return self.resident + self.spare

    def drawn(self, epoch: int) -> list[int]:
        """The partitions of an epoch, rising.

        >>> Residence(partitions=8, pinned=2, resident=4, spare=1, seed=0).drawn(3)[:2]
        [0, 1]
        """
        words = _native.random_words(self.seed, epoch, _native.Purpose.residence, self.partitions - self.pinned, 1)
        others = torch.from_numpy(words.argsort(kind="stable"))[: self.resident - self.pinned] + self.pinned
        return [*range(self.pinned), *sorted(others.tolist())]

    def placed(self, epoch: int) -> dict[int, int]:
        """The slot of each partition of an epoch; found by going through all epochs before it, so that it has no history."""
        places = {partition: slot for slot, partition in enumerate(self.drawn(0))}
        for number in range(1, epoch + 1):
            places = self.following(places, number)
        return places

    def following(self, places: dict[int, int], epoch: int) -> dict[int, int]:
        """The slots of `epoch`, from those of the epoch before."""
        drawn, used = self.drawn(epoch), set(places.values())
        free = [slot for slot in range(self.slots) if slot not in used]
        left = sorted(slot for partition, slot in places.items() if partition not in set(drawn))
        coming = iter([*free, *left])
        return {partition: places[partition] if partition in places else next(coming) for partition in drawn}
