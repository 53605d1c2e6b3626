"""Benchmarks of link prediction: beside peers, by where rows live, and by the order of partitions on disk."""
