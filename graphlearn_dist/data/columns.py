"""Named columns: attributes of nodes and edges beside features and labels, and constants, which have no rows.

A column has one row for each node of a type, or for each edge by its id, of any dtype and shape. Batches carry the rows
of their nodes and edges, under the names of the columns, as PyG's loaders do.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..errors import InvalidArgumentError
from ..typing import EdgeType
from ..utils.tensor import convert_to_tensor
from . import shared_memory
from .feature import Feature
from .handles import handles_of, tensors_of
from .schema import NODE_FEATURE, NODE_LABEL, GraphSchema, store_name

NODE_COLUMN, EDGE_COLUMN = "node_attr", "edge_attr"
Columns = dict[Any, dict[str, torch.Tensor]]
"""By type (the one key None if it has no name) and by name."""


@dataclass(frozen=True)
class ColumnStore:
    """Which column a store of rows holds: of nodes or edges (``kind``), of which type (its number), and its name."""

    store: str
    kind: str
    type_index: int
    name: str


def column_store(kind: str, type_index: int, name: str) -> str:
    """The name of the store of a column, such as ``"node_attr:0:pos"``."""
    return f"{store_name(kind, type_index)}:{name}"


@functools.cache
def node_type_of(store: str) -> int | None:
    """The number of the node type whose rows a store has; None where a store has rows of edges."""
    kind, number = store.split(":", 2)[:2]
    return int(number) if kind in (NODE_FEATURE, NODE_LABEL, NODE_COLUMN) else None


@functools.lru_cache(maxsize=64)
def columns_among(stores: frozenset[str]) -> tuple[ColumnStore, ...]:
    """The columns among stores, in the order of their names."""
    split = ((store, *store.split(":", 2)) for store in sorted(stores) if store.count(":") > 1)
    return tuple(ColumnStore(store, kind, int(number), name) for store, kind, number, name in split)


def column_stores(
    schema: GraphSchema, columns: tuple[Columns, Columns], rows_of: tuple[Callable[[Any], Any], Callable[[Any], Any]]
) -> dict[str, Feature]:
    """The stores of columns of nodes and of edges; ``rows_of`` gives by type where ids have their rows."""
    numbers: tuple[Any, Any] = schema.node_type_index, schema.edge_types.index
    found = {}
    for kind, of_kind, number, rows in zip((NODE_COLUMN, EDGE_COLUMN), columns, numbers, rows_of, strict=True):
        for key, named in of_kind.items():
            for name, values in named.items():
                found[column_store(kind, number(key), name)] = Feature(values, rows(key), dtype=None)
    return found


def check_columns(argument: str, given: Any, counts: Mapping[Any, int] | None = None) -> Columns:
    """Columns by type and name, from ``{name: rows}`` or, of a typed graph, ``{type: {name: rows}}``.

    Args:
        argument: what errors call them.
        given: the columns.
        counts: how many rows each type has; None: that is not known.

    Raises:
        InvalidArgumentError: an unknown type, a name that is no text, no rows of numbers, or another number of them.
    """
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise InvalidArgumentError(f"{argument}: expected a dictionary by name, got {type(given).__name__}")
    is_typed = any(isinstance(value, Mapping) for value in given.values())
    by_type = dict(given) if is_typed else {None: given} if given else {}
    checked: Columns = {}
    for key, named in by_type.items():
        if counts and key not in counts:
            raise InvalidArgumentError(f"{argument}: unknown type {key!r}; expected some of {list(counts)}")
        if not isinstance(named, Mapping) or not all(isinstance(name, str) and name for name in named):
            raise InvalidArgumentError(f"{argument}: expected a dictionary by name for type {key!r}")
        checked[key] = {name: _rows(f"{argument}: {name}", rows) for name, rows in named.items()}
        for name, rows in checked[key].items():
            if counts and len(rows) != counts[key]:
                raise InvalidArgumentError(f"{argument}: {name}: expected {counts[key]} rows, got {len(rows)}")
    return checked


def _rows(name: str, rows: Any) -> torch.Tensor:
    tensor = convert_to_tensor(rows, name=name)
    if not isinstance(tensor, torch.Tensor) or tensor.dim() < 1:
        raise InvalidArgumentError(f"{name}: expected one row for each node or edge, got {type(rows).__name__}")
    return tensor.contiguous()


class NamedColumns:
    """The columns of a data set.

    Attributes:
        node_attrs, edge_attrs: by type and name, what ``init_attrs`` was given; in a partition, the rows that it owns.
        constants: by type and name, what has no rows.
    """

    _num_nodes: dict[Any, int]

    def __init__(self) -> None:
        self.node_attrs: Columns = {}
        self.edge_attrs: Columns = {}
        self.constants: dict[Any, dict[str, Any]] = {}
        self.table_columns: dict[str, dict[Any, Any]] = {}  # see GraphSchema.columns

    def init_attrs(self, node_attrs: Any = None, edge_attrs: Any = None, constants: Any = None) -> None:
        """Sets attributes of any names, which batches carry beside ``x``, ``y`` and ``edge_attr`` as in PyG.

        Args:
            node_attrs: by name ``[num_nodes, ...]``, of any dtype; of a typed graph a dict of such by node type.
            edge_attrs: by name, rows by edge id; of a typed graph a dict of such by edge type.
            constants: what has no rows and comes as it is, by type (None: of the whole graph) and name; None is left
                out, as PyG does.
        """
        self.node_attrs = check_columns("node_attrs", node_attrs, self._num_nodes)
        self.edge_attrs = check_columns("edge_attrs", edge_attrs)
        self.constants = {
            key: {name: value for name, value in named.items() if value is not None}
            for key, named in (constants or {}).items()
        }

    @property
    def _columns(self) -> tuple[Columns, Columns]:
        return self.node_attrs, self.edge_attrs

    def _edge_rows_of(self, edge_type: EdgeType | None) -> Any:
        """Where edges have their rows of columns, for ``Feature``; None: a row is an id."""
        return None

    def _share_columns(self) -> None:
        for columns in self._columns:
            for key, named in columns.items():
                columns[key] = shared_memory.share_all(named)

    def _open_columns(self, columns: Sequence[Mapping[Any, Any]], constants: Mapping[Any, Mapping[str, Any]]) -> None:
        """Maps what ``handles_by_type`` described."""
        opened = [{key: tensors_of(named) for key, named in of_kind.items()} for of_kind in columns]
        self.node_attrs, self.edge_attrs = opened
        self.constants = {key: dict(named) for key, named in constants.items()}


def handles_by_type(columns: Columns) -> dict[Any, dict[str, Any]]:
    """Where columns lie that are shared already, by type and name."""
    return {key: handles_of(named) for key, named in columns.items()}


def last_dimension_counts(name: str) -> bool:
    """Whether PyG counts an attribute of this name along its last dimension, as it does ``edge_index``."""
    return "index" in name or name == "face"
