"""Scores of edges and the losses that train them."""
