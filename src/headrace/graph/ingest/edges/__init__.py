"""The edges of an import on disk: as they were read, in order of time, and as triples and features beside the graph."""
