"""Graphs and features that are split over ranks: who holds what, what is sent in a step, and layers computed by all of them."""

from headrace.cluster.parts.estimate import Estimate, estimate
from headrace.cluster.parts.part import Part, is_partition
from headrace.cluster.parts.partition import partition
from headrace.cluster.parts.summary import PartitionSummary, Share

__all__ = ["Estimate", "Part", "PartitionSummary", "Share", "estimate", "is_partition", "partition"]
