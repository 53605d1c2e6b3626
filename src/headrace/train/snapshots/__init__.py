"""Forecasts on snapshot sequences: windows, baselines from the same windows, and a recipe in the one loop."""
