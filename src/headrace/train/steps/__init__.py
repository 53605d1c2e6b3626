"""What a step is made of: gradients of its batches, an optimizer, numbers read back, statistics and sums."""
