"""Orders of data sets: zones of near nodes, found by graph partitioners, and partitions of whole zones."""
