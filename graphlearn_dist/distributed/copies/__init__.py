"""Copies of other partitions' rows that a process keeps for who samples on its host: which rows, and where they lie."""
