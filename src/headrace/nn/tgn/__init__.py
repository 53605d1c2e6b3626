"""Temporal graph networks: a memory per node that events change, attention over recent events, and scores of future ones."""
