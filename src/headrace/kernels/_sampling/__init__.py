"""Neighbor sampling on a GPU: draws, ranks and numbering, with the CPU's bits."""
