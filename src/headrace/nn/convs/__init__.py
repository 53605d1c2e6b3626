"""Convolutions with PyG's names and parameters, and what they are made of."""
