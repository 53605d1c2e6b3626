"""The gates of a GRU in one pass."""
