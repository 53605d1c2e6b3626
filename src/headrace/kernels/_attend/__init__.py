"""Attention over neighbors: scores, softmax, dropout and weighted sum in one pass."""
