"""What the files of an import hold: opened, read in batches, recognized and shown."""
