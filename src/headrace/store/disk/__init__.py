"""Rows on disk: files read by threads, and trained rows in partitions that visit a buffer."""
