"""What a training loop holds: PyG objects out."""

from .neighbor_loader import NeighborLoader
from .transform import to_pyg

__all__ = ["NeighborLoader", "to_pyg"]
