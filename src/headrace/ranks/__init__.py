"""Processes that work together: who they are, what they exchange, and how each learns that another is gone."""
