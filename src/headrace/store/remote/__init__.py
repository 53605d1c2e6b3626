"""Rows on several ranks: which rank owns a row, and one exchange that fetches a batch of them."""
