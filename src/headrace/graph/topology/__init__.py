"""What a graph is made of: edges as they come, rows and their order, times, and what one pass over them tells."""
