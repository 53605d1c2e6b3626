"""Graphs and datasets: what they are, how they are built, stored, generated and loaded."""

from headrace.graph import generate, reorder
from headrace.graph.dataset import Dataset, open_dataset
from headrace.graph.graph import Graph
from headrace.graph.hetero import EdgeType, HeteroGraph, Relation
from headrace.graph.known.load import load
from headrace.graph.snapshots import Snapshot, Snapshots
from headrace.graph.stream import EventSplits, EventStream
from headrace.graph.topology.rows import RowRange

__all__ = [
    "Dataset",
    "EdgeType",
    "EventSplits",
    "EventStream",
    "Graph",
    "HeteroGraph",
    "Relation",
    "RowRange",
    "Snapshot",
    "Snapshots",
    "generate",
    "load",
    "open_dataset",
    "reorder",
]
