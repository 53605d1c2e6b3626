"""Node classification by several ranks: whole batches for each, or the first layer by all of them, over a graph whole or split."""
