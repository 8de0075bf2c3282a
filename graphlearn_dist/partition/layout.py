"""What a partition directory holds, and how it is opened. docs/partition_format.md is the specification."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import quote, unquote

import torch

from ..data.zone_order import ZoneOrder
from ..errors import InvalidArgumentError, PartitionFormatError
from ..typing import EdgeType, NodeType, as_str
from ..utils.paths import to_path
from ..utils.values import check_disjoint, label_of
from . import meta_checks
from .edge_book import EdgeBook, OwnedEdgesBook, edge_book_from_dict
from .partition_book import (
    PartitionBook,
    PermutedPartitionBook,
    RangePartitionBook,
    TablePartitionBook,
    ZonePartitionBook,
    check_partition_idx,
    from_dict,
)
from .storage import META_FILE as META_FILE
from .storage import ArrayFile, check_size, dtype_name, file_of_other_rows, open_array, open_constants

FORMAT_NAME = "graphlearn-dist-partition"
FORMAT_VERSION = 2
READABLE_VERSIONS = (1, 2)
VERIFY_UP_TO_BYTES = 1 << 30

# None is the one unnamed type of a homogeneous graph.
NodeKey: TypeAlias = "NodeType | None"
EdgeKey: TypeAlias = "EdgeType | None"
AnyBook: TypeAlias = "RangePartitionBook | PermutedPartitionBook | TablePartitionBook | ZonePartitionBook"


def array_path(group: str, key: NodeKey | EdgeKey, name: str, partition_idx: int | None = None) -> str:
    """Where an array lies: ``part<i>/<group>/<type>/<name>.npy``; no ``<type>`` if homogeneous, no ``part<i>`` if
    shared by all partitions. Type names are percent-encoded."""
    parts = [] if partition_idx is None else [f"part{partition_idx}"]
    parts.append(group)
    if key is not None:
        parts.append(type_folder(key))
    return "/".join([*parts, f"{name}.npy"])


def table_paths(description: Mapping[str, Any], group: str, key: NodeKey | EdgeKey) -> list[str]:
    """Where the ``tables`` of a book lie; ``group`` is ``node_book``, ``node_feat_book`` or ``edge_book``. The places
    of zones are those of the data set's order."""
    match description["kind"]:
        case "table":
            return [array_path(group, key, "owners"), array_path(group, key, "rows")]
        case "zones":
            return [array_path("order", key, "place")]
    return []


def type_folder(key: NodeType | EdgeType) -> str:
    """The name of a type as that of a folder or file, percent-encoded."""
    return quote(as_str(key), safe="").replace(".", "%2E")


@dataclass(frozen=True)
class NodeInfo:
    """Nodes of one type: how many, who owns which, and the ids of the given splits (``train``, ``val``, ``test``).

    ``feature_book`` says who owns which node's features; it is ``book`` unless another was saved. ``earliest`` is the
    node of the least time (of several, the one of the least id); None where nodes have none. ``order`` is that of the
    data set's nodes, where it has one.
    """

    count: int
    book: AnyBook
    split: Mapping[str, torch.Tensor]
    feature_book: AnyBook
    earliest: int | None = None
    order: ZoneOrder | None = None


@dataclass(frozen=True)
class EdgeInfo:
    """Edges of one type: how many, how many in each partition, and who owns which edge feature: by edge id, or (an
    ``OwnedEdgesBook``) whoever has the edge."""

    count: int
    part_counts: tuple[int, ...]
    feature_book: EdgeBook


@dataclass(frozen=True)
class GraphArrays:
    """The rows that one partition has of one edge type.

    Rows are the partition's own nodes, in the order of its local rows: sources where ``edge_dir`` is "out", targets
    where it is "in". A row is sorted by (neighbor id, edge id), with times by (time, neighbor id, edge id).

    Attributes:
        indptr: int64 ``[num_rows + 1]``.
        indices: int32 or int64 ``[num_edges]``, global ids of the other endpoint.
        edge_ids: int32 or int64 ``[num_edges]``, global.
        weights: float ``[num_edges]``, or None.
        num_cols: number of nodes of the other endpoint's type, over all partitions.
        times: int64 ``[num_edges]``, or None.
        folder: where the files lie.
    """

    indptr: torch.Tensor
    indices: torch.Tensor
    edge_ids: torch.Tensor
    weights: torch.Tensor | None
    num_cols: int
    times: torch.Tensor | None = None
    folder: Path | None = None

    def degrees(self, rows: slice) -> torch.Tensor:
        """How many edges rows have, int64; PartitionFormatError where offsets are not in order within the edges."""
        offsets = self.indptr[rows.start : rows.stop + 1]
        degrees, is_inside = offsets.diff(), int(offsets[0]) >= 0 and int(offsets[-1]) <= len(self.indices)
        if not is_inside or bool((degrees < 0).any()):
            raise PartitionFormatError(
                f"{self.folder}: expected offsets of rows {rows.start} to {rows.stop} in order and at most "
                f"{len(self.indices)}"
            )
        return degrees

    def neighbors(self, rows: slice) -> torch.Tensor:
        """Those of rows whose ``degrees`` were asked for, int64; PartitionFormatError where one is no node."""
        found = self.indices[int(self.indptr[rows.start]) : int(self.indptr[rows.stop])].long()
        if len(found) and not 0 <= int(found.min()) <= int(found.max()) < self.num_cols:
            raise PartitionFormatError(
                f"{self.folder}: expected neighbors from 0 to {self.num_cols - 1}, found {int(found.min())} to "
                f"{int(found.max())}"
            )
        return found


@dataclass(frozen=True)
class CachedRows:
    """Copies of feature rows that other partitions own: ``feats`` ``[n, ...]`` of the ids ``ids`` int64 ``[n]``."""

    ids: torch.Tensor
    feats: torch.Tensor


@dataclass(frozen=True)
class PartitionArrays:
    """All arrays of one partition, memory-mapped copy-on-write.

    ``node_labels`` and ``node_times`` (int64) ``[nodes of this partition, ...]`` in local-row order; ``node_feats`` and
    ``edge_feats`` likewise, by the types' feature books; ``node_caches`` and ``edge_caches`` where other partitions'
    rows were copied; ``node_attrs`` and ``edge_attrs`` by name, in the rows of node books and of edges' feature books.
    Types without the array are missing.
    """

    partition_idx: int
    graphs: Mapping[EdgeKey, GraphArrays]
    node_feats: Mapping[NodeKey, torch.Tensor]
    node_labels: Mapping[NodeKey, torch.Tensor]
    edge_feats: Mapping[EdgeKey, torch.Tensor]
    node_caches: Mapping[NodeKey, CachedRows] = field(default_factory=dict)
    edge_caches: Mapping[EdgeKey, CachedRows] = field(default_factory=dict)
    node_times: Mapping[NodeKey, torch.Tensor] = field(default_factory=dict)
    node_attrs: Mapping[NodeKey, Mapping[str, torch.Tensor]] = field(default_factory=dict)
    edge_attrs: Mapping[EdgeKey, Mapping[str, torch.Tensor]] = field(default_factory=dict)


@dataclass(frozen=True)
class PartitionLayout:
    """A partition directory, opened: books and splits are there, arrays come with ``open_partition``.

    Attributes:
        root: the directory.
        num_parts: number of partitions.
        data_cls: ``"homo"`` (``nodes`` and ``edges`` have the one key None) or ``"hetero"``.
        edge_dir: ``"out"`` or ``"in"``, see GraphArrays.
        nodes: by node type.
        edges: by edge type.
        files: by path.
        constants: by type (None: of the whole graph) and name, attributes without rows.
        columns: what is known of the tables that it was made of: of ``"nodes"`` and ``"edges"``, by type; or empty.
    """

    root: Path
    num_parts: int
    data_cls: str
    edge_dir: str
    nodes: Mapping[NodeKey, NodeInfo]
    edges: Mapping[EdgeKey, EdgeInfo]
    files: Mapping[str, ArrayFile]
    constants: Mapping[Any, Mapping[str, Any]] = field(default_factory=dict)
    columns: Mapping[str, Mapping[Any, Any]] = field(default_factory=dict)

    @property
    def is_hetero(self) -> bool:
        """Whether types have names."""
        return self.data_cls == "hetero"

    @property
    def node_types(self) -> list[NodeType]:
        """Names of the node types; empty if homogeneous."""
        return [key for key in self.nodes if key is not None]

    @property
    def edge_types(self) -> list[EdgeType]:
        """Names of the edge types; empty if homogeneous."""
        return [key for key in self.edges if key is not None]

    def row_type(self, etype: EdgeKey) -> NodeKey:
        """The node type whose ids are the rows of an edge type."""
        return None if etype is None else etype[0 if self.edge_dir == "out" else 2]

    def col_type(self, etype: EdgeKey) -> NodeKey:
        """The node type whose ids are the indices of an edge type."""
        return None if etype is None else etype[2 if self.edge_dir == "out" else 0]

    def node_book(self, ntype: NodeKey, partition_idx: int) -> PartitionBook:
        """The node book of a type, seen from a partition."""
        book: PartitionBook = self.nodes[ntype].book.for_partition(partition_idx)
        return book

    def node_feature_book(self, ntype: NodeKey, partition_idx: int) -> PartitionBook:
        """Who owns which node's features, seen from a partition."""
        book: PartitionBook = self.nodes[ntype].feature_book.for_partition(partition_idx)
        return book

    def edge_feature_book(self, etype: EdgeKey, partition_idx: int) -> PartitionBook:
        """Who owns which edge feature, seen from a partition."""
        book: PartitionBook = self.edges[etype].feature_book.for_partition(partition_idx)
        return book

    def row_files(self, kind: str, key: NodeKey | EdgeKey) -> list[ArrayFile]:
        """The files of a type's rows, beside the graph, in all partitions; ``kind`` is ``"node"`` or ``"edge"``."""
        groups = ("feat", "label", "time", "attr")
        folders = tuple(
            array_path(f"{kind}_{group}", key, "", p).removesuffix(".npy")
            for group in groups
            for p in range(self.num_parts)
        )
        return [file for path, file in self.files.items() if path.startswith(folders)]

    def partition_files(self, partition_idx: int) -> list[ArrayFile]:
        """The files of one partition."""
        return [file for file in self.files.values() if file.path.startswith(f"part{partition_idx}/")]

    def open_partition(self, partition_idx: int, *, verify: bool | None = None) -> PartitionArrays:
        """Maps one partition.

        Args:
            partition_idx: which.
            verify: compare checksums, which reads every byte; None does so up to 1 GiB. Sizes and headers are always
                checked, offsets and neighbors of the graph where they are used.

        Raises:
            PartitionFormatError: a file is missing, truncated, altered, or does not fit the others.
        """
        check_partition_idx(partition_idx, self.num_parts)
        return _PartitionReader(self, partition_idx, verify).read()

    def open_graphs(self, partition_idx: int, *, verify: bool | None = None) -> dict[EdgeKey, GraphArrays]:
        """Maps the graph of one partition by edge type, and nothing else; see ``open_partition``."""
        check_partition_idx(partition_idx, self.num_parts)
        return _PartitionReader(self, partition_idx, verify).graphs()


class _PartitionReader:
    def __init__(self, layout: PartitionLayout, partition_idx: int, verify: bool | None) -> None:
        self.layout = layout
        self.partition_idx = partition_idx
        self.verify = resolve_verify(layout.partition_files(partition_idx), verify)

    def read(self) -> PartitionArrays:
        layout, index = self.layout, self.partition_idx
        node_sizes = {key: info.book.partition_size(index) for key, info in layout.nodes.items()}
        feat_sizes = {key: info.feature_book.partition_size(index) for key, info in layout.nodes.items()}
        edge_sizes = {key: info.feature_book.partition_size(index) for key, info in layout.edges.items()}
        return PartitionArrays(
            partition_idx=index,
            graphs=self.graphs(),
            node_feats=self._rows("node_feat", "x", feat_sizes),
            node_labels=self._rows("node_label", "y", node_sizes),
            edge_feats=self._edge_feats(edge_sizes),
            node_caches=self._caches("node_feat", layout.nodes),
            edge_caches=self._caches("edge_feat", layout.edges),
            node_times=self._rows("node_time", "t", node_sizes),
            node_attrs=self._attrs("node_attr", node_sizes),
            edge_attrs=self._attrs("edge_attr", edge_sizes),
        )

    def _attrs(self, group: str, sizes: Mapping[Any, int]) -> dict[Any, dict[str, torch.Tensor]]:
        """By type and name, from the paths of files."""
        found: dict[Any, dict[str, torch.Tensor]] = {}
        for key, size in sizes.items():
            folder = array_path(group, key, "", self.partition_idx).removesuffix(".npy")
            for path in self.layout.files:
                stem = path.removeprefix(folder).removesuffix(".npy")
                if path.startswith(folder) and "/" not in stem:
                    rows = self._open_rows(group, key, stem, size)
                    if rows is not None:
                        found.setdefault(key, {})[unquote(stem)] = rows
        return found

    def _open(self, group: str, key: NodeKey | EdgeKey, name: str, num_rows: int) -> torch.Tensor | None:
        file = self.layout.files.get(array_path(group, key, name, self.partition_idx))
        if file is None:
            return None
        where = self.layout.root / file.path
        if not file.shape or file.shape[0] != num_rows:
            raise PartitionFormatError(f"{where}: expected {num_rows} rows, found {list(file.shape)}")
        is_free = group in ("node_attr", "edge_attr")  # whose names are those that a program's attributes have
        expected = None if is_free else meta_checks.other_vector(name, num_rows, file.dtype, file.shape)
        if expected is not None:
            raise PartitionFormatError(f"{where}: expected {expected}, found {file.dtype} {list(file.shape)}")
        return open_array(self.layout.root, file, verify=self.verify)

    def _open_rows(self, group: str, key: NodeKey | EdgeKey, name: str, num_rows: int) -> torch.Tensor | None:
        """Rows that lookups gather from all partitions: they have one dtype and one shape in all that have them."""
        rows = self._open(group, key, name, num_rows)
        if rows is None:
            return None
        own = array_path(group, key, name, self.partition_idx)
        found = self.layout.files[own]
        other = file_of_other_rows(self.layout.files, own, self.layout.num_parts, found.dtype, found.shape[1:])
        if other is not None:
            raise PartitionFormatError(
                f"{self.layout.root / own}: expected rows of one dtype and shape in all partitions, found "
                f"{found.dtype} {list(found.shape)}, and {other.dtype} {list(other.shape)} in {other.path}"
            )
        return rows

    def graphs(self) -> dict[EdgeKey, GraphArrays]:
        layout, index = self.layout, self.partition_idx
        sizes = {key: layout.nodes[layout.row_type(key)].book.partition_size(index) for key in layout.edges}
        return {key: self._graph(key, size) for key, size in sizes.items()}

    def _graph(self, key: EdgeKey, num_rows: int) -> GraphArrays:
        num_edges = self.layout.edges[key].part_counts[self.partition_idx]
        indptr = self._open("graph", key, "indptr", num_rows + 1)
        indices = self._open("graph", key, "indices", num_edges)
        edge_ids = self._open("graph", key, "edge_ids", num_edges)
        where = self.layout.root / array_path("graph", key, "indptr", self.partition_idx)
        if indptr is None or indices is None or edge_ids is None:
            raise PartitionFormatError(f"{where.parent}: expected indptr, indices and edge_ids; META.json lacks one")
        if int(indptr[0]) != 0 or int(indptr[-1]) != num_edges:
            raise PartitionFormatError(f"{where}: expected 0 to {num_edges}, found {indptr[0]} to {indptr[-1]}")
        weights = self._open("graph", key, "weights", num_edges)
        times = self._open("graph", key, "times", num_edges)
        num_cols = self.layout.nodes[self.layout.col_type(key)].count
        return GraphArrays(indptr, indices, edge_ids, weights, num_cols, times, where.parent)

    def _rows(self, group: str, name: str, sizes: Mapping[Any, int]) -> dict[Any, torch.Tensor]:
        opened = {key: self._open_rows(group, key, name, size) for key, size in sizes.items()}
        return {key: tensor for key, tensor in opened.items() if tensor is not None}

    def _edge_feats(self, sizes: Mapping[Any, int]) -> dict[Any, torch.Tensor]:
        found = self._rows("edge_feat", "x", sizes)
        for key in found:
            if isinstance(self.layout.edges[key].feature_book, OwnedEdgesBook):
                self._check_edge_ids(key, sizes[key])
        return found

    def _check_edge_ids(self, key: EdgeKey, size: int) -> None:
        """The ids beside features are there, and of as many edges; that they ascend ``verify`` says."""
        ids, path = self._open("edge_feat", key, "ids", size), array_path("edge_feat", key, "ids", self.partition_idx)
        if ids is None or ids.dtype not in (torch.int32, torch.int64):
            found = "none" if ids is None else ids.dtype
            raise PartitionFormatError(f"{self.layout.root / path}: expected int32 or int64 edge ids, found {found}")
        if self.verify and bool((ids.diff() <= 0).any()):
            raise PartitionFormatError(f"{self.layout.root / path}: expected ascending edge ids")

    def _caches(self, group: str, infos: Mapping[Any, NodeInfo | EdgeInfo]) -> dict[Any, CachedRows]:
        caches = {}
        for key, info in infos.items():
            file = self.layout.files.get(array_path(group, key, "cache_ids", self.partition_idx))
            if file is None:
                continue
            if not file.shape:
                raise PartitionFormatError(f"{self.layout.root / file.path}: expected int64 [n], found one number")
            ids = self._open(group, key, "cache_ids", file.shape[0])
            feats = self._open(group, key, "cache_x", file.shape[0])
            if ids is None or feats is None:
                raise PartitionFormatError(f"{self.layout.root / file.path}: expected cache_x beside it")
            own = self.layout.files.get(array_path(group, key, "x", self.partition_idx))
            row = (own.dtype, own.shape[1:]) if own is not None else None
            if row != (dtype_name(feats.dtype), tuple(feats.shape[1:])):
                raise PartitionFormatError(f"{self.layout.root / file.path}: expected ids of rows like x.npy's")
            try:
                meta_checks.check_ids(ids, info.feature_book.num_ids, str(self.layout.root / file.path))
            except ValueError as error:
                raise PartitionFormatError(str(error)) from error
            caches[key] = CachedRows(ids, feats)
        return caches


def resolve_verify(files: Iterable[ArrayFile], verify: bool | None) -> bool:
    """Whether checksums are compared: as asked, else if the files have no more than 1 GiB."""
    return sum(file.num_bytes for file in files) <= VERIFY_UP_TO_BYTES if verify is None else verify


def load_partition_layout(root_dir: str | os.PathLike[str], *, verify: bool | None = None) -> PartitionLayout:
    """Reads META.json, the books and the splits of a partition directory.

    Args:
        root_dir: the directory.
        verify: compare the checksums of book and split files; None does so up to 1 GiB. Sizes are always checked, of
            every file that is there; a machine may hold only its own ``part<i>``.

    Raises:
        PartitionFormatError: the directory is foreign, of another version, incomplete or damaged.
    """
    root = to_path("root_dir", root_dir)
    meta = read_meta(root)
    try:
        listed = list(map(ArrayFile.from_dict, meta["files"]))
        files = {file.path: file for file in listed}
        if len(files) < len(listed):
            raise ValueError("files: expected each path once")
        shared = [file for file in files.values() if not file.path.startswith("part")]
        layout = _parse(root, meta, files, resolve_verify(shared, verify))
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise PartitionFormatError(f"{root / META_FILE}: damaged: {error!r}") from error
    for file in files.values():
        if os.path.exists(root / file.path.split("/", 1)[0]) or not file.path.startswith("part"):
            check_size(root, file)
    return layout


def read_meta(root: Path) -> dict[str, Any]:
    """META.json as it is, of a version that can be read; PartitionFormatError where there is none."""
    path = root / META_FILE
    try:
        meta = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise PartitionFormatError(f"{path}: not found; {root} is no (complete) partition directory") from error
    except (OSError, ValueError, RecursionError) as error:
        raise PartitionFormatError(f"{path}: expected JSON, got {error}") from error
    if not isinstance(meta, dict) or meta.get("format") != FORMAT_NAME:
        found = meta.get("format") if isinstance(meta, dict) else type(meta).__name__
        raise PartitionFormatError(f"{path}: expected format {FORMAT_NAME!r}, found {found!r}")
    if meta.get("version") not in READABLE_VERSIONS:
        versions = " or ".join(map(str, READABLE_VERSIONS))
        raise PartitionFormatError(f"{path}: expected version {versions}, found {meta.get('version')!r}")
    return meta


def _parse(root: Path, meta: dict[str, Any], files: Mapping[str, ArrayFile], verify: bool) -> PartitionLayout:
    num_parts = meta_checks.whole_number(meta["num_parts"], "num_parts", low=1)
    node_types = [meta_checks.node_type(entry["type"]) for entry in meta["nodes"]]
    edge_types = [meta_checks.edge_type(entry["type"]) for entry in meta["edges"]]
    meta_checks.check_types(meta["data_cls"], meta["edge_dir"], node_types, edge_types)
    nodes: dict[NodeKey, NodeInfo] = {}
    for key, entry in zip(node_types, meta["nodes"], strict=True):
        count = meta_checks.whole_number(entry["count"], f"nodes of type {key}: count")
        split = {}
        for name in ("train", "val", "test"):
            path = array_path("node_split", key, name)
            if path in files:
                split[name] = open_array(root, files[path], verify=verify)
                meta_checks.check_ids(split[name], count, str(root / path))
        try:
            check_disjoint(label_of("node_split", key), split)
        except InvalidArgumentError as error:
            raise PartitionFormatError(f"{root}: {error}") from error
        book = _read_book(root, entry["book"], "node_book", key, files, verify)
        feature_book = book
        if "feature_book" in entry:
            feature_book = _read_book(root, entry["feature_book"], "node_feat_book", key, files, verify)
        for owns in (book, feature_book):
            _check_book(f"nodes of type {key}", owns, num_parts, count)
        sizes = meta_checks.whole_numbers(entry["part_counts"], f"nodes of type {key}: part_counts", num_parts)
        if sizes != tuple(book.partition_size(p) for p in range(num_parts)):
            raise ValueError(f"nodes of type {key}: part_counts {sizes!r:.200} are not the sizes that the book gives")
        first = entry.get("earliest")
        if first is not None:
            meta_checks.whole_number(first, f"nodes of type {key}: earliest", high=count - 1)
        order = _read_order(root, entry, key, files, verify)
        nodes[key] = NodeInfo(count, book, split, feature_book, first, order)
    edges: dict[EdgeKey, EdgeInfo] = {}
    for etype, entry in zip(edge_types, meta["edges"], strict=True):
        edge_book = _read_edge_book(root, entry["feature_book"], etype, files, verify)
        part_counts = meta_checks.whole_numbers(entry["part_counts"], f"edges of type {etype}: part_counts", num_parts)
        count = meta_checks.whole_number(entry["count"], f"edges of type {etype}: count")
        _check_book(f"edges of type {etype}", edge_book, num_parts, edge_book.num_ids)
        if sum(part_counts) != count:
            raise ValueError(f"edges of type {etype}: part_counts {part_counts!r:.200} do not add up to {count}")
        if isinstance(edge_book, OwnedEdgesBook) and edge_book.to_dict()["sizes"] != list(part_counts):
            raise ValueError(f"edges of type {etype}: sizes of the book are not part_counts {part_counts!r:.200}")
        edges[etype] = EdgeInfo(count, part_counts, edge_book)
    meta_checks.check_same_arrays(files, num_parts)
    constants = open_constants(root, meta.get("constants", ()), files, verify=verify)
    columns = meta_checks.table_columns(meta.get("tables"), node_types, edge_types)
    return PartitionLayout(root, num_parts, meta["data_cls"], meta["edge_dir"], nodes, edges, files, constants, columns)


def _read_order(
    root: Path, entry: Mapping[str, Any], key: NodeKey, files: Mapping[str, ArrayFile], verify: bool
) -> ZoneOrder | None:
    if "order" not in entry:
        return None
    num_groups = meta_checks.whole_number(entry["order"]["num_groups"], f"nodes of type {key}: num_groups", low=1)
    place, bounds = (open_array(root, files[array_path("order", key, n)], verify=verify) for n in ("place", "bounds"))
    if len(place) != entry["count"]:
        raise ValueError(f"nodes of type {key}: expected places of {entry['count']} nodes, found {len(place)}")
    return ZoneOrder(place, bounds, num_groups)


def _check_book(what: str, book: EdgeBook, num_parts: int, num_ids: int) -> None:
    if book.num_partitions != num_parts or book.num_ids != num_ids:
        raise ValueError(
            f"{what}: expected a book of {num_ids} ids in {num_parts} partitions, "
            f"found {book.num_ids} in {book.num_partitions}"
        )


def _read_book(
    root: Path,
    description: dict[str, Any],
    group: str,
    key: NodeKey | EdgeKey,
    files: Mapping[str, ArrayFile],
    verify: bool,
) -> AnyBook:
    meta_checks.check_book_entry(description, f"{group} of type {key}")
    tables = tuple(open_array(root, files[path], verify=verify) for path in table_paths(description, group, key))
    return from_dict(description, tables=tables)


def _read_edge_book(
    root: Path, description: dict[str, Any], key: EdgeKey, files: Mapping[str, ArrayFile], verify: bool
) -> EdgeBook:
    meta_checks.check_book_entry(description, f"edge_book of type {key}")
    if description["kind"] != "edges":
        return _read_book(root, description, "edge_book", key, files, verify)
    return edge_book_from_dict(description, open_ids=functools.partial(open_edge_ids, root, files, key))


def open_edge_ids(root: Path, files: Mapping[str, ArrayFile], key: EdgeKey, partition_idx: int) -> torch.Tensor | None:
    """The edge ids of a partition, ascending: those that stand beside its features, else of its graph; None where the
    partition is not on this machine."""
    beside = files.get(array_path("edge_feat", key, "ids", partition_idx))
    file = beside or files.get(array_path("graph", key, "edge_ids", partition_idx))
    if file is None or not (root / file.path).exists():
        return None
    if file.dtype not in meta_checks.INDEX or len(file.shape) != 1:
        raise PartitionFormatError(f"{root / file.path}: expected int32 or int64 [n], found {file.dtype}")
    ids = open_array(root, file, verify=False)
    return ids if beside is not None else ids.sort().values


# --- what META.json says, for writers --------------------------------------------------------------------------------
