"""Negatives of links, and edges that are left out for them."""
