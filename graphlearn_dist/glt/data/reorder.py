"""The names of ``graphlearn_torch.data.reorder``."""

from __future__ import annotations

from typing import Any

import torch

from ...data import reorder


def sort_by_in_degree(
    cpu_tensor: torch.Tensor, shuffle_ratio: float, topo: Any
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Rows by the in-degree of their nodes, see ``graphlearn_dist.data.reorder``; as they are without a topology."""
    return (cpu_tensor, None) if topo is None else reorder.sort_by_in_degree(cpu_tensor, shuffle_ratio, topo)


__all__ = [
    "sort_by_in_degree",
]
