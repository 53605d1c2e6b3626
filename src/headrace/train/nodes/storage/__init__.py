"""Node classification with features on disk: all of them read batch by batch, or some partitions resident."""
