"""One run of a partitioner over several ranks: edges and rows move to their owners, which write them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from ...core import available_cores, thread_pool
from ...partition.assembly import PartitionEdges, write_edge_ids, write_graph
from ...partition.attributes import write_constants
from ...partition.edge_book import EdgeBook, OwnedEdgesBook, default_edge_book
from ...partition.layout import EdgeKey, NodeKey, open_edge_ids
from ...partition.meta_entries import edge_entry, make_meta, node_entry, write_meta
from ...partition.storage import ArrayFile, new_directory, put_in_place
from ...utils.values import label_of
from .. import rpc
from .edge_directory import OWNER_DTYPE
from .partition_exchange import Agreement, Inbox, Outbox, RowSlice, Slices, StoreSpec, chunks_of, one_ahead, step


class PartitionRun:
    """What a rank does once all have agreed; every rank takes the same steps in the same order.

    Args:
        slices: what this rank brings.
        agreement: what all ranks know.
        partition_idx: the partition that this rank writes.
        edge_dir: ``"out"``: a partition has the out-edges of its nodes; ``"in"``: the in-edges.
        output_dir: the directory to write.
        temporary: where it lies until it is complete.
        chunk_size: edges and rows sent at a time.
        timeout_s: how long a rank waits for the others at each step.
    """

    def __init__(
        self,
        slices: Slices,
        agreement: Agreement,
        *,
        partition_idx: int,
        edge_dir: str,
        output_dir: Path,
        temporary: Path,
        chunk_size: int,
        timeout_s: float,
    ) -> None:
        self._slices, self._agreement = slices, agreement
        self._partition_idx, self._edge_dir = partition_idx, edge_dir
        self._output_dir, self._root = output_dir, temporary
        self._chunk_size, self._timeout_s = chunk_size, timeout_s
        self._files: dict[str, ArrayFile] = {}
        self._inbox = Inbox()

    def write(self) -> None:
        """Writes the directory; the inbox is closed whatever happens."""
        try:
            self._write()
        finally:
            self._inbox.close()

    def _write(self) -> None:
        agreement = self._agreement
        callee_id = rpc.rpc_register(self._inbox)
        outbox = Outbox(agreement.workers, callee_id, self._inbox, self._partition_idx)
        self._step(self._prepare)
        for store in agreement.node_stores:
            self._move_rows(store, agreement.node_books[store.name.key], outbox)
        edges = [self._move_edges(key, outbox) for key in agreement.end_edge_ids]
        written = self._step(lambda: [file.to_dict() for file in self._files.values()])
        files = [ArrayFile.from_dict(entry) for worker in agreement.workers for entry in written[worker]]
        nodes = [node_entry(key, book) for key, book in agreement.node_books.items()]
        seen = [worker for worker in agreement.workers if (self._root / _marker(worker)).exists()]
        self._step(lambda: None)  # everybody has looked, before anybody takes the marks away
        is_first = seen[0] == agreement.workers[self._partition_idx]
        self._step(partial(self._finish, nodes, edges, files, seen) if is_first else lambda: None)

    def _step(self, work: Callable[[], Any]) -> dict[str, Any]:
        return step(work, self._timeout_s)

    def _add(self, file: ArrayFile) -> None:
        self._files[file.path] = file

    def _prepare(self) -> None:
        new_directory(self._output_dir)
        self._root.mkdir(parents=True, exist_ok=True)
        # Ranks that see each other's marks share a file system; the first of them finishes the directory.
        (self._root / _marker(self._agreement.workers[self._partition_idx])).touch()
        self._inbox.open()

    def _finish(
        self, nodes: list[dict[str, Any]], edges: list[dict[str, Any]], files: list[ArrayFile], workers: list[str]
    ) -> None:
        for worker in workers:
            (self._root / _marker(worker)).unlink()
        constants = list(write_constants(self._root, self._slices.constants))
        files = files + [file for _, file in constants if file is not None]
        entries = [entry for entry, _ in constants]
        write_meta(self._root, make_meta(self._agreement.num_parts, self._edge_dir, nodes, edges, files, entries))
        put_in_place(self._root, self._output_dir)

    # --- edges -------------------------------------------------------------------------------------------------

    def _move_edges(self, key: EdgeKey, outbox: Outbox) -> dict[str, Any]:
        """Moves the edges of a type to their owners, and rows of edges after them; their entry of META.json."""
        agreement = self._agreement
        self._step(partial(self._send_edges, key, outbox))
        counted = self._step(partial(self._write_edges, key))
        counts = [counted[worker] for worker in agreement.workers]
        open_ids = partial(open_edge_ids, self._root, self._files, key)
        book = default_edge_book(agreement.id_ranges[key].num_ids, counts, open_ids)
        for store in agreement.edge_stores(key):
            self._move_rows(store, book, outbox)
        self._inbox.forget_ids()
        return edge_entry(key, counts, book)

    def _end_types(self, key: EdgeKey) -> tuple[NodeKey, NodeKey]:
        if key is None:
            return None, None
        return (key[0], key[2]) if self._edge_dir == "out" else (key[2], key[0])

    def _send_edges(self, key: EdgeKey, outbox: Outbox) -> None:
        edges = self._slices.edges.get(key)
        if edges is None:
            return
        agreement = self._agreement
        book, id_range = agreement.node_books[self._end_types(key)[0]], agreement.id_ranges[key]
        ends = (edges.sources, edges.targets)
        own, other = ends if self._edge_dir == "out" else ends[::-1]
        for part in chunks_of(len(own), self._chunk_size):
            tensors = [own[part].long(), other[part].long(), edges.edge_ids[part].long()]
            owners = book[tensors[0]]
            data = [edges.data[name][part] for name in agreement.edge_data[key]]
            outbox.split("edges", owners, *tensors, *data)
            outbox.split("ids", id_range[tensors[2]], tensors[2], owners.to(OWNER_DTYPE))
        outbox.flush()

    def _write_edges(self, key: EdgeKey) -> int:
        agreement = self._agreement
        is_asked = len(agreement.workers) > 1 and bool(agreement.edge_stores(key))  # one partition has all rows
        id_range = agreement.id_ranges[key].for_partition(self._partition_idx)
        self._inbox.take_ids(label_of("edge_ids", key), id_range, keep=is_asked)
        dtypes = agreement.edge_data[key]
        own, other, edge_ids, *more = self._inbox.take_edges([torch.int64] * 3 + list(dtypes.values()))
        data = dict(zip(dtypes, more, strict=True))
        row_type, col_type = self._end_types(key)
        book = agreement.node_books[row_type]
        edges = PartitionEdges(
            rows=book.for_partition(self._partition_idx).id2index[own],
            cols=other,
            edge_ids=edge_ids,
            weights=data.get("weights"),
            times=data.get("times"),
            num_rows=book.partition_size(self._partition_idx),
            num_cols=agreement.node_books[col_type].num_ids,
            end_edge_id=agreement.end_edge_ids[key],
        )
        for file in write_graph(self._root, key, self._partition_idx, edges, thread_pool(available_cores())):
            self._add(file)
        return len(edge_ids)

    # --- rows --------------------------------------------------------------------------------------------------

    def _move_rows(self, store: StoreSpec, book: EdgeBook, outbox: Outbox) -> None:
        """Moves the rows of a store to those that own them by the book."""
        self._step(partial(self._open_rows, store, book.for_partition(self._partition_idx)))
        self._step(partial(self._send_rows, store, book, outbox))
        self._step(lambda: self._add(self._inbox.close_rows()))

    def _open_rows(self, store: StoreSpec, book: EdgeBook) -> None:
        if isinstance(book, OwnedEdgesBook):  # once more for each store: the same ids
            self._add(write_edge_ids(self._root, store.name.key, self._partition_idx, book))
        self._inbox.open_rows(self._root, store, book)

    def _send_rows(self, store: StoreSpec, book: EdgeBook, outbox: Outbox) -> None:
        held = self._slices.rows.get(store.name)
        if held is None:
            return
        parts = chunks_of(len(held.ids), self._chunk_size)
        asked = ((part, self._owners(store, book, held, part, outbox)) for part in parts)
        for part, wait_for_owners in one_ahead(asked):  # the next owners are on their way meanwhile
            owners, ids, rows = wait_for_owners(), held.ids[part].long(), held.rows[part].to(store.dtype)
            has_edge = owners >= 0
            if not bool(has_edge.all()):  # nobody keeps rows of ids that are no edge's
                owners, ids, rows = owners[has_edge], ids[has_edge], rows[has_edge]
            outbox.split("rows", owners, ids, rows)
        outbox.flush()

    def _owners(
        self, store: StoreSpec, book: EdgeBook, held: RowSlice, part: slice, outbox: Outbox
    ) -> Callable[[], torch.Tensor]:
        """What waits for the owners of some rows: by formula at once, of edges from the ranks that know their ids."""
        ids = held.ids[part].long()
        if isinstance(book, OwnedEdgesBook):
            return outbox.ask_owners(self._agreement.id_ranges[store.name.key][ids], str(store.name), ids)
        return partial(book.__getitem__, ids)


def _marker(worker: str) -> str:
    return f".written-by-{worker}"
