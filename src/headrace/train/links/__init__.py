"""Link prediction: a recipe that trains embeddings of nodes and relations, in memory or from partitions on disk."""
