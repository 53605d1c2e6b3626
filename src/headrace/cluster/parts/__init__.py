"""A dataset cut into parts, one for each rank: who owns which node, what a part holds, and how it is written and opened."""
