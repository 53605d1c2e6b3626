"""`flow_class`: the flow for where rows are and where gradients are computed."""

from __future__ import annotations

import torch

from headrace.store import TrainedRows
from headrace.train.links.flow.cpu import CPUFlow
from headrace.train.links.flow.device import DeviceFlow
from headrace.train.links.flow.flow import LinkFlow
from headrace.train.links.flow.host import HostFlow
from headrace.train.links.options import LinkOptions


def flow_class(rows: TrainedRows, options: LinkOptions) -> type[LinkFlow]:
    """`CPUFlow` where a CPU computes; on a GPU `DeviceFlow` with the rows in its memory, else `HostFlow`."""
    if torch.device(options.device).type == "cpu":
        return CPUFlow
    return DeviceFlow if rows.device.type == "cuda" else HostFlow
