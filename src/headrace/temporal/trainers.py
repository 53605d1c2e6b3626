"""Which rank is which trainers: a copy of the memory never spans machines."""

from __future__ import annotations

from collections.abc import Sequence


def deal_trainers(i: int, j: int, k: int, machines: Sequence[str]) -> list[int]:
    """The rank of each of i x j x k trainers, as many for every rank; `machines` has the machine of each rank.

    Ranks of a machine get trainers that follow one another, so that the trainers of a copy share a machine's memory.

    >>> from headrace.temporal import deal_trainers
    >>> deal_trainers(1, 2, 2, ["a", "b", "a", "b"])
    [0, 2, 1, 3]
    """
    trainers, ranks, of_copy = i * j * k, len(machines), i * j
    names = list(dict.fromkeys(machines))
    if trainers % ranks:
        fits = [n for n in range(1, trainers + 1) if trainers % n == 0]
        many = "trainer" if trainers == 1 else f"{trainers} trainers"
        raise ValueError(f"{ranks} ranks do not divide the {many} of {i}x{j}x{k}: start {_listed(fits)}")
    if k < len(names):
        raise ValueError(
            f"{len(names)} machines need a copy of the memory each, and {i}x{j}x{k} has {k}: raise k to {len(names)} at least "
            f"(the last number of parallel), or use {_machines(k)}"
        )
    order = sorted(range(ranks), key=lambda rank: (names.index(machines[rank]), rank))
    each = trainers // ranks
    owners = [order[trainer // each] for trainer in range(trainers)]
    for copy in range(k):
        over = {machines[rank] for rank in owners[copy * of_copy : (copy + 1) * of_copy]}
        if len(over) > 1:
            counts = ", ".join(str(list(machines).count(name)) for name in names)
            raise ValueError(
                f"copy {copy} of the memory would span {len(over)} machines: with {counts} ranks on them and {each} trainers a "
                f"rank, a machine's trainers must be a multiple of i x j = {of_copy}"
            )
    return owners


def _listed(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers[:-1])) + f" or {numbers[-1]}" if len(numbers) > 1 else str(numbers[0])


def _machines(number: int) -> str:
    return "1 machine" if number == 1 else f"at most {number} machines"
