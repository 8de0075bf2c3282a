"""The names of ``graphlearn_torch.data.dataset``."""

from __future__ import annotations

from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch

from ...data.random_split import random_split as split_by_seed
from ...data.schema import bare, by_type
from .given import GivenData, bare_rows, drawn_seed, labeled_types


class Dataset(GivenData):
    """Graph, features, labels and splits of one machine, see ``graphlearn_dist.data.Dataset``."""

    def __init__(
        self,
        graph: Any = None,
        node_features: Any = None,
        edge_features: Any = None,
        node_labels: Any = None,
        edge_dir: Any = "out",
        node_split: Any = None,
    ) -> None:
        super().__init__(graph, node_features, edge_features, bare_rows(node_labels), edge_dir, node_split)

    def random_node_split(self, num_val: float | int, num_test: float | int, seed: int | None = None) -> None:
        """Splits the nodes of the types that have labels; torch's generator says how, unless a seed is given."""
        labels = by_type(self.node_labels)
        parts = {key: random_split(len(labels[key]), num_val, num_test, seed=seed) for key in labeled_types(self)}
        self.init_node_split(tuple(bare({key: part[i] for key, part in parts.items()}) for i in range(3)))


def random_split(
    num_total: int, num_val: float | int, num_test: float | int, *, seed: int | None = None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(train, valid, test) ids below ``num_total``; torch's generator says which, unless a seed is given."""
    return split_by_seed(num_total, num_val, num_test, seed=drawn_seed() if seed is None else seed)


def rebuild_dataset(ipc_handle: Any) -> Dataset:
    """The data set that ``reduce_dataset`` described."""
    dataset = Dataset.from_ipc_handle(ipc_handle)
    assert isinstance(dataset, Dataset)
    return dataset


def reduce_dataset(dataset: Dataset) -> tuple[Any, ...]:
    """How a data set goes to another process through ``multiprocessing``: as a handle to the same memory."""
    return rebuild_dataset, (dataset.share_ipc(),)


ForkingPickler.register(Dataset, reduce_dataset)

__all__ = [
    "Dataset",
    "random_split",
    "rebuild_dataset",
    "reduce_dataset",
]
