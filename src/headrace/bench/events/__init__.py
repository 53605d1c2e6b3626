"""Benchmarks of event streams."""
