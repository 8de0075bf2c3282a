"""GraphLearn-for-PyTorch's base of books and partitioners, and what saves and loads partitions piece by piece.

Pieces may come in any order and from several processes. The directory is the one that partitioners write
(docs/partition_format.md): ``META.json`` appears when books and graphs are complete; ``verify`` says what is missing.
Nothing is overwritten: a piece that came before is an error, and the piece of a call that raises is forgotten.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ..errors import InvalidArgumentError
from ..typing import EdgeType, FeaturePartitionData, GraphPartitionData, NodeType
from ..utils.shown import shown
from ..utils.values import check_finite, is_whole, label_of
from .assembly import write_edge_ids
from .edge_book import OwnedEdgesBook
from .ingest import by_type, id_vector, rows_tensor, times_tensor, to_tensor, weights_tensor
from .layout import array_path, load_partition_layout
from .loading import cat_feature_cache as cat_feature_cache
from .loading import load_feature_partition_data as load_feature_partition_data
from .loading import load_graph_partition_data as load_graph_partition_data
from .loading import load_partition as load_partition
from .partition_book import (
    GLTPartitionBook,
    PermutedPartitionBook,
    RangePartitionBook,
    TablePartitionBook,
    check_partition_idx,
)
from .partition_book import PartitionBook as PartitionBook
from .partitioner import EDGE_DIRS
from .partitioner import PartitionerBase as PartitionerBase
from .piece_assembler import GROUPS, PieceAssembler, register_files
from .piece_store import PieceStore
from .storage import ArrayFile, check_rows_alike, dtype_name, row_chunks, write_array

_ANY_ID = 1 << 62


def save_meta(
    output_dir: str | os.PathLike[str],
    num_parts: int,
    data_cls: str = "homo",
    node_types: Sequence[NodeType] | None = None,
    edge_types: Sequence[EdgeType] | None = None,
    *,
    edge_assign_strategy: str | None = None,
) -> None:
    """Says what kind of graph the directory holds.

    Args:
        output_dir: the directory; made if missing.
        num_parts: number of partitions.
        data_cls: ``"homo"`` or ``"hetero"``.
        node_types, edge_types: all of them, if heterogeneous.
        edge_assign_strategy: ``"by_src"`` or ``"by_dst"``; None looks at the graphs, and takes ``"by_src"`` where both
            would fit.

    Raises:
        InvalidArgumentError: an argument is wrong, or this was saved before.
    """
    if not is_whole(num_parts) or num_parts < 1:
        raise InvalidArgumentError(f"num_parts: expected an int >= 1, got {shown(num_parts)}")
    if edge_assign_strategy is not None and edge_assign_strategy not in EDGE_DIRS:
        raise InvalidArgumentError(
            f"edge_assign_strategy: expected by_src or by_dst, got {shown(edge_assign_strategy)}"
        )
    match data_cls:
        case "homo":
            keys: tuple[list[Any], list[Any]] = ([None], [None])
        case "hetero" if node_types and edge_types:
            keys = list(node_types), [list(key) for key in edge_types]
        case "hetero":
            raise InvalidArgumentError(f"node_types, edge_types: expected the types, got {node_types}, {edge_types}")
        case _:
            raise InvalidArgumentError(f"data_cls: expected 'homo' or 'hetero', got {shown(data_cls)}")
    edge_dir = None if edge_assign_strategy is None else EDGE_DIRS[edge_assign_strategy]
    values = {"num_parts": num_parts, "node_types": keys[0], "edge_types": keys[1], "edge_dir": edge_dir}
    _save(output_dir, "meta", values=values)


def save_node_pb(
    output_dir: str | os.PathLike[str], node_pb: PartitionBook | torch.Tensor, ntype: NodeType | None = None
) -> None:
    """Says who owns the nodes of a type: a book, or the owner of each id (integers ``[num_nodes]``)."""
    _save(output_dir, "node_pb", ntype, **_book_parts("node_pb", node_pb))


def save_node_feat_pb(
    output_dir: str | os.PathLike[str], node_feat_pb: PartitionBook | torch.Tensor, ntype: NodeType | None = None
) -> None:
    """Says who keeps which node's features, by node id; without it, whoever has the node. Call it before they come."""
    _save(output_dir, "node_feat_pb", ntype, **_book_parts("node_feat_pb", node_feat_pb))


def save_edge_pb(
    output_dir: str | os.PathLike[str], edge_pb: PartitionBook | torch.Tensor, etype: EdgeType | None = None
) -> None:
    """Says who owns which edge *feature*, by edge id; without it, whoever has the edge.

    An edge itself lies with its source node, or its target node, whatever this book says.
    """
    _save(output_dir, "edge_pb", etype, **_book_parts("edge_pb", edge_pb))


def save_graph_partition(
    output_dir: str | os.PathLike[str],
    partition_idx: int,
    graph_partition: GraphPartitionData,
    etype: EdgeType | None = None,
) -> None:
    """Saves the edges of one type in one partition; every partition needs this call, with no edges too.

    Args:
        output_dir: the directory.
        partition_idx: the partition.
        graph_partition: all its edges, in any order: the out-edges of its nodes, or in each partition the in-edges.
        etype: the edge type; None if homogeneous.

    Raises:
        InvalidArgumentError: it was saved before, edge ids are not distinct, or the edges are neither all of the
            partition's sources nor all of its targets.
    """
    name = label_of("graph_partition", etype)
    (sources, targets), eids, weights, times = GraphPartitionData(*graph_partition)
    tensors: dict[str, torch.Tensor | None] = {
        "sources": id_vector(f"{name}.edge_index[0]", sources, _ANY_ID, "nodes"),
        "targets": id_vector(f"{name}.edge_index[1]", targets, _ANY_ID, "nodes"),
        "edge_ids": id_vector(f"{name}.eids", eids, _ANY_ID, "edges"),
        "weights": weights_tensor(f"{name}.weights", weights, len(eids)),
        "times": times_tensor(f"{name}.times", times, len(eids)),
    }
    lengths = {key: len(tensor) for key, tensor in tensors.items() if tensor is not None}
    if len(set(lengths.values())) > 1:
        raise InvalidArgumentError(f"{name}: expected one length, got {lengths}")
    _save(output_dir, "graph", etype, _index(partition_idx), tensors=tensors)


def save_graph_cache(
    output_dir: str | os.PathLike[str],
    graph_partition_list: Sequence[GraphPartitionData],
    etype: EdgeType | None = None,
    with_edge_feat: bool = False,
) -> None:
    """Saves the edges of one type in all partitions.

    A directory keeps no second copy of the graph: ``load_partition(..., graph_caching=True)`` puts the partitions
    together. ``with_edge_feat`` changes nothing: edge ids are always kept.
    """
    for partition_idx, graph_partition in enumerate(graph_partition_list):
        save_graph_partition(output_dir, partition_idx, graph_partition, etype)


def save_feature_partition(
    output_dir: str | os.PathLike[str],
    partition_idx: int,
    feature_partition: FeaturePartitionData,
    group: str = "node_feat",
    graph_type: NodeType | EdgeType | None = None,
) -> None:
    """Saves all rows of one type in one partition, and its cache, if there is one.

    Args:
        output_dir: the directory.
        partition_idx: the partition.
        feature_partition: its rows in any order, with their ids (None: in the order of local rows).
        group: ``"node_feat"``, ``"edge_feat"`` or ``"node_label"``.
        graph_type: the node or edge type; None if homogeneous.

    Raises:
        InvalidArgumentError: rows are missing or double, were saved before, or other partitions have some of another
            dtype or shape.
        UnknownIdError: an id belongs to another partition.
    """
    _save_rows(output_dir, partition_idx, feature_partition, group, graph_type, is_whole=True)
    if feature_partition.cache_ids is not None:
        save_feature_partition_cache(output_dir, partition_idx, feature_partition, group, graph_type)


def save_feature_partition_chunk(
    output_dir: str | os.PathLike[str],
    partition_idx: int,
    feature_partition: FeaturePartitionData,
    group: str = "node_feat",
    graph_type: NodeType | EdgeType | None = None,
) -> None:
    """Saves some rows of a partition; the last of them writes the file. See ``save_feature_partition``."""
    _save_rows(output_dir, partition_idx, feature_partition, group, graph_type, is_whole=False)


def save_feature_partition_cache(
    output_dir: str | os.PathLike[str],
    partition_idx: int,
    feature_partition: FeaturePartitionData,
    group: str = "node_feat",
    graph_type: NodeType | EdgeType | None = None,
) -> None:
    """Saves copies of other partitions' rows, ``cache_feats`` of ``cache_ids``; rows of its own are left out."""
    name = _check_group(group, graph_type)
    if group == "node_label":
        raise InvalidArgumentError("group: expected 'node_feat' or 'edge_feat', got 'node_label': labels have no cache")
    ids, feats = feature_partition.cache_ids, feature_partition.cache_feats
    checked = id_vector(f"{name}.cache_ids", ids, _ANY_ID, "rows")
    tensors = {"ids": checked, "feats": rows_tensor(f"{name}.cache_feats", feats, len(checked), "cache id")}
    _save(output_dir, "cache", graph_type, _index(partition_idx), values={"group": group}, tensors=tensors)


def build_partition_feature(
    root_dir: str | os.PathLike[str],
    partition_idx: int,
    chunk_size: int = 10000,
    node_feat: Any = None,
    node_feat_dtype: torch.dtype | None = None,
    edge_feat: Any = None,
    edge_feat_dtype: torch.dtype | None = None,
    *,
    allow_nonfinite: bool = False,
) -> None:
    """Adds features to one partition of a directory that was written without: ``partition(with_feature=False)``.

    Args:
        root_dir: the directory.
        partition_idx: the partition.
        chunk_size: rows in memory at a time.
        node_feat: ``[num_nodes, ...]`` of the whole graph (by node type), perhaps memory-mapped.
        node_feat_dtype: what features are stored as; None keeps their dtype, as ``Dataset`` does.
        edge_feat: ``[num_edges, ...]``, by edge id (by edge type).
        edge_feat_dtype: likewise.
        allow_nonfinite: take numbers that are infinite or none as they are, without a look at them.

    Raises:
        PartitionFormatError: there is no complete directory.
        InvalidArgumentError: an argument is wrong, the partition has these features, or other partitions have some of
            another dtype or shape.
    """
    layout = load_partition_layout(root_dir)
    check_partition_idx(partition_idx, layout.num_parts)
    node_books: dict[Any, PartitionBook] = {key: info.feature_book for key, info in layout.nodes.items()}
    edge_books: dict[Any, PartitionBook] = {key: info.feature_book for key, info in layout.edges.items()}
    jobs = [
        ("node_feat", node_feat, node_books, node_feat_dtype),
        ("edge_feat", edge_feat, edge_books, edge_feat_dtype),
    ]
    written: list[ArrayFile] = []
    for group, given, books, dtype in jobs:
        for key, data in by_type(group, given, books).items():
            path = array_path(group, key, GROUPS[group], partition_idx)
            if path in layout.files:
                raise InvalidArgumentError(f"{label_of(group, key)}: {layout.root / path} is there already")
            rows = rows_tensor(label_of(group, key), data, books[key].num_ids, "id")
            if not allow_nonfinite:
                check_finite(label_of(group, key), rows)
            ids, stored = books[key].local_ids(partition_idx), dtype or rows.dtype
            label, rows_are = f"{label_of(group, key)}, {group}_dtype", (dtype_name(stored), tuple(rows.shape[1:]))
            check_rows_alike(layout.files, path, layout.num_parts, *rows_are, name=label)
            chunks = row_chunks(rows, ids, stored, chunk_size)
            written.append(write_array(layout.root, path, chunks, stored, (len(ids), *rows.shape[1:])))
            if isinstance(book := books[key], OwnedEdgesBook):
                written.append(write_edge_ids(layout.root, key, partition_idx, book))
    register_files(layout.root, written)


def _save_rows(
    output_dir: str | os.PathLike[str],
    partition_idx: int,
    feature_partition: FeaturePartitionData,
    group: str,
    key: Any,
    *,
    is_whole: bool,
) -> None:
    name = _check_group(group, key)
    feats, ids = feature_partition.feats, feature_partition.ids
    if feats is None:
        return
    rows = to_tensor(f"{name}.feats", feats)
    if ids is None and not is_whole:
        raise InvalidArgumentError(f"{name}.ids: expected the ids of a chunk's rows, got None")
    checked = None if ids is None else id_vector(f"{name}.ids", ids, _ANY_ID, "rows")
    if checked is not None:
        rows = rows_tensor(f"{name}.feats", rows, len(checked), "id")
    values = {"group": group, "is_whole": is_whole}
    _save(output_dir, "rows", key, _index(partition_idx), values=values, tensors={"feats": rows, "ids": checked})


def _save(
    output_dir: str | os.PathLike[str],
    kind: str,
    key: Any = None,
    partition_idx: int = -1,
    *,
    values: Mapping[str, Any] | None = None,
    tensors: Mapping[str, torch.Tensor | None] | None = None,
) -> None:
    with PieceStore(output_dir) as store:
        piece = store.add(kind, key, partition_idx, values=values, tensors=tensors)
        try:
            PieceAssembler(store).run()
        except BaseException:
            shutil.rmtree(piece.path, ignore_errors=True)  # so that it can be given again, put right
            raise


def _book_parts(name: str, book: PartitionBook | torch.Tensor) -> dict[str, Any]:
    match book:
        case GLTPartitionBook() | torch.Tensor():
            return {"tensors": {"owners": book.as_subclass(torch.Tensor).contiguous()}}
        case RangePartitionBook() | PermutedPartitionBook():
            return {"values": {"book": book.to_dict()}}
        case TablePartitionBook():
            return {"values": {"book": book.to_dict()}, "tensors": {"owners": book.owners, "rows": book.rows}}
        case PartitionBook():
            return {"tensors": {"owners": book[torch.arange(book.num_ids)]}}
        case _:
            raise InvalidArgumentError(f"{name}: expected a PartitionBook or owners, got {type(book).__name__}")


def _check_group(group: str, key: Any) -> str:
    if group not in GROUPS:
        raise InvalidArgumentError(f"group: expected one of {sorted(GROUPS)}, got {shown(group)}")
    return label_of("feature_partition", key)


def _index(partition_idx: int) -> int:
    if not isinstance(partition_idx, int) or partition_idx < 0:
        raise InvalidArgumentError(f"partition_idx: expected an int >= 0, got {shown(partition_idx)}")
    return partition_idx
