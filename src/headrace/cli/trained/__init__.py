"""Commands on what was trained: predictions, rows, reports, what it cost."""
