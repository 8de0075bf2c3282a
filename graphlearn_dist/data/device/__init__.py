"""Rows and topologies in memory of GPUs, and what passes between that and the host's."""
