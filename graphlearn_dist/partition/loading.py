"""The shape in which GraphLearn-for-PyTorch loads partitions: COO lists and feature rows with their ids."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch

from ..core import check_index_tensor
from ..data.topology import row_sizes
from ..errors import InvalidArgumentError, PartitionFormatError
from ..typing import FeaturePartitionData, GraphPartitionData
from ..utils.device import parse_device
from ..utils.paths import to_path
from ..utils.shown import shown
from ..utils.tensor import id2idx
from .layout import (
    CachedRows,
    EdgeKey,
    NodeKey,
    PartitionArrays,
    PartitionLayout,
    array_path,
    load_partition_layout,
)
from .partition_book import GLTPartitionBook, PartitionBook

_PART = re.compile(r"part(\d+)")


def load_partition(
    root_dir: str | Path,
    partition_idx: int,
    graph_caching: bool = False,
    device: torch.device | str = "cpu",
    *,
    verify: bool | None = None,
) -> tuple[int, int, Any, Any, Any, Any, Any]:
    """Loads one partition as COO lists.

    Memory-mapped arrays without this expansion come from ``load_partition_layout(...).open_partition(...)``.

    Args:
        root_dir: the partition directory.
        partition_idx: which partition.
        graph_caching: load the edges of all partitions, whose ``part<i>/graph`` must be on this machine; features
            are still those of one partition.
        device: must be the host.
        verify: see ``load_partition_layout``.

    Returns:
        ``(num_parts, partition_idx, graph, node_feat, edge_feat, node_pb, edge_pb)``: a GraphPartitionData,
        FeaturePartitionData or None, and books; for a heterogeneous graph, dictionaries of them by type (None where
        no type has features). ``edge_pb`` says who owns which edge *feature*; an edge itself lies with its source
        (``by_src``) or target (``by_dst``) node.

    Raises:
        PartitionFormatError: see ``load_partition_layout``.
        InvalidArgumentError: a device other than the host, or one in the place of ``graph_caching``.
    """
    if not isinstance(graph_caching, bool):  # in GLT's earlier releases the device stood there
        raise InvalidArgumentError(f"graph_caching: expected True or False, got {shown(graph_caching)}; name device=")
    _check_device(device)
    layout = load_partition_layout(root_dir, verify=verify)
    arrays = layout.open_partition(partition_idx, verify=verify)
    node_pbs = {key: layout.node_book(key, partition_idx) for key in layout.nodes}
    feat_pbs = {key: layout.node_feature_book(key, partition_idx) for key in layout.nodes}
    edge_pbs = {key: layout.edge_feature_book(key, partition_idx) for key in layout.edges}
    held = [layout.open_partition(p, verify=verify) for p in range(layout.num_parts)] if graph_caching else [arrays]
    graphs = {key: _concatenate([_coo(layout, part, key) for part in held]) for key in layout.edges}
    node_feats = _features(arrays.node_feats, arrays.node_caches, feat_pbs)
    edge_feats = _features(arrays.edge_feats, arrays.edge_caches, edge_pbs)
    if layout.is_hetero:
        parts = (graphs, node_feats or None, edge_feats or None, node_pbs, edge_pbs)
        return layout.num_parts, partition_idx, *parts
    single = (graphs[None], node_feats.get(None), edge_feats.get(None), node_pbs[None], edge_pbs[None])
    return layout.num_parts, partition_idx, *single


def load_graph_partition_data(
    graph_data_dir: str | Path, device: torch.device | str = "cpu"
) -> GraphPartitionData | None:
    """The edges of one type in one partition.

    Args:
        graph_data_dir: ``<root>/part<i>/graph``, with ``/<type>`` behind it in a heterogeneous graph.
        device: must be the host.

    Returns:
        None where there is no such directory.
    """
    _check_device(device)
    path = to_path("graph_data_dir", graph_data_dir)
    if not path.exists():
        return None
    layout, partition_idx = _find_partition(path)
    arrays = layout.open_partition(partition_idx)
    return _coo(layout, arrays, _key_of(layout, path, "graph", "indptr", partition_idx))


def load_feature_partition_data(
    feature_data_dir: str | Path, device: torch.device | str = "cpu"
) -> FeaturePartitionData | None:
    """The feature rows of one type in one partition, memory-mapped, with their ids.

    Args:
        feature_data_dir: ``<root>/part<i>/node_feat`` or ``edge_feat``, with ``/<type>`` in a heterogeneous graph.
        device: must be the host.

    Returns:
        None where there is no such directory.
    """
    _check_device(device)
    path = to_path("feature_data_dir", feature_data_dir)
    if not path.exists():
        return None
    layout, index = _find_partition(path)
    group = "edge_feat" if "edge_feat" in (path.name, path.parent.name) else "node_feat"
    key = _key_of(layout, path, group, "x", index)
    arrays = layout.open_partition(index)
    if group == "node_feat":
        books = {key: layout.node_feature_book(key, index)}
        return _features({key: arrays.node_feats[key]}, arrays.node_caches, books)[key]
    books = {key: layout.edge_feature_book(key, index)}
    return _features({key: arrays.edge_feats[key]}, arrays.edge_caches, books)[key]


def cat_feature_cache(
    partition_idx: int, feat_pdata: FeaturePartitionData, feat_pb: PartitionBook | torch.Tensor
) -> tuple[float, torch.Tensor | None, torch.Tensor, PartitionBook | torch.Tensor]:
    """Puts cached rows of other partitions before a partition's own.

    Args:
        partition_idx: the partition.
        feat_pdata: its rows, with or without a cache.
        feat_pb: who owns which row: a book, or the owner of each id as a tensor.

    Returns:
        ``(cache_ratio, feats, id2index, pb)``: the share of cached rows, all rows ``[num_cached + num_own, ...]``, the
        row of each id (int64, -1 where there is none; of an id that is cached as well the cached row, which comes
        first and so lies on a GPU), and the book as this partition sees it: cached ids are its own.
        Without a cache ``feats`` and ``feat_pb`` are returned as they came.
    """
    feats, ids, cache_feats, cache_ids = feat_pdata
    if ids is None:
        ids = (
            feat_pb.local_ids(partition_idx)
            if isinstance(feat_pb, PartitionBook)
            else (feat_pb == partition_idx).nonzero().view(-1)
        )
    if feats is None or cache_feats is None or cache_ids is None or not len(cache_ids):
        return 0.0, feats, id2idx(ids), feat_pb
    ratio = len(cache_ids) / (len(cache_ids) + len(ids))
    owners = torch.as_tensor(feat_pb).clone()
    owners[cache_ids] = partition_idx
    id2index = id2idx(torch.cat([cache_ids, ids]))
    id2index[cache_ids] = torch.arange(len(cache_ids))
    view = GLTPartitionBook(owners, partition_idx) if isinstance(feat_pb, PartitionBook) else owners
    return ratio, torch.cat([cache_feats, feats]), id2index, view


def _check_device(device: torch.device | str) -> None:
    if parse_device(device, must_be_there=False).type != "cpu":
        raise InvalidArgumentError(f"device: expected cpu (arrays are memory-mapped), got {device}")


def _coo(layout: PartitionLayout, arrays: PartitionArrays, key: EdgeKey) -> GraphPartitionData:
    graph = arrays.graphs[key]
    local = layout.nodes[layout.row_type(key)].book.local_ids(arrays.partition_idx)
    rows = local.repeat_interleave(row_sizes(graph.indptr, graph.indices.numel(), graph.folder))
    name = "indices" if graph.folder is None else str(graph.folder / "indices.npy")
    cols = check_index_tensor(graph.indices, name, num_ids=graph.num_cols, what="node id").long()
    edge_index = (rows, cols) if layout.edge_dir == "out" else (cols, rows)
    return GraphPartitionData(edge_index, graph.edge_ids.long(), graph.weights, graph.times)


def _concatenate(parts: list[GraphPartitionData]) -> GraphPartitionData:
    if len(parts) == 1:
        return parts[0]
    weights = [part.weights for part in parts if part.weights is not None]
    times = [part.times for part in parts if part.times is not None]
    sources, targets = (torch.cat([part.edge_index[end] for part in parts]) for end in (0, 1))
    eids = torch.cat([part.eids for part in parts])
    return GraphPartitionData(
        (sources, targets), eids, torch.cat(weights) if weights else None, torch.cat(times) if times else None
    )


def _features(rows: Any, caches: Any, books: Any) -> dict[Any, FeaturePartitionData]:
    made = {}
    for key, feats in rows.items():
        cache: CachedRows | None = caches.get(key)
        cached = (None, None) if cache is None else (cache.feats, cache.ids)
        made[key] = FeaturePartitionData(feats, books[key].local_ids(), *cached)
    return made


def _find_partition(path: Path) -> tuple[PartitionLayout, int]:
    for folder in (path.absolute(), *path.absolute().parents[:2]):
        match = _PART.fullmatch(folder.parent.name)
        if match is not None:
            return load_partition_layout(folder.parent.parent), int(match[1])
    raise PartitionFormatError(f"{path}: expected DIR/part<i>/<group>, or DIR/part<i>/<group>/<type>")


def _key_of(layout: PartitionLayout, path: Path, group: str, name: str, index: int) -> Any:
    keys: list[NodeKey] | list[EdgeKey] = list(layout.nodes) if group == "node_feat" else list(layout.edges)
    for key in keys:
        file = array_path(group, key, name, index)
        if file in layout.files and layout.root.absolute() / Path(file).parent == path.absolute():
            return key
    raise PartitionFormatError(f"{path}: META.json has no {group} of this type")
