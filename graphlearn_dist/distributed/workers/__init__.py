"""Sampling workers: the processes that make batches, how they are started, spoken to, and found dead."""
