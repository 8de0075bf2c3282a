"""Partitioning by several processes together, none of which holds the graph whole."""
