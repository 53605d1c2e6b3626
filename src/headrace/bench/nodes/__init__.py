"""Benchmarks of what node classification is made of: batches, training steps, whole graphs and the advisor's choices."""
