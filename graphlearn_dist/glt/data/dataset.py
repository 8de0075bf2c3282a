"""The names of ``graphlearn_torch.data.dataset``."""

from __future__ import annotations

from ...data.dataset import Dataset, rebuild_dataset, reduce_dataset
from ...data.random_split import random_split

__all__ = [
    "Dataset",
    "random_split",
    "rebuild_dataset",
    "reduce_dataset",
]
