"""What commands show: progress, a live view, results, plans, and errors as sentences."""
