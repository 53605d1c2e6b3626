"""Caches: the rows of any store, with those used most kept in faster memory."""
