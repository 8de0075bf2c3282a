"""Checks of what a partitioner is given. Homogeneous input becomes dictionaries with the one key None."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from ..errors import InvalidArgumentError, UnknownIdError
from ..utils.shown import shown
from ..utils.tensor import from_array, host_tensor
from ..utils.values import check_disjoint, check_distinct, check_weights, label_of
from .layout import EdgeKey, NodeKey

_INDEX_DTYPES = (torch.int32, torch.int64)


@dataclass(frozen=True)
class EdgeInput:
    """Edges of one type.

    Attributes:
        row, col: int32 or int64 ``[num_edges]``: source and target ids, checked.
        edge_ids: int32 or int64 ``[num_edges]``, distinct; None where an edge's id is its position.
        weights: float ``[num_edges]``, or None.
        feat: ``[num_edge_ids, ...]``, by edge id, or None.
        num_edge_ids: ids are below this.
        times: int64 or int32 ``[num_edges]``, or None.
    """

    row: torch.Tensor
    col: torch.Tensor
    edge_ids: torch.Tensor | None
    weights: torch.Tensor | None
    feat: torch.Tensor | None
    num_edge_ids: int
    times: torch.Tensor | None = None


@dataclass(frozen=True)
class NodeInput:
    """Nodes of one type: ``count`` ids; ``feat`` and ``label`` ``[count, ...]`` or None; ``split`` ids by name."""

    count: int
    feat: torch.Tensor | None
    label: torch.Tensor | None
    split: Mapping[str, torch.Tensor]


def to_tensor(name: str, data: Any) -> torch.Tensor:
    """A host tensor over a tensor or an array (memory-mapped ones included), without a copy."""
    if isinstance(data, np.ndarray):
        return from_array(data, name)
    if not isinstance(data, torch.Tensor):
        raise InvalidArgumentError(f"{name}: expected a torch.Tensor or a numpy.ndarray, got {type(data).__name__}")
    return host_tensor(data, name)


def by_type(name: str, data: Any, keys: Collection[Any]) -> dict[Any, Any]:
    """``data`` as a dictionary by type: itself, or ``{None: data}``; types must be among ``keys``."""
    if data is None:
        return {}
    if None in keys:
        if isinstance(data, dict):
            raise InvalidArgumentError(f"{name}: got a dictionary, but num_nodes says that the graph is homogeneous")
        return {None: data}
    if not isinstance(data, dict):
        raise InvalidArgumentError(f"{name}: expected a dictionary by type, got {type(data).__name__}")
    for key in data:
        if key not in keys:
            raise InvalidArgumentError(f"{name}: unknown type {key!r}; the types are {sorted(keys)}")
    return data


def id_vector(name: str, data: Any, limit: int, what: str) -> torch.Tensor:
    """A vector of ids in ``[0, limit)``; UnknownIdError names the first that is not, with its position."""
    ids = to_tensor(name, data)
    if ids.dtype not in _INDEX_DTYPES or ids.dim() != 1:
        raise InvalidArgumentError(f"{name}: expected int32 or int64 [n], got {ids.dtype} {list(ids.shape)}")
    if ids.numel():
        least, greatest = ids.aminmax()
        if int(least) < 0 or int(greatest) >= limit:
            position = int(((ids < 0) | (ids >= limit)).nonzero()[0, 0])
            raise UnknownIdError(f"{name}[{position}]={int(ids[position])}: expected 0 <= id < {limit} ({what})")
    return ids.contiguous()


def rows_tensor(name: str, data: Any, num_rows: int, what: str) -> torch.Tensor:
    """A tensor with one row for each of ``num_rows`` things."""
    rows = to_tensor(name, data)
    if rows.dim() < 1 or len(rows) != num_rows:
        raise InvalidArgumentError(f"{name}: expected {num_rows} rows, one for each {what}, got {list(rows.shape)}")
    return rows


def check_node_counts(num_nodes: Any) -> dict[NodeKey, int]:
    """The numbers of nodes by type; the one key None if homogeneous."""
    counts: dict[NodeKey, int] = num_nodes if isinstance(num_nodes, dict) else {None: num_nodes}
    for key, count in counts.items():
        if key is not None and (not isinstance(key, str) or not key):
            raise InvalidArgumentError(f"num_nodes: expected texts as names of node types, got {shown(key)}")
        if not isinstance(count, int) or isinstance(count, bool) or count < 0:
            raise InvalidArgumentError(f"{label_of('num_nodes', key)}: expected an int >= 0, got {shown(count)}")
    return counts


def node_inputs(num_nodes: Any, feats: Any, labels: Any, splits: Any) -> dict[NodeKey, NodeInput]:
    """Checks everything about nodes."""
    counts = check_node_counts(num_nodes)
    given = {
        "node_feat": by_type("node_feat", feats, counts),
        "node_labels": by_type("node_labels", labels, counts),
        "node_split": by_type("node_split", _splits_by_type(splits), counts),
    }

    def rows(name: str, key: NodeKey) -> torch.Tensor | None:
        data = given[name].get(key)
        return None if data is None else rows_tensor(label_of(name, key), data, counts[key], "node")

    return {
        key: NodeInput(count, rows("node_feat", key), rows("node_labels", key), _split(given, key, count))
        for key, count in counts.items()
    }


def _splits_by_type(splits: Any) -> Any:
    """Three dictionaries by type, as ``Dataset.init_node_split`` takes them, as one by type; the rest as it is."""
    if not isinstance(splits, (tuple, list)) or not any(isinstance(part, Mapping) for part in splits):
        return splits
    if not all(part is None or isinstance(part, Mapping) for part in splits):
        kinds = [type(part).__name__ for part in splits]
        raise InvalidArgumentError(f"node_split: expected each part to be a dictionary by node type, got {kinds}")
    parts: list[Mapping[Any, Any]] = [part or {} for part in splits]
    return {key: tuple(part.get(key) for part in parts) for part in parts for key in part}


def _split(given: Mapping[str, dict[Any, Any]], key: NodeKey, count: int) -> dict[str, torch.Tensor]:
    split = given["node_split"].get(key)
    if split is None:
        return {}
    name = label_of("node_split", key)
    if not isinstance(split, (tuple, list)) or len(split) != 3:
        raise InvalidArgumentError(f"{name}: expected (train, val, test), got {type(split).__name__}")
    named = zip(("train", "val", "test"), split, strict=True)
    parts = {part: id_vector(f"{name}.{part}", ids, count, "nodes").long() for part, ids in named if ids is not None}
    check_disjoint(name, parts)
    return parts


def check_edge_keys(counts: Mapping[NodeKey, int], edge_index: Any) -> Collection[Any]:
    """The edge types that ``edge_index`` is given for; (None,) if homogeneous."""
    if None in counts:
        if edge_index is None:
            raise InvalidArgumentError("edge_index: expected [2, num_edges], got None")
        return (None,)
    if not isinstance(edge_index, dict):
        raise InvalidArgumentError(f"edge_index: expected a dictionary by edge type, got {type(edge_index).__name__}")
    for key in edge_index:
        is_triple = isinstance(key, tuple) and len(key) == 3 and isinstance(key[1], str)
        known = key is None or (is_triple and key[0] in counts and key[2] in counts)
        if not known:
            raise InvalidArgumentError(
                f"edge_index: expected keys (source type, relation, target type) with types of num_nodes, got {key!r}"
            )
    return list(edge_index)


def edge_inputs(
    counts: Mapping[NodeKey, int], edge_index: Any, edge_ids: Any, weights: Any, feats: Any, times: Any
) -> dict[EdgeKey, EdgeInput]:
    """Checks everything about edges."""
    keys = check_edge_keys(counts, edge_index)
    indices = by_type("edge_index", edge_index, keys)
    ids, weights = by_type("edge_ids", edge_ids, keys), by_type("edge_weights", weights, keys)
    feats, times = by_type("edge_feat", feats, keys), by_type("edge_times", times, keys)
    return {
        key: _edge_input(key, counts, pair, ids.get(key), weights.get(key), feats.get(key), times.get(key))
        for key, pair in indices.items()
    }


def _edge_input(
    key: EdgeKey, counts: Mapping[NodeKey, int], pair: Any, ids: Any, weights: Any, feat: Any, times: Any
) -> EdgeInput:
    name = label_of("edge_index", key)
    pair = to_tensor(name, pair) if isinstance(pair, torch.Tensor) else pair
    if not isinstance(pair, (torch.Tensor, np.ndarray, tuple, list)) or getattr(pair, "ndim", 2) == 0:
        raise InvalidArgumentError(
            f"{name}: expected [2, num_edges], a torch.Tensor or a numpy.ndarray, got {type(pair).__name__}"
        )
    if len(pair) != 2:
        raise InvalidArgumentError(f"{name}: expected [2, num_edges], got a first extent of {len(pair)}")
    source, target = (None, None) if key is None else (key[0], key[2])
    row = id_vector(f"{name}[0]", pair[0], counts[source], label_of("nodes", source))
    col = id_vector(f"{name}[1]", pair[1], counts[target], label_of("nodes", target))
    if len(row) != len(col):
        raise InvalidArgumentError(f"{name}: expected as many sources as targets, got {len(row)} and {len(col)}")
    num_ids, checked = len(row), None
    feat = None if feat is None else to_tensor(label_of("edge_feat", key), feat)
    if ids is not None:
        limit = 1 << 62 if feat is None else len(feat)
        checked = id_vector(label_of("edge_ids", key), ids, limit, "rows of edge_feat")
        rows_tensor(label_of("edge_ids", key), checked, len(row), "edge")
        check_distinct(label_of("edge_ids", key), checked)
        num_ids = len(feat) if feat is not None else int(checked.max()) + 1 if len(checked) else 0
    if feat is not None:
        feat = rows_tensor(label_of("edge_feat", key), feat, num_ids, "edge")
    weights = weights_tensor(label_of("edge_weights", key), weights, len(row))
    times = times_tensor(label_of("edge_times", key), times, len(row))
    return EdgeInput(row, col, checked, weights, feat, num_ids, times)


def _per_edge(name: str, values: Any, num_edges: int) -> torch.Tensor | None:
    if values is None:
        return None
    rows = rows_tensor(name, values, num_edges, "edge")
    if rows.dim() != 1:
        raise InvalidArgumentError(f"{name}: expected [num_edges], got {list(rows.shape)}")
    return rows.contiguous()


def weights_tensor(name: str, values: Any, count: int) -> torch.Tensor | None:
    """Weights ``[count]``, finite and at least 0: floats keep their dtype, integers become float32; None stays None."""
    weights = _per_edge(name, values, count)
    if weights is None:
        return None
    check_weights(name, weights)
    return weights if weights.is_floating_point() else weights.float()


def times_tensor(name: str, values: Any, count: int) -> torch.Tensor | None:
    """Times int64 or int32 ``[count]``; None stays None."""
    times = _per_edge(name, values, count)
    if times is not None and times.dtype not in _INDEX_DTYPES:
        raise InvalidArgumentError(f"{name}: expected int64 or int32, got {times.dtype}")
    return times


def node_time_inputs(counts: Mapping[NodeKey, int], node_times: Any) -> dict[NodeKey, torch.Tensor]:
    """Checks the times of nodes; int64 ``[count]`` by type."""
    given = by_type("node_times", node_times, counts)
    times = {key: times_tensor(label_of("node_times", key), values, counts[key]) for key, values in given.items()}
    return {key: values.long() for key, values in times.items() if values is not None}


def with_node_times(
    edges: Mapping[EdgeKey, EdgeInput], times: Mapping[NodeKey, torch.Tensor], edge_dir: str
) -> dict[EdgeKey, EdgeInput]:
    """Edges whose sampled end (the target where ``edge_dir`` is "out") has a time get that time."""
    timed = dict(edges)
    for key, edge in edges.items():
        neighbor_type = None if key is None else key[2 if edge_dir == "out" else 0]
        of_nodes = times.get(neighbor_type)
        if of_nodes is None:
            continue
        if edge.times is not None:
            raise InvalidArgumentError(
                f"{label_of('edge_times', key)}: expected None beside node_times of its neighbors"
            )
        timed[key] = replace(edge, times=of_nodes[(edge.col if edge_dir == "out" else edge.row).long()])
    return timed
