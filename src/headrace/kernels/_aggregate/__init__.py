"""Sum, mean or max of neighbors' rows over a CSR."""
