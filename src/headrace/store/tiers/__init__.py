"""Rows in tiers of memory: hot ones on the device, warm ones in host memory, the rest on disk."""
