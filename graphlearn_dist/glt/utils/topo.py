"""The names of ``graphlearn_torch.utils.topo``."""

from __future__ import annotations

from ...utils.topo import coo_to_csc, coo_to_csr, ptr2ind

__all__ = [
    "coo_to_csc",
    "coo_to_csr",
    "ptr2ind",
]
