"""Benchmarks of snapshot sequences: a training step by strategy, beside cells as PyG Temporal runs them."""
