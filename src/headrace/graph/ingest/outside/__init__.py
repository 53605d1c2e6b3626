"""Work that does not fit in memory: sorted runs, scratch files, rows compressed on disk."""
