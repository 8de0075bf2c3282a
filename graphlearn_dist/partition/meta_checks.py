"""What META.json may say: each value is looked at before anything is made of it, whatever damaged the file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from ..typing import EdgeType, NodeType

_MAX_NUMBER = (1 << 63) - 1
INDEX = ("int32", "int64")
# Arrays of one dimension, by name, and the dtypes that they may have.
_VECTORS: dict[str, tuple[str, ...]] = {
    "indptr": ("int64",),
    "indices": INDEX,
    "edge_ids": INDEX,
    "ids": INDEX,
    "weights": ("float16", "bfloat16", "float32", "float64"),
    "times": ("int64",),
    "t": ("int64",),
    "cache_ids": ("int64",),
}


def other_vector(name: str, num_rows: int, dtype: str, shape: Sequence[int]) -> str | None:
    """What an array of that name should have been; None where it is that, or may be anything."""
    if name not in _VECTORS or (dtype in _VECTORS[name] and len(shape) == 1):
        return None
    return f"{' or '.join(_VECTORS[name])} [{num_rows}]"


def whole_number(value: Any, name: str, *, low: int = 0, high: int = _MAX_NUMBER) -> int:
    """The value; ValueError unless it is an integer in ``[low, high]``."""
    if type(value) is not int or not low <= value <= high:
        raise ValueError(f"{name}: expected an integer from {low} to {high}, found {value!r:.100}")
    return value


def whole_numbers(values: Any, name: str, count: int) -> tuple[int, ...]:
    """The values; ValueError unless they are a list of that many integers of at least 0."""
    if not isinstance(values, list) or len(values) != count:
        raise ValueError(f"{name}: expected a list of {count} integers, found {values!r:.100}")
    return tuple(whole_number(value, f"{name}[{place}]") for place, value in enumerate(values))


def node_type(value: Any) -> NodeType | None:
    """The name of a node type; ValueError where it is none."""
    if value is not None and not isinstance(value, str):
        raise ValueError(f"type of nodes: expected text or null, found {value!r:.100}")
    return value


def edge_type(value: Any) -> EdgeType | None:
    """The name of an edge type; ValueError where it is none."""
    if value is None:
        return None
    if not isinstance(value, list) or len(value) != 3 or not all(isinstance(part, str) for part in value):
        raise ValueError(f"type of edges: expected three texts or null, found {value!r:.100}")
    source, relation, target = value
    return source, relation, target


def check_types(data_cls: Any, edge_dir: Any, nodes: Sequence[Any], edges: Sequence[Any]) -> None:
    """ValueError unless there are node and edge types, each once, that fit together and the kind of the data set."""
    if data_cls not in ("homo", "hetero") or edge_dir not in ("in", "out"):
        raise ValueError(f"data_cls {data_cls!r:.100}, edge_dir {edge_dir!r:.100}")
    if not nodes or not edges or len(set(nodes)) < len(nodes) or len(set(edges)) < len(edges):
        raise ValueError(f"types: expected some of nodes and of edges, each once, found {nodes!r:.200}, {edges!r:.200}")
    ends = {end for key in edges for end in ((None,) if key is None else key[::2])}
    if (data_cls == "homo") != (set(nodes) == {None}) or (None in nodes and len(nodes) > 1) or not ends <= set(nodes):
        raise ValueError(f"types: {edges!r:.200} are no edges between {nodes!r:.200} of a data set {data_cls!r}")


def check_book_entry(description: Any, name: str) -> None:
    """ValueError unless the numbers of a book's description are numbers."""
    if not isinstance(description, Mapping):
        raise ValueError(f"{name}: expected the description of a book, found {description!r:.100}")
    match description.get("kind"):
        case "range":
            bounds = description["bounds"]
            whole_numbers(bounds, f"{name}: bounds", len(bounds) if isinstance(bounds, list) else 1)
        case "edges":
            whole_number(description["num_ids"], f"{name}: num_ids")
            sizes = description["sizes"]
            whole_numbers(sizes, f"{name}: sizes", len(sizes) if isinstance(sizes, list) else 1)
        case "zones":
            for field in ("num_partitions", "num_groups"):
                whole_number(description[field], f"{name}: {field}", low=1)
            for field in ("bounds", "owners"):
                values = description[field]
                whole_numbers(values, f"{name}: {field}", len(values) if isinstance(values, list) else 1)
        case "permuted" | "table":
            for field in ("num_ids", "num_partitions"):
                whole_number(description[field], f"{name}: {field}")


def check_same_arrays(paths: Iterable[str], num_parts: int) -> None:
    """ValueError unless all partitions have an array of a graph that one has; features may come later."""
    holders: dict[str, set[int]] = {}
    for path in paths:
        part, _, name = path.partition("/")
        if part.startswith("part") and part[4:].isdigit() and name.startswith("graph/"):
            holders.setdefault(name, set()).add(int(part[4:]))
    for name, parts in holders.items():
        if parts != set(range(num_parts)):
            raise ValueError(f"files: expected {name} for each of {num_parts} partitions, found {sorted(parts)!r:.100}")


def check_ids(ids: torch.Tensor, num_ids: int, name: str) -> None:
    """ValueError unless ids are int64 ``[n]`` and lie in ``[0, num_ids)``. Reads them all."""
    if ids.dtype != torch.int64 or ids.dim() != 1:
        raise ValueError(f"{name}: expected int64 [n], found {ids.dtype} {list(ids.shape)}")
    if ids.numel() > 0:
        low, high = (int(bound) for bound in torch.aminmax(ids))
        if low < 0 or high >= num_ids:
            raise ValueError(f"{name}: expected ids in [0, {num_ids}), found {low if low < 0 else high}")


def table_columns(tables: Any, node_types: Iterable[Any], edge_types: Iterable[Any]) -> dict[str, dict[Any, Any]]:
    """What META.json says of the tables that a directory was built from: of ``nodes`` and ``edges``, by type.

    Empty where it was not; ValueError where it is not that.
    """
    if tables is None:
        return {}
    if not isinstance(tables, dict):
        raise ValueError(f"tables: expected an object, found {tables!r:.100}")
    found: dict[str, dict[Any, Any]] = {}
    for group, name_of, known in (("nodes", node_type, set(node_types)), ("edges", edge_type, set(edge_types))):
        entries = {name_of(entry["type"]): dict(entry) for entry in tables[group]}
        if unknown := set(entries) - known:
            raise ValueError(f"tables: {group}: unknown types {sorted(unknown, key=str)!r:.100}")
        found[group] = entries
    return found
