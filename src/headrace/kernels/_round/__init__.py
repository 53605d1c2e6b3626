"""Stochastic rounding to bfloat16."""
