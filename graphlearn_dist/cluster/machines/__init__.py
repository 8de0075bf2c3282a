"""Where workers run: bundles of the machines of a cluster, and interpreters for them."""
