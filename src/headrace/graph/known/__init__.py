"""Datasets by name: real ones, those of other packages, examples, and what is generated."""
