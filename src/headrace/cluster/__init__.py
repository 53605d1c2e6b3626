"""Graphs and features that are split over ranks: who holds what, what is sent in a step, and layers computed by all of them."""
