"""Requests and their answers, on either side of a connection."""
