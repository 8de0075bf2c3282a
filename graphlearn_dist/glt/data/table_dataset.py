"""The names of ``graphlearn_torch.data.table_dataset``."""

from __future__ import annotations

from collections.abc import Mapping
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch

from ...data.tables import feature_column, id_column, read_columns
from ...errors import InvalidArgumentError
from ...utils.tensor import id2idx
from ...utils.values import check_distinct, label_of
from .dataset import Dataset


class TableDataset(Dataset):
    """A data set of tables of edges and nodes."""

    def load(
        self,
        edge_tables: Mapping[Any, Any] | None = None,
        node_tables: Mapping[Any, Any] | None = None,
        graph_mode: str = "ZERO_COPY",
        sort_func: Any = None,
        split_ratio: float = 0.0,
        device_group_list: Any = None,
        directed: bool = True,
        reader_threads: int = 10,
        reader_capacity: int = 10240,
        reader_batch_size: int = 1024,
        label: Any = None,
        device: int | None = None,
        **kwargs: Any,
    ) -> None:
        """Reads tables; one edge type and one node type make a homogeneous data set.

        Args:
            edge_tables: by edge type, a table (see ``graphlearn_dist.data.tables.read_columns``): sources, targets.
            node_tables: by node type, a table: ids, and features as texts such as ``"0.5:1"``, or as rows of numbers.
            graph_mode: see ``Graph``.
            sort_func: see ``Dataset.init_node_features``.
            split_ratio: see ``Dataset.init_node_features``.
            device_group_list: see ``Dataset.init_node_features``.
            directed: see ``Dataset.init_graph``.
            reader_threads: without effect; so are ``reader_capacity``, ``reader_batch_size`` and other keywords, which
                tell the vendor's reader how to read.
            label: labels of the nodes, ``[num_nodes, ...]``, or a dict by node type.
            device: see ``Graph``.

        Raises:
            InvalidArgumentError: a table does not have such columns.
            StorageError: a file cannot be read.
        """
        edges, nodes = read_tables(edge_tables, node_tables)
        typed = len(edges) > 1 or len(nodes) > 1
        pairs = {key: torch.stack(columns[:2]) for key, columns in edges.items()}
        rows, rows_of = {}, {}
        for key, (ids, features) in nodes.items():
            order = ids.argsort()
            rows[key] = features[order]
            rows_of[key] = id2idx(ids[order])
        is_dense = all(torch.equal(index, torch.arange(len(rows[key]))) for key, index in rows_of.items())
        self.init_graph(bare_of(pairs, typed), graph_mode=graph_mode, directed=directed, device=device)
        self.init_node_features(
            bare_of(rows, typed),
            None if is_dense else bare_of(rows_of, typed),
            sort_func,
            split_ratio,
            device_group_list,
            device,
        )
        self.init_node_labels(label)


def read_tables(
    edge_tables: Any, node_tables: Any, part: int = 0, num_parts: int = 1
) -> tuple[dict[Any, list[torch.Tensor]], dict[Any, tuple[torch.Tensor, torch.Tensor]]]:
    """By edge type the columns of ids, and by node type ids and features, of one of equal parts of the tables."""
    for name, tables in (("edge_tables", edge_tables), ("node_tables", node_tables)):
        if not isinstance(tables, Mapping) or not tables:
            raise InvalidArgumentError(f"{name}: expected tables by type, got {type(tables).__name__}")
    edges: dict[Any, list[torch.Tensor]] = {}
    for key, table in edge_tables.items():
        name = label_of("edge_tables", key)
        columns = read_columns(table, name, part, num_parts)
        if len(columns) < 2:
            raise InvalidArgumentError(f"{name}: expected columns of sources and targets, got {len(columns)} columns")
        edges[key] = [id_column(column, name) for column in columns[:3]]
    nodes = {}
    for key, table in node_tables.items():
        name = label_of("node_tables", key)
        columns = read_columns(table, name, part, num_parts)
        if len(columns) != 2:
            raise InvalidArgumentError(f"{name}: expected columns of ids and features, got {len(columns)} columns")
        nodes[key] = id_column(columns[0], name), feature_column(columns[1], name)
        check_distinct(name, nodes[key][0])
    return edges, nodes


def bare_of(values: dict[Any, Any], typed: bool) -> Any:
    """The one value of a homogeneous data set, the dict of a typed one."""
    return values if typed else next(iter(values.values()))


def rebuild_table_dataset(ipc_handle: Any) -> TableDataset:
    """The data set that ``reduce_table_dataset`` described."""
    dataset = TableDataset.from_ipc_handle(ipc_handle)
    assert isinstance(dataset, TableDataset)
    return dataset


def reduce_table_dataset(dataset: TableDataset) -> tuple[Any, ...]:
    """How a data set goes to another process through ``multiprocessing``: as a handle to the same memory."""
    return rebuild_table_dataset, (dataset.share_ipc(),)


ForkingPickler.register(TableDataset, reduce_table_dataset)

__all__ = ["TableDataset", "rebuild_table_dataset", "reduce_table_dataset"]
