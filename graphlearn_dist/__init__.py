"""Distributed graph sampling for GNN training in PyTorch."""
