"""`Shelf`: arrays that many tasks read. Each is put among objects once, and tasks refer to it."""

from __future__ import annotations

from collections.abc import Mapping
from uuid import uuid4

from torch import Tensor

from headrace.cluster.elastic.workers.message import pack
from headrace.cluster.elastic.workers.objects import Objects
from headrace.cluster.elastic.workers.payload import Reference


class Shelf:
    """Puts arrays among `objects` under names that no other shelf uses. A warm worker fetches each once.

    >>> import torch
    >>> from headrace.cluster.elastic import MemoryObjects
    >>> shelf = Shelf(MemoryObjects())
    >>> first, again = (shelf.put(("weights", 0), {"w": torch.zeros(2)}) for _ in range(2))
    >>> first == again, shelf.objects.requests.puts
    (True, 1)
    """

    def __init__(self, objects: Objects) -> None:
        self.objects = objects
        self._prefix, self._count = f"shelf/{uuid4().hex}", 0
        self._names: dict[tuple[object, ...], str] = {}

    def put(self, key: tuple[object, ...], arrays: Mapping[str, Tensor]) -> dict[str, Reference]:
        """References to these arrays. What was put under the key before is not put again: give changed arrays another key."""
        if key not in self._names:
            name = f"{self._prefix}/{self._count}"
            self.objects.put(name, pack({}, arrays))
            self._names[key], self._count = name, self._count + 1
        return {array: Reference(self._names[key]) for array in arrays}

    def remove(self, kind: object, *, but: frozenset[object] = frozenset()) -> None:
        """Remove what was put under keys that begin with `kind`; keys whose second part is in `but` stay."""
        for key in [key for key in self._names if key[0] == kind and key[1] not in but]:
            self.objects.delete(self._names.pop(key))

    def clear(self) -> None:
        """Remove everything."""
        for name in self._names.values():
            self.objects.delete(name)
        self._names.clear()
