"""A dataset as a directory: its arrays, the names of its nodes, what kind of directory it is, what tells two apart."""
