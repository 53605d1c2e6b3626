"""What the attention kernels of a GPU share: which entries a program takes, what dropout keeps of them, how rows are shared out.

A program takes the entries of a row, all heads together (or some, where rows are wide), a tile of them at a time: every lane of the
tile sums on its own, and the lanes are added up once, at the end. A long row is cut into groups; each leaves its sums in a slot,
and one more program adds the slots. All of it happens in a fixed order and without atomics, so the bits are always the same.
How the rows are cut is decided on the device: nothing here waits for it, and a launch can be captured.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from headrace import _native
from headrace._arrays import signed
from headrace.kernels._aggregate.work import sum_type
from headrace.kernels._attend.scores import Scores
from headrace.kernels._triton_random import key_of_seed

_ATTEND = tl.constexpr(int(_native.Purpose.attend))
GROUP = 1024  # entries of a group; rows up to twice as long stay whole
_WHOLE = 1 << 16  # with no more entries than this altogether no row is cut


@triton.jit  # type: ignore[untyped-decorator]
def span(indptr, begins, rows, own_rows, slots, combine: tl.constexpr, group: tl.constexpr):  # type: ignore[no-untyped-def]
    """The row of a program, its first entry and the one after its last, the end of the row's entries, the program's slot, and
    whether it takes a group.

    The first `slots` programs take the groups of long rows, since these take longest, the others whole rows. To `combine`, a
    program adds up the slots of a row, which then stand for entries. A program that has nothing to do gets row -1. Where a row has
    an entry of its own, as the first `own_rows` have, it stands at the end.
    """
    at = tl.program_id(0).to(tl.int64)
    grouped = at < slots
    used = tl.load(begins + rows, mask=grouped, other=0)  # of the slots: how many rows need is known on the device alone
    low, high = tl.where(at < used, at * 0, rows), at * 0 + rows
    while low < high:  # for the row whose slots hold this one: the first that ends after it
        middle = (low + high) // 2
        ended = tl.load(begins + middle + 1) <= at
        low = tl.where(ended, middle + 1, low)
        high = tl.where(ended, high, middle)
    row = tl.where(grouped, low, at - slots)
    inside = row < rows
    begin = tl.load(indptr + row, mask=inside, other=0)
    end = tl.load(indptr + row + 1, mask=inside, other=0)
    slot = tl.load(begins + row, mask=inside & grouped, other=0)
    if combine:
        row = tl.where(inside & (slot == at), row, -1)
        first, last = slot, tl.load(begins + row + 1, mask=row >= 0, other=0)
        grouped = at < 0
    else:
        last = tl.where(inside & (row < own_rows), end + 1, end)
        short = (slots == 0) | (last - begin <= 2 * group)
        first = tl.where(grouped, begin + (at - slot) * group, begin)
        last = tl.where(grouped, tl.minimum(first + group, last), last)
        row = tl.where(inside & (grouped | short), row, -1)
    return row, first, last, end, at, grouped


@triton.jit  # type: ignore[untyped-decorator]
def head_tile(heads: tl.constexpr, channels: tl.constexpr, head_block: tl.constexpr, channel_block: tl.constexpr):  # type: ignore[no-untyped-def]
    """The first head of a program, its heads, where their channels stand within a row, and which heads and channels are no
    padding.  # -> [heads], [heads, channels], [heads], [heads, channels]"""
    first_head = tl.program_id(1) * head_block
    head = first_head + tl.arange(0, head_block)
    channel = tl.arange(0, channel_block)
    within = head[:, None] * channels + channel[None, :]
    real_head = head < heads
    return first_head, head, within, real_head, real_head[:, None] & (channel < channels)[None, :]


@triton.jit  # type: ignore[untyped-decorator]
def entries(indices, at, last, end, row, own_rows, lanes: tl.constexpr):  # type: ignore[no-untyped-def]
    """A tile of entries: where they stand, which columns they name, and which of them count. One that names its own row does not
    count if the row has an entry of its own."""
    entry = at + tl.arange(0, lanes).to(tl.int64)
    valid = entry < last
    column = tl.load(indices + entry, mask=valid & (entry < end), other=0).to(tl.int64)
    own = entry == end
    valid = valid & (own | (column != row) | (row >= own_rows))
    return entry, tl.where(own, row, column), valid


@triton.jit  # type: ignore[untyped-decorator]
def far_rows(rows, begin, within, valid, real, number: tl.constexpr):  # type: ignore[no-untyped-def]
    """The channels of a tile of rows, which begin at `begin`.  # [lanes] -> [lanes, heads, channels]"""
    return tl.load(rows + begin[:, None, None] + within[None, :, :], mask=valid[:, None, None] & real[None, :, :], other=0.0).to(
        number
    )


@triton.jit  # type: ignore[untyped-decorator]
def stream_key(key, seed, seed_on_device):  # type: ignore[no-untyped-def]
    """The key of the draws: that of the seed, where it lies on the device, or `key`."""
    return tl.where(seed_on_device != 0, key_of_seed(seed, _ATTEND), key)


@triton.jit  # type: ignore[untyped-decorator]
def factors(key, position, first_head, dropped, kept: tl.constexpr, width: tl.constexpr, wide: tl.constexpr):  # type: ignore[no-untyped-def]
    """What dropout multiplies coefficients by: word `head % 4` of the block (head // 4, position) decides.  # -> [lanes, width]"""
    if width >= 4:  # heads begin with a multiple of four: a block serves four of them
        block = (first_head // 4 + tl.arange(0, width // 4))[None, :] + (position * 0)[:, None]
        spot = position[:, None] + block * 0
        low, high = (spot & 0xFFFFFFFF).to(tl.uint32), (spot >> 32).to(tl.uint32)
        w0, w1, w2, w3 = tl.philox(key, block.to(tl.uint32), low, high, (block * 0).to(tl.uint32))
        word = tl.reshape(tl.join(tl.join(w0, w2), tl.join(w1, w3)), [position.shape[0], width])
    else:
        low, high = (position & 0xFFFFFFFF).to(tl.uint32), (position >> 32).to(tl.uint32)
        block = (first_head // 4 + position * 0).to(tl.uint32)
        w0, w1, w2, w3 = tl.philox(key, block, low, high, (position * 0).to(tl.uint32))
        place = ((first_head + tl.arange(0, width)) % 4)[None, :]
        early = tl.where(place == 0, w0[:, None], w1[:, None])
        word = tl.where(place < 2, early, tl.where(place == 2, w2[:, None], w3[:, None]))
    nothing = tl.zeros([position.shape[0], width], tl.float64 if wide else tl.float32)
    return tl.where(word.to(tl.int64) >= dropped, nothing + kept, nothing)


@triton.jit  # type: ignore[untyped-decorator]
def positions(  # type: ignore[no-untyped-def]
    permutation, entry, column, valid, end, row, own_rows, count, shift, whole_rows, placed: tl.constexpr, reverse: tl.constexpr
):
    """Where entries stand in the rows, or where they are `placed` in a whole: dropout is a function of it. A row's own entry
    stands behind all others. With `reverse` the rows at hand are those of a transpose, whose columns are the rows."""
    named = valid & (entry < end)
    position = entry
    if reverse:
        position = tl.load(permutation + entry, mask=named, other=0).to(tl.int64)
    own = row
    if placed:
        if reverse:
            position += tl.load(shift + column, mask=named, other=0)
        else:
            position += tl.load(shift + row)
        own = tl.load(whole_rows + row, mask=row < own_rows, other=0)
    return tl.where(entry == end, count + own, position)


@triton.jit  # type: ignore[untyped-decorator]
def leaky(value, slope: tl.constexpr):  # type: ignore[no-untyped-def]
    return tl.where(value > 0, value, value * slope)


@triton.jit  # type: ignore[untyped-decorator]
def rise(value, slope: tl.constexpr):  # type: ignore[no-untyped-def]
    """The slope of `leaky` at these values."""
    return tl.where(value > 0, 1.0, tl.full(value.shape, slope, value.dtype))


@dataclass(frozen=True)
class Tile:
    """How many entries, heads and channels a program looks at together: powers of two, so that some may be padding."""

    lanes: int
    heads: int
    channels: int
    warps: int

    @classmethod
    def of(cls, heads: int, channels: int, *, numbers: int = 1024, lanes: int | None = None, warps: int | None = None) -> Tile:
        """A tile of about so many numbers."""
        wide = triton.next_power_of_2(channels)
        together = min(triton.next_power_of_2(heads), max(512 // wide, 1))
        lanes = min(max(numbers // (together * wide), 2), 32) if lanes is None else lanes
        return cls(lanes, together, wide, warps or min(max(lanes * together * wide // 1024, 1), 8))


def gradient_tile(heads: int, channels: int, scores: Scores) -> Tile:
    """The tile of a pass for gradients, of which pairs need more registers."""
    return Tile.of(heads, channels, numbers=512 if scores.pairs else 1024)


@dataclass(frozen=True)
class Cut:
    """The groups of the long rows: how many the rows before each have, and how many there are at most."""

    begins: Tensor  # [rows + 1]
    slots: int

    @classmethod
    def of(cls, indptr: Tensor, count: int, own_rows: int, group: int = GROUP) -> Cut | None:
        """`own_rows`: how many rows have an entry of their own beside those of `indptr`. Without long rows: None."""
        if count + own_rows <= (_WHOLE if group == GROUP else 2 * group):
            return None
        lengths = indptr.diff()
        lengths[:own_rows] += 1
        groups = torch.where(lengths > 2 * group, (lengths + group - 1) // group, 0)
        begins = torch.zeros_like(indptr)
        torch.cumsum(groups, 0, out=begins[1:])
        return cls(begins, (count + own_rows) * 3 // (2 * group) + 1)  # only the last group of a row may be short


def run(
    kernel: Any,
    x: Tensor,
    indptr: Tensor,
    indices: Tensor,
    scores: Scores,
    *,
    own_rows: int,
    sums: int,
    group: int,
    tile: Tile,
    **arguments: Any,
) -> None:
    """Launch a kernel over all rows, and once more to add up what the groups of long rows left, `sums` numbers each."""
    rows, (_, heads, channels) = len(indptr) - 1, x.shape
    cut = Cut.of(indptr, len(indices), own_rows, group)
    slots = 0 if cut is None else cut.slots
    partial = x.new_empty(slots * sums, dtype=sum_type(x.dtype))
    for combine in (False, True) if slots else (False,):
        kernel[(slots if combine else slots + rows, triton.cdiv(heads, tile.heads))](
            x=x,
            indptr=indptr,
            indices=indices,
            **{name: scores.target if tensor is None else tensor for name, tensor in scores.tensors.items()},
            begins=indptr if cut is None else cut.begins,
            partial=partial,
            rows=rows,
            own_rows=own_rows,
            slots=slots,
            count=len(indices) if scores.shift is None else scores.whole_entries,
            shift=indptr if scores.shift is None else scores.shift,
            whole_rows=indptr if scores.whole_rows is None else scores.whole_rows,
            placed=scores.shift is not None,
            **_draws(scores, indptr),
            slope=scores.slope,
            pairs=scores.pairs,
            wide=x.dtype == torch.float64,
            combine=combine,
            group=group,
            heads=heads,
            channels=channels,
            lanes=tile.lanes,
            head_block=tile.heads,
            channel_block=tile.channels,
            num_warps=tile.warps,
            **arguments,
        )


def _draws(scores: Scores, like: Tensor) -> dict[str, Any]:
    """Dropout as the kernels take it. `like` is any int64 array, passed in place of a seed that is not on the device."""
    dropped = int(scores.dropout * 4294967296.0)
    draws = {
        "key": 0,
        "seed": like,
        "seed_on_device": 0,
        "dropped": dropped,
        "kept": 1 / (1 - scores.dropout),
        "drops": dropped > 0,
    }
    if isinstance(scores.seed, Tensor):
        draws |= {"seed": scores.seed, "seed_on_device": 1}
    elif scores.dropout:
        draws["key"] = signed(_native.stream_key(scores.seed, 0, 0, _native.Purpose.attend))
    return draws
