"""Payloads that pass through shared memory between processes of one host."""
