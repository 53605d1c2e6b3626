"""What a model forecasts from the rows of nodes: numbers, classes or links; each with its loss, its measures and baselines."""
