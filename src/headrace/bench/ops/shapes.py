"""Ten shapes of graphs, made on a device in moments: what a kernel that is fast on one of them may be slow on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(eq=False)
class Shape:
    """A square graph in compressed rows."""

    indptr: Tensor  # int64, [nodes + 1]
    indices: Tensor  # int32, [edges]
    permutation: Tensor | None = None


def shapes(device: torch.device, *, size: float = 1.0) -> dict[str, Callable[[], Shape]]:
    """Makers of the shapes by name, each the same in every run; `size` scales their nodes."""

    def nodes(count: int) -> int:
        return max(int(count * size), 64)

    def seeded(name: int, make: Callable[[torch.Generator], Shape]) -> Callable[[], Shape]:
        return lambda: make(torch.Generator(device).manual_seed(name))

    makers: dict[str, Callable[[torch.Generator], Shape]] = {
        "3 neighbors each": lambda g: _regular(nodes(2_000_000), 3, g),
        "64 neighbors each": lambda g: _regular(nodes(200_000), 64, g),
        "power law": lambda g: _power_law(nodes(1_000_000), g),
        "ten hubs": lambda g: _hubs(nodes(1_000_000), g),
        "communities in order": lambda g: communities(nodes(400_000), 32, 64, g),
        "communities shuffled": lambda g: _shuffled(communities(nodes(400_000), 32, 64, g), g),
        "chain": lambda g: _chain(nodes(4_000_000), device),
        "small and dense": lambda g: _regular(nodes(5_000), 1_000, g),
        "most rows empty": lambda g: _mostly_empty(nodes(4_000_000), g),
        "users and items": lambda g: _bipartite(nodes(1_000_000), g),
    }
    return {name: seeded(number, make) for number, (name, make) in enumerate(makers.items())}


def communities(count: int, degree: int, size: int, generator: torch.Generator) -> Shape:
    """All neighbors within one's own community of `size` nodes, which are numbered one after the other."""
    device = generator.device
    own = torch.arange(count, device=device).repeat_interleave(degree) // size * size
    inner = torch.randint(0, size, (count * degree,), device=device, generator=generator)
    return _of(torch.full((count,), degree, device=device), (own + inner).clamp_max(count - 1))


def _of(degrees: Tensor, indices: Tensor) -> Shape:
    return Shape(torch.nn.functional.pad(degrees.long().cumsum(0), (1, 0)), indices.to(torch.int32))


def _random(count: int, below: int, generator: torch.Generator) -> Tensor:
    return torch.randint(0, below, (count,), device=generator.device, generator=generator)


def _regular(count: int, degree: int, generator: torch.Generator) -> Shape:
    return _of(torch.full((count,), degree, device=generator.device), _random(count * degree, count, generator))


def _power_law(count: int, generator: torch.Generator) -> Shape:
    """Degrees with exponent 2.5, and popular sources."""
    uniform = torch.rand(count, device=generator.device, generator=generator, dtype=torch.float64).clamp_min(1e-9)
    degrees = (6 * uniform ** (-1 / 1.5)).long().clamp_max(max(count // 10, 1))
    sources = torch.rand(int(degrees.sum()), device=generator.device, generator=generator, dtype=torch.float64) ** 3
    return _of(degrees, (sources * count).long().clamp_max(count - 1))


def _hubs(count: int, generator: torch.Generator) -> Shape:
    degrees = torch.full((count,), 2, device=generator.device)
    degrees[:: max(count // 10, 1)] = count // 5
    return _of(degrees, _random(int(degrees.sum()), count, generator))


def _shuffled(shape: Shape, generator: torch.Generator) -> Shape:
    count = len(shape.indptr) - 1
    order = torch.randperm(count, device=generator.device, generator=generator)
    place = torch.empty_like(order)
    place[order] = torch.arange(count, device=order.device)
    degrees = shape.indptr.diff()[order]
    ends = degrees.cumsum(0)
    row = torch.repeat_interleave(torch.arange(count, device=order.device), degrees)
    inner = torch.arange(len(shape.indices), device=order.device) - (ends - degrees)[row]
    return _of(degrees, place[shape.indices[shape.indptr[order][row] + inner].long()])


def _chain(count: int, device: torch.device) -> Shape:
    return _of(torch.ones(count, dtype=torch.int64, device=device), (torch.arange(count, device=device) + 1) % count)


def _mostly_empty(count: int, generator: torch.Generator) -> Shape:
    degrees = torch.zeros(count, dtype=torch.int64, device=generator.device)
    degrees[::20] = 20
    return _of(degrees, _random(int(degrees.sum()), count, generator))


def _bipartite(count: int, generator: torch.Generator) -> Shape:
    """Every user has ten of the items, which are the last twentieth of the nodes and have nothing."""
    items = max(count // 20, 1)
    degrees = torch.full((count,), 10, device=generator.device)
    degrees[count - items :] = 0
    return _of(degrees, count - items + _random(int(degrees.sum()), items, generator))
