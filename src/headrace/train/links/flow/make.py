"""`make_flow`: the flow for where rows are and where gradients are computed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from headrace.nn import Decoder
from headrace.sample import KnownEdges
from headrace.store import TrainedRows
from headrace.train.links.flow.cpu import CPUFlow
from headrace.train.links.flow.device import DeviceFlow
from headrace.train.links.flow.flow import LinkFlow
from headrace.train.links.flow.host import HostFlow
from headrace.train.links.options import LinkOptions

if TYPE_CHECKING:
    from headrace.train.links.encoder import LinkEncoder


def make_flow(
    triples: Tensor,
    rows: TrainedRows,
    decoder: Decoder,
    options: LinkOptions,
    *,
    weight: Tensor | None = None,
    known: KnownEdges | None = None,
    encoder: LinkEncoder | None = None,
) -> LinkFlow:
    """The flow of batches of `triples`, the training edges.

    weight: how likely each node is drawn as a negative; alike by default.
    known: edges that are left out of the negatives.
    """
    kind: type[LinkFlow]
    if torch.device(options.device).type == "cpu":
        kind = CPUFlow
    else:
        kind = DeviceFlow if rows.device.type == "cuda" else HostFlow
    return kind(triples, rows, decoder, options, weight=weight, known=known, encoder=encoder)
