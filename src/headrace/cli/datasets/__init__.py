"""Commands that make datasets, change them and tell of them."""
