"""Rows that are learned, and the optimizers of them: on servers, or in one process."""
