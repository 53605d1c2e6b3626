"""Exact inference: the layers of a model one after the other, each for all nodes, in memory, from disk or over ranks."""
