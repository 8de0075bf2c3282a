"""The names of ``graphlearn_torch.distributed.dist_dataset``."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch

from ... import _C
from ...data.device.device_group import usable_groups
from ...data.schema import bare, by_type
from ...distributed.dist_dataset import DistDataset as PartitionDataset
from ...distributed.dist_dataset import random_split as split_by_seed
from ...utils.no_effect import warn_no_effect
from ..data.given import GivenData, bare_rows, drawn_seed, labeled_types, like
from ..utils.common import default_id_filter, default_id_select


class DistDataset(GivenData, PartitionDataset):
    """One partition with its books, see ``graphlearn_dist.distributed.DistDataset``.

    Args:
        id_filter: ``id_filter(book, partition)`` gives the ids of a partition, for ``random_node_split``.
        id_select: kept for programs that call it.
    """

    def __init__(
        self,
        num_partitions: int = 1,
        partition_idx: int = 0,
        graph_partition: Any = None,
        node_feature_partition: Any = None,
        edge_feature_partition: Any = None,
        whole_node_labels: Any = None,
        node_pb: Any = None,
        edge_pb: Any = None,
        node_feat_pb: Any = None,
        edge_feat_pb: Any = None,
        edge_dir: Any = "out",
        graph_caching: bool = False,
        node_split: Any = None,
        id_filter: Callable[..., torch.Tensor] = default_id_filter,
        id_select: Callable[..., torch.Tensor] = default_id_select,
    ) -> None:
        super().__init__(
            num_partitions,
            partition_idx,
            graph_partition,
            node_feature_partition,
            edge_feature_partition,
            bare_rows(whole_node_labels),
            node_pb,
            edge_pb,
            node_feat_pb,
            edge_feat_pb,
            edge_dir,
            node_split,
            graph_caching=graph_caching,
        )
        self.id_filter, self.id_select = id_filter, id_select

    @like(PartitionDataset.load)
    def load(self, *args: Any, **kwargs: Any) -> None:
        if not args and "root_dir" not in kwargs and "graph_dir" in kwargs:  # as the tutorials call it
            kwargs["root_dir"] = kwargs.pop("graph_dir")
        given = inspect.signature(PartitionDataset.load).bind(self, *args, **kwargs)
        groups = usable_groups(given.arguments.get("device_group_list"), must_be_there=False)
        # A device is named by somebody who expects it there; groups come with the program.
        if groups and given.arguments.get("device") is None and not _C.cuda_device_count():
            warn_no_effect("device_group_list", "no GPU is usable, rows and edges stay in host memory")
            given.arguments["device_group_list"] = None
        super().load(*given.args[1:], **given.kwargs)
        self.node_labels = bare_rows(self.node_labels)

    def random_node_split(self, num_val: float | int, num_test: float | int, seed: int | None = None) -> None:
        """Splits this partition's nodes of the types that have labels; torch's generator says how, unless a seed is
        given."""
        books = by_type(self.node_pb)
        parts = {}
        for key in labeled_types(self):
            own = self.id_filter(books[key], self.partition_idx)
            parts[key] = random_split(own, num_val, num_test, seed=seed)
        self.init_node_split(tuple(bare({key: part[i] for key, part in parts.items()}) for i in range(3)))


def random_split(
    indices: torch.Tensor, num_val: float | int, num_test: float | int, *, seed: int | None = None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Splits ids into (train, valid, test); torch's generator says how, unless a seed is given."""
    return split_by_seed(indices, num_val, num_test, seed=drawn_seed() if seed is None else seed)


def rebuild_dist_dataset(ipc_handle: Any) -> DistDataset:
    """The data set that ``reduce_dist_dataset`` described."""
    dataset = DistDataset.from_ipc_handle(ipc_handle)
    assert isinstance(dataset, DistDataset)
    return dataset


def reduce_dist_dataset(dataset: DistDataset) -> tuple[Any, ...]:
    """How a data set goes to another process through ``multiprocessing``: as a handle to the same memory."""
    return rebuild_dist_dataset, (dataset.share_ipc(),)


ForkingPickler.register(DistDataset, reduce_dist_dataset)

__all__ = [
    "DistDataset",
    "random_split",
    "rebuild_dist_dataset",
    "reduce_dist_dataset",
]
