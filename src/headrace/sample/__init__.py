"""Samplers, and what they return."""

from headrace.sample.neighbor import NeighborSampler
from headrace.sample.sample import Block, Sample

__all__ = ["Block", "NeighborSampler", "Sample"]
