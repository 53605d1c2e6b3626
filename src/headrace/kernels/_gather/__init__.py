"""Rows by id, from one array or from several memories."""
