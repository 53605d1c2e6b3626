"""Softmax of rows of scores, in place."""
