"""The names of ``graphlearn_torch.distributed.dist_table_dataset``."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import torch

from ...data.schema import bare, by_type
from ...errors import InvalidArgumentError
from ...partition import OwnedEdgesBook, load_partition
from ...typing import FeaturePartitionData, GraphPartitionData, NodeType
from ...utils.tensor import id2idx
from ...utils.values import label_of
from ..data.table_dataset import bare_of, read_tables
from .dist_dataset import DistDataset
from .dist_random_partitioner import DistRandomPartitioner


class DistTableRandomPartitioner(DistRandomPartitioner):
    """As ``DistRandomPartitioner``, but each rank gets its partition in memory, and nothing is left on disk."""

    def __init__(
        self,
        num_nodes: int | dict[NodeType, int],
        edge_index: Any,
        edge_ids: Any,
        node_feat: Any = None,
        node_feat_ids: Any = None,
        edge_feat: Any = None,
        edge_feat_ids: Any = None,
        num_parts: int | None = None,
        current_partition_idx: int | None = None,
        node_feat_dtype: torch.dtype | None = torch.float32,
        edge_feat_dtype: torch.dtype | None = torch.float32,
        edge_assign_strategy: str = "by_src",
        chunk_size: int = 10000,
        master_addr: str | None = None,
        master_port: str | int | None = None,
        num_rpc_threads: int = 16,
    ) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="gld-tables-")
        super().__init__(
            Path(self._folder.name) / "partitions",
            num_nodes,
            edge_index,
            edge_ids,
            node_feat,
            node_feat_ids,
            edge_feat,
            edge_feat_ids,
            num_parts,
            current_partition_idx,
            node_feat_dtype,
            edge_feat_dtype,
            edge_assign_strategy,
            chunk_size,
            master_addr,
            master_port,
            num_rpc_threads,
        )

    def partition(self) -> Any:
        """Partitions; collective.

        Returns:
            What ``load_partition`` gives of this rank's partition.
        """
        with self._folder:
            loaded = load_partition(super().partition(), self.partition_idx)
            for book in by_type(loaded[6]).values():
                if isinstance(book, OwnedEdgesBook):
                    book.ids_at_hand(self.partition_idx)  # which it would read when they are first needed
            return loaded  # pages of mapped files live on without their names


class DistTableDataset(DistDataset):
    """A partition of tables of edges and nodes, of which each rank reads its part."""

    def load(  # type: ignore[override]  # other arguments, as in GraphLearn-for-PyTorch
        self,
        num_partitions: int = 1,
        partition_idx: int = 0,
        edge_tables: Mapping[Any, Any] | None = None,
        node_tables: Mapping[Any, Any] | None = None,
        num_nodes: int | dict[NodeType, int] = 0,
        graph_mode: str = "ZERO_COPY",
        device_group_list: Any = None,
        reader_threads: int = 10,
        reader_capacity: int = 10240,
        reader_batch_size: int = 1024,
        label: Any = None,
        device: int | None = None,
        feature_with_gpu: bool = True,
        edge_assign_strategy: str = "by_src",
        chunk_size: int = 10000,
        master_addr: str | None = None,
        master_port: str | int | None = None,
        num_rpc_threads: int = 16,
    ) -> None:
        """Reads this rank's part of the tables, partitions them with the other ranks, and keeps its partition.

        Args:
            num_partitions: ranks, each of which calls this.
            partition_idx: this rank.
            edge_tables: by edge type, a table (see ``graphlearn_dist.data.tables.read_columns``): sources, targets and
                edge ids. A callable is asked for this rank's part.
            node_tables: by node type, a table: ids, and features as texts such as ``"0.5:1"``, or as rows of numbers.
            num_nodes: nodes of the whole graph, by node type where it is typed.
            graph_mode: see ``Graph``.
            device_group_list: see ``Feature``.
            reader_threads: without effect; so are ``reader_capacity`` and ``reader_batch_size``.
            label: labels of all nodes, ``[num_nodes, ...]``, or a dict by node type.
            device: see ``Graph``.
            feature_with_gpu: see ``Feature``.
            edge_assign_strategy, chunk_size, master_addr, master_port, num_rpc_threads: see ``DistRandomPartitioner``.

        Raises:
            InvalidArgumentError: a table does not have such columns.
            StorageError: a file cannot be read.
        """
        edges, nodes = read_tables(edge_tables, node_tables, partition_idx, num_partitions)
        for key, columns in edges.items():
            if len(columns) != 3:
                raise InvalidArgumentError(f"{label_of('edge_tables', key)}: expected a third column, of edge ids")
        typed = len(edges) > 1 or len(nodes) > 1
        partitioner = DistTableRandomPartitioner(
            num_nodes,
            bare_of({key: torch.stack(columns[:2]) for key, columns in edges.items()}, typed),
            bare_of({key: columns[2] for key, columns in edges.items()}, typed),
            bare_of({key: features for key, (_, features) in nodes.items()}, typed),
            bare_of({key: ids for key, (ids, _) in nodes.items()}, typed),
            num_parts=num_partitions,
            current_partition_idx=partition_idx,
            edge_assign_strategy=edge_assign_strategy,
            chunk_size=chunk_size,
            master_addr=master_addr,
            master_port=master_port,
            num_rpc_threads=num_rpc_threads,
        )
        self.edge_dir = "out" if edge_assign_strategy == "by_src" else "in"
        self._hold(partitioner.partition(), graph_mode, device_group_list, device, feature_with_gpu)
        self.init_node_labels(label)

    def _hold(
        self, partition: Any, graph_mode: str, device_group_list: Any, device: int | None, feature_with_gpu: bool
    ) -> None:
        """Keeps what ``load_partition`` gave."""
        self.num_partitions, self.partition_idx, graph, node_feat, _, self.node_pb, self.edge_pb = partition
        parts: dict[Any, GraphPartitionData] = by_type(graph)
        features: dict[Any, FeaturePartitionData] = by_type(node_feat)
        self.init_graph(
            bare({key: part.edge_index for key, part in parts.items()}),
            bare({key: part.eids for key, part in parts.items()}),
            graph_mode=graph_mode,
            device=device,
        )
        self.init_node_features(
            bare({key: part.feats for key, part in features.items()}),
            bare({key: id2idx(part.ids) for key, part in features.items() if part.ids is not None}),
            None,
            0.0,
            device_group_list,
            device,
            feature_with_gpu,
        )


def rebuild_dist_table_dataset(ipc_handle: Any) -> DistTableDataset:
    """The data set that ``reduce_dist_table_dataset`` described."""
    dataset = DistTableDataset.from_ipc_handle(ipc_handle)
    assert isinstance(dataset, DistTableDataset)
    return dataset


def reduce_dist_table_dataset(dataset: DistTableDataset) -> tuple[Any, ...]:
    """How a data set goes to another process through ``multiprocessing``: as a handle to the same memory."""
    return rebuild_dist_table_dataset, (dataset.share_ipc(),)


ForkingPickler.register(DistTableDataset, reduce_dist_table_dataset)

__all__ = [
    "DistTableDataset",
    "DistTableRandomPartitioner",
    "rebuild_dist_table_dataset",
    "reduce_dist_table_dataset",
]
