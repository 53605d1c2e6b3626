"""Plans of link prediction: where rows live, in how many partitions, in which order."""
