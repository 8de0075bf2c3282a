"""META.json as it is written; ``layout`` reads it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..data.zone_order import ZoneOrder
from .edge_book import EdgeBook
from .layout import FORMAT_NAME, FORMAT_VERSION, META_FILE, AnyBook, EdgeKey, NodeKey
from .partition_book import ZonePartitionBook
from .storage import ArrayFile


def node_entry(
    key: NodeKey,
    book: AnyBook,
    feature_book: AnyBook | None = None,
    earliest: int | None = None,
    order: ZoneOrder | None = None,
) -> dict[str, Any]:
    """The entry of a node type in META.json.

    ``feature_book`` None: features lie with their nodes; ``earliest`` None: nodes have no times; ``order`` None: that
    of a book of zones, or none.
    """
    sizes = [book.partition_size(p) for p in range(book.num_partitions)]
    entry = {"type": key, "count": book.num_ids, "part_counts": sizes, "book": book.to_dict()}
    if feature_book is not None:
        entry["feature_book"] = feature_book.to_dict()
    if isinstance(book, ZonePartitionBook):
        order = book.order
    if order is not None:
        entry["order"] = {"num_groups": order.num_groups}
    return entry if earliest is None else {**entry, "earliest": earliest}


def edge_entry(key: EdgeKey, part_counts: Sequence[int], feature_book: EdgeBook) -> dict[str, Any]:
    """The entry of an edge type in META.json."""
    return {
        "type": None if key is None else list(key),
        "count": sum(part_counts),
        "part_counts": list(part_counts),
        "feature_book": feature_book.to_dict(),
    }


def make_meta(
    num_parts: int,
    edge_dir: str,
    nodes: Sequence[dict[str, Any]],
    edges: Sequence[dict[str, Any]],
    files: Iterable[ArrayFile],
    constants: Sequence[dict[str, Any]] = (),
    tables: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """META.json: entries of ``node_entry`` and ``edge_entry``, all files, attributes without rows, and what is known
    of the tables that it was made of."""
    return {
        "format": FORMAT_NAME,
        "version": FORMAT_VERSION,
        "num_parts": num_parts,
        "data_cls": "homo" if [entry["type"] for entry in nodes] == [None] else "hetero",
        "edge_dir": edge_dir,
        "nodes": list(nodes),
        "edges": list(edges),
        "files": [file.to_dict() for file in files],
        **({"constants": list(constants)} if constants else {}),
        **({"tables": dict(tables)} if tables is not None else {}),
    }


def write_meta(root: Path, meta: Mapping[str, Any], name: str = META_FILE) -> None:
    """Writes META.json at once or not at all; last, as without it nothing is a partition directory."""
    temporary = root / f".{name}.{os.getpid()}"
    try:
        temporary.write_text(json.dumps(meta, indent=1) + "\n", encoding="utf-8")
        os.replace(temporary, root / name)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
