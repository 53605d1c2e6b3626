"""Pairs of nodes that are no edges: drawn anew, shared by a chunk, before a time, and told from known edges."""
