"""Node classification: a recipe for features in memory, on disk, or resident partition by partition."""
