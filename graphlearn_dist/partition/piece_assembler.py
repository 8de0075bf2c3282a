"""Writes the pieces of a directory where the format wants them, as soon as what they need is there."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable, Mapping
from itertools import groupby
from pathlib import Path
from typing import Any

import torch

from ..core import available_cores, thread_pool
from ..errors import InvalidArgumentError, PartitionFormatError
from ..utils.values import check_distinct, label_of
from .assembly import PartitionEdges, RowsFile, as_stored_book, write_edge_ids, write_graph, write_tables
from .edge_book import EdgeBook, OwnedEdgesBook, default_edge_book, edge_book_from_dict
from .layout import (
    META_FILE,
    AnyBook,
    EdgeKey,
    array_path,
    open_edge_ids,
    table_paths,
)
from .meta_entries import edge_entry, make_meta, node_entry, write_meta
from .partition_book import from_dict
from .piece_store import PIECES, Draft, Piece, PieceStore
from .storage import ArrayFile, check_rows_alike, dtype_name, open_array, write_tensor

GROUPS = {"node_feat": "x", "node_label": "y", "edge_feat": "x"}
_FEATURE_BOOKS = {"node_feat": "node_feat_book", "edge_feat": "edge_book"}


class PieceAssembler:
    """One round of assembly; under the store's lock.

    Args:
        store: the directory's pieces.
    """

    def __init__(self, store: PieceStore) -> None:
        self.store = store
        self.root = store.root
        self.draft = store.load_draft()

    def run(self) -> None:
        """Writes what can be written; META.json too, once nothing of the graph is missing.

        Raises:
            InvalidArgumentError: a piece contradicts another.
            UnknownIdError: an id is not of the partition or the graph that a piece says.
        """
        for piece in self._waiting("meta"):
            self._take_meta(piece)
        if self.draft is None:
            return
        draft = self.draft
        try:
            for piece in self.store.pieces():
                self._check_piece(draft, piece)
            for piece in self._waiting("node_pb"):
                if draft.node_books[piece.key] is not None:
                    raise InvalidArgumentError(f"{piece}: saved before")
                draft.node_books[piece.key] = self._take_book(draft, piece, "node_book")
            for piece in self._waiting("node_feat_pb"):
                draft.node_feat_books[piece.key] = self._take_feature_book(draft, piece, "node_feat")
            for piece in self._waiting("edge_pb"):
                draft.edge_books[piece.key] = self._take_feature_book(draft, piece, "edge_feat")
            if None not in draft.node_books.values():
                self._take_graphs(draft)
            self._take_rows(draft)
            for piece in self._waiting("cache"):
                self._take_cache(draft, piece)
        finally:
            self.store.save_draft(draft)
        if not self._missing(draft):
            write_meta(self.root, self._meta(draft))
            if None not in draft.edge_books.values():
                self.store.tidy()  # else a book of edge features may still come

    def missing(self) -> list[str]:
        """What the directory still needs, and which pieces wait."""
        needs = ["meta (save_meta)"] if self.draft is None else self._missing(self.draft)
        return needs + [f"{piece}, which waits for the rest of it or for its book" for piece in self.store.pieces()]

    def _waiting(self, kind: str) -> list[Piece]:
        return [piece for piece in self.store.pieces() if piece.kind == kind]

    # --- meta and books ----------------------------------------------------------------------------------------

    def _take_meta(self, piece: Piece) -> None:
        values = piece.values
        if self.draft is not None:
            raise InvalidArgumentError("save_meta: saved before")
        edge_types = [None if key is None else tuple(key) for key in values["edge_types"]]
        unknown: dict[Any, list[int | None]] = {key: [None] * values["num_parts"] for key in edge_types}
        self.draft = Draft(
            values["num_parts"],
            values["edge_dir"],
            dict.fromkeys(values["node_types"]),
            dict.fromkeys(values["node_types"]),
            dict.fromkeys(edge_types),
            unknown,
            dict.fromkeys(edge_types, 0),
        )
        self.store.save_draft(self.draft)
        piece.drop()

    @staticmethod
    def _check_piece(draft: Draft, piece: Piece) -> None:
        of_edges = piece.kind in ("graph", "edge_pb") or piece.values.get("group") == "edge_feat"
        keys: list[Any] = list(draft.edge_books if of_edges else draft.node_books)
        if piece.key not in keys:
            raise InvalidArgumentError(f"{piece}: unknown type; save_meta said {keys}")
        if piece.partition_idx >= draft.num_parts:
            raise InvalidArgumentError(f"{piece}: expected a partition below {draft.num_parts}, as save_meta said")

    def _take_book(self, draft: Draft, piece: Piece, group: str) -> dict[str, Any]:
        description, owners, rows = piece.values.get("book"), piece.open("owners"), piece.open("rows")
        if owners is None:
            book = as_stored_book(from_dict(description or {}), draft.num_parts)
        elif rows is None:
            book = as_stored_book(owners, draft.num_parts)
        else:
            book = as_stored_book(from_dict(description or {}, tables=(owners, rows)), draft.num_parts)
        self._add_files(draft, write_tables(self.root, group, piece.key, book))
        piece.drop()
        return book.to_dict()

    def _take_feature_book(self, draft: Draft, piece: Piece, group: str) -> dict[str, Any]:
        for p in range(draft.num_parts):
            for path in (array_path(group, piece.key, name, p) for name in ("x", "cache_x")):
                if path in draft.files:
                    raise InvalidArgumentError(f"{piece}: features that it places are written already: {path}")
        return self._take_book(draft, piece, _FEATURE_BOOKS[group])

    def _book(self, draft: Draft, group: str, key: Any) -> EdgeBook | None:
        books: dict[str, Mapping[Any, dict[str, Any] | None]] = {
            "node_book": draft.node_books,
            "node_feat_book": draft.node_feat_books,
            "edge_book": draft.edge_books,
        }
        description = books[group][key]
        if description is None:
            return None
        paths = table_paths(description, group, key)
        tables = tuple(open_array(self.root, draft.files[path], verify=False) for path in paths)
        open_ids = functools.partial(open_edge_ids, self.root, draft.files, key)
        return edge_book_from_dict(description, tables=tables, open_ids=open_ids)

    def _row_book(self, draft: Draft, group: str, key: Any) -> EdgeBook | None:
        """Who has the rows of a group: its feature book, else, for nodes, whoever has the node."""
        book = self._book(draft, _FEATURE_BOOKS[group], key) if group in _FEATURE_BOOKS else None
        return book if book is not None or group == "edge_feat" else self._book(draft, "node_book", key)

    def _node_book(self, draft: Draft, key: Any) -> AnyBook:
        book = self._book(draft, "node_book", key)
        if book is None or isinstance(book, OwnedEdgesBook):
            raise PartitionFormatError(f"node_pb of type {key!r}: not saved yet")
        return book

    @staticmethod
    def _add_files(draft: Draft, files: list[ArrayFile]) -> None:
        draft.files.update({file.path: file for file in files})

    # --- graphs ------------------------------------------------------------------------------------------------

    def _take_graphs(self, draft: Draft) -> None:
        """Writes all graphs when all are there: their direction and the width of edge ids depend on all of them."""
        pieces: dict[tuple[EdgeKey, int], Piece] = {}
        for piece in self._waiting("graph"):
            place = (piece.key, piece.partition_idx)
            if place in pieces or draft.part_counts[piece.key][piece.partition_idx] is not None:
                raise InvalidArgumentError(f"{piece}: saved before")
            pieces[place] = piece
        if not pieces or len(pieces) < draft.num_parts * len(draft.part_counts):
            return
        edge_dir = draft.edge_dir or self._direction(draft, list(pieces.values()))
        written: list[ArrayFile] = []
        for key in draft.part_counts:
            written += self._write_graphs_of(draft, key, edge_dir, [pieces[key, p] for p in range(draft.num_parts)])
        # Nothing of the draft has changed so far: a wrong piece can be given again.
        self._add_files(draft, written)
        draft.edge_dir = edge_dir
        for key, counts in draft.part_counts.items():
            counts[:] = [len(pieces[key, p].tensor("edge_ids")) for p in range(draft.num_parts)]
            draft.end_edge_ids[key] = max(_end_edge_id(pieces[key, p]) for p in range(draft.num_parts))
        for piece in pieces.values():
            piece.drop()

    def _direction(self, draft: Draft, pieces: list[Piece]) -> str:
        for edge_dir in ("out", "in"):
            if all(self._owns_rows(draft, piece, edge_dir) for piece in pieces):
                return edge_dir
        raise InvalidArgumentError(
            "graph: expected each partition to have the out-edges of its nodes, or each the in-edges; "
            "got edges whose sources and targets are both of other partitions"
        )

    def _owns_rows(self, draft: Draft, piece: Piece, edge_dir: str) -> bool:
        row_type, _ = _end_types(piece.key, edge_dir)
        owners = self._node_book(draft, row_type)[piece.tensor("sources" if edge_dir == "out" else "targets")]
        return bool((owners == piece.partition_idx).all())

    def _write_graphs_of(self, draft: Draft, key: EdgeKey, edge_dir: str, pieces: list[Piece]) -> list[ArrayFile]:
        row_type, col_type = _end_types(key, edge_dir)
        book, num_cols = self._node_book(draft, row_type), self._node_book(draft, col_type).num_ids
        data = {name: [piece.open(name) for piece in pieces] for name in ("weights", "times")}
        for name, tensors in data.items():
            if len({tensor is None for tensor in tensors}) > 1:
                raise InvalidArgumentError(f"{label_of('graph', key)}: expected {name} in all partitions or in none")
        written = []
        for p, piece in enumerate(pieces):
            ends = [piece.tensor("sources"), piece.tensor("targets")]
            own, other = ends if edge_dir == "out" else reversed(ends)
            edges = PartitionEdges(
                rows=book.for_partition(p).id2index[own],
                cols=other,
                edge_ids=piece.tensor("edge_ids"),
                weights=data["weights"][p],
                times=data["times"][p],
                num_rows=book.partition_size(p),
                num_cols=num_cols,
                end_edge_id=max(map(_end_edge_id, pieces)),
            )
            written += write_graph(self.root, key, p, edges, thread_pool(available_cores()))
        return written

    # --- rows --------------------------------------------------------------------------------------------------

    def _take_rows(self, draft: Draft) -> None:
        def place(piece: Piece) -> tuple[str, str, int]:
            return piece.values["group"], str(piece.key), piece.partition_idx

        for _, group in groupby(sorted(self._waiting("rows"), key=place), place):
            self._take_rows_of(draft, list(group))

    def _take_rows_of(self, draft: Draft, pieces: list[Piece]) -> None:
        first = pieces[0]
        group, key, p = first.values["group"], first.key, first.partition_idx
        book = self._row_book(draft, group, key)
        if book is None:
            return
        path = array_path(group, key, GROUPS[group], p)
        size, count = book.partition_size(p), sum(len(piece.tensor("feats")) for piece in pieces)
        if path in draft.files:
            raise InvalidArgumentError(f"{first}: all rows were saved before")
        if count > size or (count < size and any(piece.values["is_whole"] for piece in pieces)):
            raise InvalidArgumentError(f"{first}: expected {size} rows, got {count}")
        if count < size:
            return
        feats = first.tensor("feats")
        rows_are = (dtype_name(feats.dtype), tuple(feats.shape[1:]))
        check_rows_alike(draft.files, path, draft.num_parts, *rows_are, name=f"{first}: feats")
        file = RowsFile(self.root, path, feats.dtype, (size, *feats.shape[1:]))
        for piece in pieces:
            ids = piece.open("ids")
            rows = torch.arange(size) if ids is None else book.for_partition(p).id2index[ids]
            file.put(rows.long(), piece.tensor("feats"), f"{piece}: ids")
        self._add_files(draft, [file.close()])
        if isinstance(book, OwnedEdgesBook):
            self._add_files(draft, [write_edge_ids(self.root, key, p, book)])
        for piece in pieces:
            piece.drop()

    def _take_cache(self, draft: Draft, piece: Piece) -> None:
        group, p = piece.values["group"], piece.partition_idx
        book = self._row_book(draft, group, piece.key)
        own = draft.files.get(array_path(group, piece.key, GROUPS[group], p))
        if book is None or own is None:
            return
        if array_path(group, piece.key, "cache_ids", p) in draft.files:
            raise InvalidArgumentError(f"{piece}: saved before")
        ids, feats = piece.tensor("ids").long(), piece.tensor("feats")
        if (dtype_name(feats.dtype), tuple(feats.shape[1:])) != (own.dtype, own.shape[1:]):
            raise InvalidArgumentError(
                f"{piece}: expected rows {own.dtype} {own.shape[1:]} as the partition's own, got {feats.dtype} "
                f"{tuple(feats.shape[1:])}"
            )
        check_distinct(f"{piece}: cache_ids", ids)
        of_others = (book[ids] != p).nonzero().flatten()  # its own rows it has already
        for name, tensor in (("cache_ids", ids[of_others]), ("cache_x", feats[of_others])):
            self._add_files(draft, [write_tensor(self.root, array_path(group, piece.key, name, p), tensor)])
        piece.drop()

    # --- the end -----------------------------------------------------------------------------------------------

    @staticmethod
    def _missing(draft: Draft) -> list[str]:
        books = [label_of("node_pb", key) for key, book in draft.node_books.items() if book is None]
        graphs = [
            f"{label_of('graph', key)} of partition {p}"
            for key, counts in draft.part_counts.items()
            for p, count in enumerate(counts)
            if count is None
        ]
        return books + graphs

    def _meta(self, draft: Draft) -> dict[str, Any]:
        nodes = []
        for node_type in draft.node_books:
            own_book = self._book(draft, "node_feat_book", node_type)
            assert not isinstance(own_book, OwnedEdgesBook)  # nodes have owners by id
            nodes.append(node_entry(node_type, self._node_book(draft, node_type), own_book))
        edges = []
        for key, counts in draft.part_counts.items():
            end, sizes = draft.end_edge_ids[key], [count or 0 for count in counts]
            book = self._book(draft, "edge_book", key) or default_edge_book(end, sizes)
            if book.num_ids < end:
                name = label_of("edge_pb", key)
                raise InvalidArgumentError(f"{name}: expected {end} ids at least, got {book.num_ids}")
            edges.append(edge_entry(key, sizes, book))
        return make_meta(draft.num_parts, draft.edge_dir or "out", nodes, edges, draft.files.values())


def _end_types(key: EdgeKey, edge_dir: str) -> tuple[Any, Any]:
    if key is None:
        return None, None
    return (key[0], key[2]) if edge_dir == "out" else (key[2], key[0])


def _end_edge_id(graph: Piece) -> int:
    ids = graph.tensor("edge_ids")
    return int(ids.max()) + 1 if len(ids) else 0


def check_complete(root: str | os.PathLike[str]) -> None:
    """Puts together what can be, and raises PartitionFormatError naming what is missing, if anything is."""
    if not (Path(root) / PIECES).exists():
        return
    with PieceStore(root) as store:
        assembler = PieceAssembler(store)
        assembler.run()
        missing = assembler.missing()
        if not missing:
            store.tidy()
    if missing:
        raise PartitionFormatError(f"{Path(root) / META_FILE}: the directory is not complete; missing: {missing}")


def register_files(root: Path, files: Iterable[ArrayFile]) -> None:
    """Adds files that lie in place already."""
    with PieceStore(root) as store:
        assembler = PieceAssembler(store)
        if assembler.draft is None:
            raise PartitionFormatError(f"{root}: no partition directory: save_meta and a partitioner come first")
        draft = assembler.draft
        for file in files:  # again, as partitions may be built at the same time
            check_rows_alike(draft.files, file.path, draft.num_parts, file.dtype, file.shape[1:], file.path)
            draft.files[file.path] = file
        assembler.run()
