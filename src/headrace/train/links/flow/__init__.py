"""The way of a batch of edges from its positions to updated rows, with one class for each place where rows can be."""

from headrace.train.links.flow.batch import FlowBatch
from headrace.train.links.flow.flow import LinkFlow
from headrace.train.links.flow.place import flow_class

__all__ = ["FlowBatch", "LinkFlow", "flow_class"]
