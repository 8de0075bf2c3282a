"""A partition directory that is put together from pieces, which come in any order and from any process.

A piece waits in ``DIR/.pieces`` until what it needs is there (rows need the book that places them, edges the node
books), and is then written where the format wants it. ``META.json`` appears with the last graph; files that come later
are added to it. Whoever adds a piece holds a lock on the directory meanwhile.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from ..utils.paths import to_path
from ..utils.system.directory_lock import locked_directory
from .layout import META_FILE, EdgeKey, NodeKey
from .storage import ArrayFile, open_array, write_tensor

PIECES = ".pieces"
_LOCK_TIMEOUT_S = 600.0


@dataclass(frozen=True)
class Piece:
    """What one call gave.

    Attributes:
        kind: ``meta``, ``node_pb``, ``node_feat_pb``, ``edge_pb``, ``graph``, ``rows`` or ``cache``.
        path: where its arrays wait.
        key: node or edge type; None if homogeneous.
        partition_idx: its partition; -1 if it belongs to none.
        values: the rest, in JSON's types.
        files: its arrays by name.
    """

    kind: str
    path: Path
    key: Any
    partition_idx: int
    values: Mapping[str, Any]
    files: Mapping[str, ArrayFile]

    def open(self, name: str) -> torch.Tensor | None:
        """An array, memory-mapped, or None where it was not given."""
        return open_array(self.path, self.files[name], verify=False) if name in self.files else None

    def tensor(self, name: str) -> torch.Tensor:
        """An array that every piece of this kind has."""
        return open_array(self.path, self.files[name], verify=False)

    def drop(self) -> None:
        """Forgets it."""
        shutil.rmtree(self.path)

    def __str__(self) -> str:
        group = f" ({self.values['group']})" if "group" in self.values else ""
        where = f" of partition {self.partition_idx}" if self.partition_idx >= 0 else ""
        return f"{self.kind}{group}{where}{f', type {self.key!r}' if self.key is not None else ''}"


@dataclass
class Draft:
    """META.json as far as it is known. ``edge_dir``, books and counts are None until then."""

    num_parts: int
    edge_dir: str | None
    node_books: dict[NodeKey, dict[str, Any] | None]
    node_feat_books: dict[NodeKey, dict[str, Any] | None]
    edge_books: dict[EdgeKey, dict[str, Any] | None]
    part_counts: dict[EdgeKey, list[int | None]]
    end_edge_ids: dict[EdgeKey, int]
    files: dict[str, ArrayFile] = field(default_factory=dict)

    @classmethod
    def from_json(cls, meta: Mapping[str, Any]) -> Draft:
        """Reads ``to_json``'s, or a META.json."""
        edges = {_key(entry["type"]): entry for entry in meta["edges"]}
        return cls(
            meta["num_parts"],
            meta["edge_dir"],
            {entry["type"]: entry["book"] for entry in meta["nodes"]},
            {entry["type"]: entry.get("feature_book") for entry in meta["nodes"]},
            {key: entry["feature_book"] for key, entry in edges.items()},
            {key: list(entry["part_counts"]) for key, entry in edges.items()},
            {key: entry.get("end_edge_id") or _num_ids(entry["feature_book"]) for key, entry in edges.items()},
            {file.path: file for file in map(ArrayFile.from_dict, meta["files"])},
        )

    def to_json(self) -> dict[str, Any]:
        """For the next process."""
        return {
            "num_parts": self.num_parts,
            "edge_dir": self.edge_dir,
            "nodes": [
                {"type": key, "book": book, "feature_book": self.node_feat_books[key]}
                for key, book in self.node_books.items()
            ],
            "edges": [
                {
                    "type": key,
                    "part_counts": self.part_counts[key],
                    "feature_book": book,
                    "end_edge_id": self.end_edge_ids[key],
                }
                for key, book in self.edge_books.items()
            ],
            "files": [file.to_dict() for file in self.files.values()],
        }


class PieceStore:
    """The pieces and the draft of one directory. Use it in ``with``: it holds the directory's lock.

    Args:
        root: the directory; made if missing.
    """

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = to_path("output_dir", root)
        self.folder = self.root / PIECES
        self._lock = contextlib.ExitStack()

    def __enter__(self) -> PieceStore:
        self.root.mkdir(parents=True, exist_ok=True)
        self._lock.enter_context(locked_directory(self.root, _LOCK_TIMEOUT_S))
        return self

    def __exit__(self, *_: object) -> None:
        self._lock.close()

    def add(
        self,
        kind: str,
        key: Any = None,
        partition_idx: int = -1,
        *,
        values: Mapping[str, Any] | None = None,
        tensors: Mapping[str, torch.Tensor | None] | None = None,
    ) -> Piece:
        """Keeps a piece; one that was not written to its end does not count."""
        temporary = self.folder / f".{secrets.token_hex(8)}"
        temporary.mkdir(parents=True)
        given = {name: tensor for name, tensor in (tensors or {}).items() if tensor is not None}
        files = [write_tensor(temporary, f"{name}.npy", tensor) for name, tensor in given.items()]
        head = {
            "kind": kind,
            "key": key,
            "partition_idx": partition_idx,
            "values": dict(values or {}),
            "files": [file.to_dict() for file in files],
        }
        (temporary / "piece.json").write_text(json.dumps(head), encoding="utf-8")
        number = max((int(path.name) for path in self._paths()), default=0) + 1
        return self._read(temporary.rename(self.folder / f"{number:08d}"))

    def pieces(self) -> list[Piece]:
        """What waits, in the order in which it came."""
        return [self._read(path) for path in self._paths()]

    def _paths(self) -> list[Path]:
        return sorted(path for path in self.folder.glob("*") if path.name.isdigit())

    @staticmethod
    def _read(path: Path) -> Piece:
        head = json.loads((path / "piece.json").read_text(encoding="utf-8"))
        files = {Path(file.path).stem: file for file in map(ArrayFile.from_dict, head["files"])}
        return Piece(head["kind"], path, _key(head["key"]), head["partition_idx"], head["values"], files)

    def load_draft(self) -> Draft | None:
        """The draft, or else what META.json says, or None where there is neither."""
        for path in (self.folder / META_FILE, self.root / META_FILE):
            if path.exists():
                return Draft.from_json(json.loads(path.read_text(encoding="utf-8")))
        return None

    def save_draft(self, draft: Draft) -> None:
        """Keeps a draft for the next process."""
        self.folder.mkdir(exist_ok=True)
        temporary = self.folder / f".{META_FILE}"
        temporary.write_text(json.dumps(draft.to_json()), encoding="utf-8")
        os.replace(temporary, self.folder / META_FILE)

    def tidy(self) -> None:
        """Removes the folder of pieces, once META.json says everything that it said."""
        if not self._paths():
            shutil.rmtree(self.folder, ignore_errors=True)


def _num_ids(book: Mapping[str, Any] | None) -> int:
    return 0 if book is None else int(book["bounds"][-1] if book["kind"] == "range" else book["num_ids"])


def _key(key: Any) -> Any:
    return tuple(key) if isinstance(key, list) else key
