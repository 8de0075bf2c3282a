"""PyG's remote backend over servers: a ``FeatureStore`` and a ``GraphStore``.

    data = ServedDataset.connect()  # in a client, see init_client
    loader = torch_geometric.loader.NodeLoader(
        (ServerFeatureStore(data), ServerGraphStore(data)), PyGSampler(data, [10, 5]), input_nodes=("paper", ids)
    )

This module imports PyG, which takes as long as importing torch; nothing else of ``distributed`` does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch_geometric.data import EdgeAttr, FeatureStore, GraphStore, TensorAttr
from torch_geometric.data.graph_store import EdgeLayout

from ..core import check_index_tensor
from ..data.columns import EDGE_COLUMN, NODE_COLUMN, ColumnStore, column_store, columns_among
from ..data.schema import EDGE_FEATURE, NODE_FEATURE, NODE_LABEL, store_name
from ..errors import InvalidArgumentError
from .sampling.asked_dataset import AskedDataset
from .sampling.partition_directory import DirectoryDataset

_NODE_ATTRIBUTES = {"x": NODE_FEATURE, "y": NODE_LABEL}
_EDGE_ATTRIBUTES = {"edge_attr": EDGE_FEATURE}


def stores_of_directory(root_dir: str | Path) -> tuple[ServerFeatureStore, ServerGraphStore]:
    """The stores of a partition directory, all of it on this machine.

    Raises:
        PartitionFormatError: the directory is foreign, truncated or damaged.
    """
    data = DirectoryDataset(root_dir)
    return ServerFeatureStore(data), ServerGraphStore(data)


def _refuse(what: str) -> NoReturn:
    raise InvalidArgumentError(f"{what}: expected only reads: the data set of the servers does not change")


class ServerFeatureStore(FeatureStore):  # type: ignore[misc]  # PyG is not typed
    """All attributes that servers (or a partition directory) hold, by PyG's names.

    ``x``, ``y`` and further attributes of a node type (``group_name`` None in a homogeneous graph) by node id, and
    ``edge_attr`` and further ones of an edge type by edge id. Rows come in the order of the index, which may be None
    (all rows, in the order of ids), ids with duplicates, a boolean mask, a slice or one id. All tensors of a
    ``multi_get_tensor`` travel together: one request for each partition that owns some of the rows.

    Args:
        data: the servers' data set.
    """

    def __init__(self, data: AskedDataset) -> None:
        super().__init__()
        self._data = data
        self._stores = data.stores()

    def get_all_tensor_attrs(self) -> list[TensorAttr]:
        """All attributes of every node type.

        Those of edges are not listed, but by ``edge_tensor_attrs``: PyG's loaders ask for whatever is listed here with
        ids of nodes.
        """
        types = self._data.schema.node_types
        listed = [
            TensorAttr(group_name=node_type, attr_name=name)
            for index, node_type in enumerate(types)
            for name, kind in _NODE_ATTRIBUTES.items()
            if store_name(kind, index) in self._stores
        ]
        return listed + [TensorAttr(types[c.type_index], c.name) for c in self._columns if c.kind == NODE_COLUMN]

    def edge_tensor_attrs(self) -> list[TensorAttr]:
        """All attributes of every edge type; their rows are those of edge ids."""
        types = self._data.schema.edge_types
        listed = [
            TensorAttr(group_name=edge_type, attr_name=name)
            for index, edge_type in enumerate(types)
            for name, kind in _EDGE_ATTRIBUTES.items()
            if store_name(kind, index) in self._stores
        ]
        return listed + [TensorAttr(types[c.type_index], c.name) for c in self._columns if c.kind != NODE_COLUMN]

    def constant_attrs(self) -> Mapping[Any, Mapping[str, Any]]:
        """By type (None: of the graph) and name, the attributes without rows; of servers none are known."""
        return self._data.constants

    @property
    def _columns(self) -> tuple[ColumnStore, ...]:
        return columns_among(frozenset(self._stores))

    def _find(self, attr: TensorAttr) -> str | None:
        """The name of the store, or None where there is none.

        In a homogeneous graph nodes and edges have one group: an attribute is of nodes if these have one of its name.
        """
        schema, name = self._data.schema, attr.attr_name
        group = tuple(attr.group_name) if isinstance(attr.group_name, list) else attr.group_name
        places = (
            (_NODE_ATTRIBUTES, NODE_COLUMN, schema.node_types),
            (_EDGE_ATTRIBUTES, EDGE_COLUMN, schema.edge_types),
        )
        for kinds, column_kind, types in places:
            if group not in types:
                continue
            index = types.index(group)
            named = [store_name(kinds[name], index)] if name in kinds else []
            for store in (*named, column_store(column_kind, index, name)):
                if store in self._stores:
                    return store
        return None

    def _num_rows(self, store: str) -> int:
        return self._data.store_books()[store].num_ids

    def _get_tensor_size(self, attr: TensorAttr) -> tuple[int, ...] | None:
        store = self._find(attr)
        return None if store is None else (self._num_rows(store), *self._stores[store].shape[1:])

    def _get_tensor(self, attr: TensorAttr) -> torch.Tensor:
        return self._multi_get_tensor([attr])[0]

    def _multi_get_tensor(self, attrs: Sequence[TensorAttr]) -> list[torch.Tensor]:
        found: list[torch.Tensor] = [torch.empty(0)] * len(attrs)
        left = [(place, *self._resolve(attr)) for place, attr in enumerate(attrs)]
        while left:  # once, unless a store is asked for twice
            wanted: dict[str, torch.Tensor] = {}
            now, left = left, []
            places = {}
            for place, store, ids in now:
                if store in wanted:
                    left.append((place, store, ids))
                else:
                    wanted[store], places[store] = ids, place
            for store, rows in self._data.look_up(wanted).items():
                found[places[store]] = rows
        singles = [isinstance(attr.index, int) for attr in attrs]
        return [rows[0] if single else rows for rows, single in zip(found, singles, strict=True)]

    def _resolve(self, attr: TensorAttr) -> tuple[str, torch.Tensor]:
        store = self._find(attr)
        if store is None:
            raise InvalidArgumentError(
                f"attr_name, group_name: the servers have no {attr.attr_name!r} of {attr.group_name!r}; they have "
                f"{[(known.group_name, known.attr_name) for known in self.get_all_tensor_attrs()]}"
            )
        return store, _to_ids(attr.index, self._num_rows(store))

    def _put_tensor(self, tensor: Any, attr: TensorAttr) -> bool:
        _refuse("put_tensor")

    def _remove_tensor(self, attr: TensorAttr) -> bool:
        _refuse("remove_tensor")


def _to_ids(index: Any, num_rows: int) -> torch.Tensor:
    """What PyG calls an index, as ids int64 ``[n]``."""
    if index is None:
        return torch.arange(num_rows)
    if isinstance(index, slice):
        return torch.arange(*index.indices(num_rows))
    if isinstance(index, int):
        index = torch.tensor([index])
    if isinstance(index, torch.Tensor) and index.dtype == torch.bool:
        if index.shape != (num_rows,):
            raise InvalidArgumentError(f"index: expected a mask [{num_rows}], got {tuple(index.shape)}")
        index = index.nonzero().view(-1)
    return check_index_tensor(index, "index", num_ids=num_rows).to(torch.int64)


class ServerGraphStore(GraphStore):  # type: ignore[misc]  # PyG is not typed
    """The edges that servers hold, put together to one graph: by source and target, whatever the partitions.

    Every layout holds all edges of a type, sorted: COO and CSC by (target, source), CSR by (source, target). They are
    fetched anew with each call and are as large as the graph: to sample, ``PyGSampler`` asks for what it needs only.

    Args:
        data: the servers' data set.

    Attributes:
        data: the same.
    """

    def __init__(self, data: AskedDataset) -> None:
        super().__init__()
        self.data = data

    def get_all_edge_attrs(self) -> list[EdgeAttr]:
        """Each edge type (None in a homogeneous graph) in COO, with the numbers of source and target nodes."""
        return [
            EdgeAttr(edge_type, EdgeLayout.COO, is_sorted=True, size=self._size(edge_type))
            for edge_type in self.data.schema.edge_types
        ]

    def _size(self, edge_type: Any) -> tuple[int, int]:
        schema = self.data.schema
        counts = dict(zip(schema.node_types, schema.num_nodes, strict=True))
        return (counts[None],) * 2 if edge_type is None else (counts[edge_type[0]], counts[edge_type[2]])

    def _get_edge_index(self, edge_attr: EdgeAttr) -> tuple[torch.Tensor, torch.Tensor] | None:
        group = edge_attr.edge_type
        edge_type = tuple(group) if isinstance(group, list) else group
        if edge_type not in self.data.schema.edge_types:
            return None
        (num_sources, num_targets), layout = self._size(edge_type), edge_attr.layout
        source, target = self.data.edge_index(edge_type)
        if layout is EdgeLayout.CSR:
            source, target = _sorted_by(source, target)
            return _offsets(source, num_sources), target
        target, source = _sorted_by(target, source)
        return source, _offsets(target, num_targets) if layout is EdgeLayout.CSC else target

    def _put_edge_index(self, edge_index: Any, edge_attr: EdgeAttr) -> bool:
        _refuse("put_edge_index")

    def _remove_edge_index(self, edge_attr: EdgeAttr) -> bool:
        _refuse("remove_edge_index")


def _sorted_by(first: torch.Tensor, second: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Both, in the order of (first, second)."""
    order = torch.argsort(second)
    order = order[torch.argsort(first[order], stable=True)]
    return first[order], second[order]


def _offsets(ids: torch.Tensor, count: int) -> torch.Tensor:
    """int64 ``[count + 1]``: where the run of each id begins in sorted ids."""
    return torch.cat([torch.zeros(1, dtype=torch.int64), torch.bincount(ids, minlength=count).cumsum(0)])
