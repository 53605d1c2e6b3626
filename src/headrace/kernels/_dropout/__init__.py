"""Dropout whose mask is a function of a seed and a position."""
