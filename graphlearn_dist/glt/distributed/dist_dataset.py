"""The names of ``graphlearn_torch.distributed.dist_dataset``."""

from __future__ import annotations

from ...distributed.dist_dataset import DistDataset, random_split, rebuild_dist_dataset, reduce_dist_dataset

__all__ = [
    "DistDataset",
    "random_split",
    "rebuild_dist_dataset",
    "reduce_dist_dataset",
]
