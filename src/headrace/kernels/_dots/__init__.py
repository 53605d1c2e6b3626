"""Products of the rows at the two ends of every entry of a CSR."""
