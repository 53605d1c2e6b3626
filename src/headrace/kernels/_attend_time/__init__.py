"""Attention over neighbors in time: rows of nodes, features of edges and the cosines of time differences, in one pass."""
