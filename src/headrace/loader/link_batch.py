"""`LinkBatch`: a batch of edges to learn from, with the neighborhood of their ends."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from headrace.loader.batch import Batch, MovedBatch
from headrace.sample import Negatives, NegativeSampling

if TYPE_CHECKING:
    from torch_geometric.data import Data


@dataclass(frozen=True, eq=False)
class Links:
    """The edges of a batch as positions among its seeds. Fields are PyG's: of two kinds, of which one is set.

    Positives alone or binary negatives: `edge_label_index` and `edge_label`, positives first. Triplets: `src_index`,
    `dst_pos_index` and `dst_neg_index`, one row of negatives per positive where there are several.
    """

    edge_label_index: Tensor | None = None  # [2, positives + negatives]
    edge_label: Tensor | None = None  # [positives + negatives]
    src_index: Tensor | None = None  # [positives]
    dst_pos_index: Tensor | None = None  # [positives]
    dst_neg_index: Tensor | None = None  # [positives], or [positives, amount]
    seed_time: Tensor | None = None  # of the positives, then of the negatives; of triplets [positives]; where sampling is by time
    left: int = 0  # negatives that are edges after all rounds of drawing them again

    def to(self, device: torch.device) -> Links:
        """The same on a device."""
        tensors = {f.name: getattr(self, f.name) for f in fields(self) if isinstance(getattr(self, f.name), Tensor)}
        return replace(self, **{name: tensor.to(device) for name, tensor in tensors.items()})

    def tensors(self) -> list[Tensor]:
        """The tensors of the fields that are set."""
        return [value for value in vars(self).values() if isinstance(value, Tensor)]


class LinkFields:
    """The fields of `links` as the batch's own."""

    links: Links

    @property
    def edge_label_index(self) -> Tensor | None:
        return self.links.edge_label_index

    @property
    def edge_label(self) -> Tensor | None:
        return self.links.edge_label

    @property
    def edge_label_time(self) -> Tensor | None:
        return self.links.seed_time if self.links.edge_label_index is not None else None

    @property
    def src_index(self) -> Tensor | None:
        return self.links.src_index

    @property
    def dst_pos_index(self) -> Tensor | None:
        return self.links.dst_pos_index

    @property
    def dst_neg_index(self) -> Tensor | None:
        return self.links.dst_neg_index


@dataclass(eq=False, repr=False)
class LinkBatch(Batch, LinkFields):
    """A `Batch` whose seeds are the ends of edges; `batch_size` counts these nodes.

    Each node stands once and in order of id or, where trees are disjoint, as often as an edge has it; `tree` then numbers edges.

    `input_id` is the position of each positive among the loader's edges.
    """

    links: Links = field(default_factory=Links)

    @property
    def seeds(self) -> Tensor:
        """The nodes that the links are between."""
        return self.n_id[: self.batch_size]

    def to_pyg(self) -> Data:
        """The same as a PyG `Data`, with the fields of PyG's link loader."""
        data = super().to_pyg()
        del data.batch_size
        for name in ("edge_label_index", "edge_label", "edge_label_time", "src_index", "dst_pos_index", "dst_neg_index"):
            if getattr(self, name) is not None:
                data[name] = getattr(self, name)
        if self.links.src_index is not None:
            data.seed_time = self.links.seed_time
        return data

    def to(self, device: str | torch.device) -> LinkBatch | MovedLinkBatch:
        """The batch on a device: blocks, rows, labels and links."""
        return self if torch.device(device).type == self.n_id.device.type else MovedLinkBatch(self, torch.device(device))

    def tensors(self) -> list[Tensor]:
        """The tensors that belong to this batch alone."""
        return super().tensors() + self.links.tensors()

    def __repr__(self) -> str:
        return f"LinkBatch({self.index}, edges={len(self.input_id)}, {self.sample})"


class MovedLinkBatch(MovedBatch, LinkFields):
    """A link batch on another device."""

    def __init__(self, batch: LinkBatch, device: torch.device) -> None:
        super().__init__(batch, device)
        self.links = batch.links.to(device)

    def tensors(self) -> list[Tensor]:
        """The tensors that have been moved, and those of the batch before."""
        return super().tensors() + self.links.tensors()


@dataclass(frozen=True)
class Ends:
    """The nodes that links are between. Where sources and targets are of one type, `sources` holds all ends and `targets` is None.

    Each node stands once and in order of id or, where trees are disjoint, as often as a link has it: `source_link` and
    `target_link` then say which positive each belongs to.
    """

    links: Links
    sources: Tensor
    targets: Tensor | None = None
    source_time: Tensor | None = None
    target_time: Tensor | None = None
    source_link: Tensor | None = None
    target_link: Tensor | None = None


def links_of(
    src: Tensor,
    dst: Tensor,
    label: Tensor | None,
    *,
    negatives: Negatives | None = None,
    sampling: NegativeSampling | None = None,
    one_type: bool = True,
    disjoint: bool = False,
    time: Tensor | None = None,  # of the positives, [positives]
) -> Ends:
    """The nodes at the ends of positives and negatives, and the links as positions among these nodes."""
    positives, binary = len(src), sampling is not None and sampling.mode == "binary"
    if negatives is not None:
        # In disjoint trees negatives stand as PyG has them: the first of every positive, then the second of every positive, ...
        turned = disjoint and not binary
        added = negatives.dst.view(positives, -1).t().flatten() if turned else negatives.dst
        src, dst = torch.cat([src, negatives.src]) if binary else src, torch.cat([dst, added])
    left = 0 if negatives is None else negatives.left
    sources, targets, from_, to = _ends(src, dst, one_type=one_type, disjoint=disjoint)
    whose: list[Tensor | None] = [torch.arange(len(ends)) % max(positives, 1) for ends in (src, dst)] if disjoint else [None, None]
    times = [None if time is None or at is None else time[at] for at in whose]
    if one_type and disjoint:
        merged = {"source_link": _cat(whose), "source_time": _cat(times)}
    else:
        merged = dict(zip(("source_link", "target_link", "source_time", "target_time"), (*whose, *times), strict=True))
    if sampling is not None and not binary:
        amount = int(sampling.amount)
        chosen = to[positives:].view(amount, positives).t() if disjoint else to[positives:].view(positives, amount)
        links = Links(
            src_index=from_, dst_pos_index=to[:positives], dst_neg_index=chosen.squeeze(-1), seed_time=times[0], left=left
        )
        return Ends(links, sources, targets, **merged)
    if binary:
        label = torch.ones(positives) if label is None else label
        label = torch.cat([label, label.new_zeros((len(src) - positives, *label.shape[1:]))])
    return Ends(Links(torch.stack([from_, to]), label, seed_time=times[0], left=left), sources, targets, **merged)


def _ends(src: Tensor, dst: Tensor, *, one_type: bool, disjoint: bool) -> tuple[Tensor, Tensor | None, Tensor, Tensor]:
    """Sources, targets (None where they are among the sources), and the places of `src` and `dst` among them."""
    if disjoint:
        from_, to = torch.arange(len(src)), torch.arange(len(dst))
        return (torch.cat([src, dst]), None, from_, to + len(src)) if one_type else (src, dst, from_, to)
    if one_type:
        nodes, place = torch.cat([src, dst]).unique(return_inverse=True)  # type: ignore[no-untyped-call]
        return nodes, None, place[: len(src)], place[len(src) :]
    sources, from_ = src.unique(return_inverse=True)  # type: ignore[no-untyped-call]
    targets, to = dst.unique(return_inverse=True)  # type: ignore[no-untyped-call]
    return sources, targets, from_, to


def _cat(parts: list[Tensor | None]) -> Tensor | None:
    tensors = [part for part in parts if part is not None]
    return torch.cat(tensors) if tensors else None
