"""Benchmarks of single operations: sampling, gathering, caching, sums over neighbors and attention."""
