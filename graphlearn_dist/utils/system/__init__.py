"""Processes, and what they take of their host: files, memory, ports."""
