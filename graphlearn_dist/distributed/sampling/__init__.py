"""A batch over partitions: split by owner, ask, sample what is at hand, stitch; features by one request a peer."""
