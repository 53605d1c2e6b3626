"""Temporal link prediction over event streams: options, the recipe, its evaluation."""
