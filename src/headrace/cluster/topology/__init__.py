"""Neighbor sampling over a graph whose rows are split over ranks, with the bits of sampling the whole graph on one."""

from headrace.cluster.topology.sampler import SplitSampler
from headrace.cluster.topology.traffic import AskedSizes, asked_sizes, degree_traffic, expected_sample_bytes, sample_traffic

__all__ = ["AskedSizes", "SplitSampler", "asked_sizes", "degree_traffic", "expected_sample_bytes", "sample_traffic"]
