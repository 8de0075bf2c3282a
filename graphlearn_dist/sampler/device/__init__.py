"""Batches that a GPU makes."""
