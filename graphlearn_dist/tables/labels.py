"""Labels as numbers, and which nodes train."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from .. import _C
from ..core import to_tensor
from ..errors import TableError
from ..partition.layout import NodeKey, array_path
from ..partition.storage import ArrayFile, ArrayWriter
from .columns import Array, CheckedChunk, as_integers, floats, is_number
from .config import SPLITS, LabelSpec
from .sources import Table

_NO_LABEL = -1
_AT_ONCE = 1 << 20
_SPLIT_CODES = {"train": 1, "val": 2, "valid": 2, "validation": 2, "test": 3, "0": 1, "1": 2, "2": 3, "": 0, "none": 0}


class LabelCoder:
    """Labels of chunks as numbers: of classes int64, -1 for none; of a regression float32, no number for none.

    Classes that are integers from 0 on keep their number; any others (texts, truth values) are numbered in their order
    when all are known (``final``).
    """

    def __init__(self, spec: LabelSpec, table: Table) -> None:
        self._column, self._is_regression = spec.column, spec.task == "regression"
        self._codes: dict[Any, int] = {}
        self._greatest = -1
        dtype = table.types[spec.column] if spec.column is not None else None
        self._are_integers = dtype is not None and pa.types.is_integer(dtype)
        is_text = dtype is not None and (pa.types.is_string(dtype) or pa.types.is_large_string(dtype))
        allowed = (
            is_number(dtype) if self._is_regression else self._are_integers or is_text or pa.types.is_boolean(dtype)
        )
        if not allowed:
            expected = "numbers" if self._is_regression else "integers, texts or truth values"
            raise TableError(f"{table.files[0]}, column {spec.column!r}: expected {expected} as labels, found {dtype}")

    @property
    def dtype(self) -> Any:
        """numpy's, of what ``codes`` gives and of what is stored."""
        return np.float32 if self._is_regression else np.int64

    def codes(self, chunk: CheckedChunk) -> tuple[Array, Array]:
        """For each row that is kept a number, preliminary for texts, and whether it has a label."""
        column = str(self._column)
        array = chunk.kept(chunk.chunk.columns[column])

        def error(row: int) -> TableError:
            what = "a label that is finite as float32" if self._is_regression else "a class below 2**63"
            return TableError(f"{chunk.kept_place(row, column)}: expected {what}, got {array[row]}")

        valid = array.is_valid().to_numpy(zero_copy_only=False)
        if self._is_regression:
            values = floats(array, np.float32)
            if np.isinf(values).any():
                raise error(int(np.isinf(values).argmax()))
            return values, valid & ~np.isnan(values)
        if self._are_integers:
            codes = np.where(valid, np.maximum(as_integers(array, error), _NO_LABEL), _NO_LABEL)
            self._greatest = max(self._greatest, int(codes.max(initial=-1)))
            return codes, codes >= 0
        encoded = array.dictionary_encode()
        known = [self._codes.setdefault(value, len(self._codes)) for value in encoded.dictionary.to_pylist()]
        places = encoded.indices.fill_null(len(known)).to_numpy(zero_copy_only=False)
        return np.asarray([*known, _NO_LABEL], np.int64)[places], valid

    def to_dict(self) -> dict[str, Any]:
        """What is known at the end, in JSON's types: names of the classes, and the final number of each preliminary."""
        if self._is_regression:
            return {"class_names": None, "final": None}
        if self._are_integers:
            names = list(map(str, range(self._greatest + 1))) if self._greatest < 1 << 12 else None
            return {"class_names": names, "num_classes": self._greatest + 1, "final": None}
        ordered = sorted(self._codes)
        final = [0] * len(ordered)
        for number, value in enumerate(ordered):
            final[self._codes[value]] = number
        return {"class_names": list(map(str, ordered)), "num_classes": len(ordered), "final": final}


def split_codes(chunk: CheckedChunk, column: str) -> Array:
    """uint8 ``[n]``: 1, 2 or 3 for rows that train, validate or test, 0 for others; of the rows that are kept."""
    array = chunk.kept(chunk.chunk.columns[column])
    if not (pa.types.is_integer(array.type) or pa.types.is_string(array.type) or pa.types.is_large_string(array.type)):
        raise TableError(f"{chunk.chunk.place.of(0, column)}: expected texts or integers as parts, found {array.type}")
    encoded = array.cast(pa.string()).fill_null("").dictionary_encode()
    values = encoded.dictionary.to_pylist()
    known = [_SPLIT_CODES.get(value.strip().lower(), 255) for value in values]
    codes: Array = np.asarray(known, np.uint8)[encoded.indices.to_numpy(zero_copy_only=False)]
    if (codes == 255).any():
        first = int((codes == 255).argmax())
        value = array[first].as_py()
        raise TableError(f"{chunk.kept_place(first, column)}: expected train, val or test, got {value!r}")
    return codes


class Splits:
    """Which nodes of a type train, validate and test: a byte for each node.

    Args:
        spec: by share of those that have a label, or by a column.
        num_nodes: of the type.
    """

    def __init__(self, spec: LabelSpec, num_nodes: int) -> None:
        self._spec = spec
        self._marks = np.zeros(num_nodes, np.uint8)  # by node: its part, or where shares decide, whether it has a label

    def see(self, ids: Array, codes: Array | None, labelled: Array | None) -> None:
        """Notes the parts of nodes (``split_codes``), and which have labels (None: all)."""
        marks = np.ones(len(ids), np.uint8) if codes is None else codes
        self._marks[ids] = marks if labelled is None else marks * labelled

    def write(self, root: Path, key: NodeKey, seed: int) -> Iterator[ArrayFile]:
        """Writes the ids of each part, ascending."""
        spec = self._spec
        if spec.split_pct is not None:
            self._draw(spec.split_pct, seed, key)
        elif spec.split_column is None:
            return
        pieces = (self._marks[first : first + _AT_ONCE] for first in range(0, len(self._marks), _AT_ONCE))
        counts = sum((np.bincount(piece, minlength=4) for piece in pieces), np.zeros(4, np.int64))
        for code, name in enumerate(SPLITS, 1):
            if spec.split_pct is None and not counts[code]:
                continue
            with ArrayWriter(root, array_path("node_split", key, name), torch.int64, (int(counts[code]),)) as writer:
                for first in range(0, len(self._marks), _AT_ONCE):
                    ids = np.flatnonzero(self._marks[first : first + _AT_ONCE] == code) + first
                    writer.append(torch.from_numpy(ids))
                yield writer.finish()

    def _draw(self, shares: tuple[float, float, float], seed: int, key: NodeKey) -> None:
        """Parts of the nodes with labels: exact shares of them, by a keyed permutation of their order."""
        total = int(np.count_nonzero(self._marks))
        ends = np.minimum(np.rint(np.cumsum(shares) * total), total).astype(np.int64)
        digest = hashlib.blake2b(f"split/{seed}/{key or ''}".encode(), digest_size=8).digest()
        permutation, rank = int.from_bytes(digest, "little"), 0
        for first in range(0, len(self._marks), _AT_ONCE):
            marks = self._marks[first : first + _AT_ONCE]
            labelled = np.flatnonzero(marks)
            ranks = torch.arange(rank, rank + len(labelled))
            places = to_tensor(_C.permute(ranks, total, permutation)).numpy() if total else ranks.numpy()
            marks[labelled] = (np.searchsorted(ends, places, side="right") + 1) % 4
            rank += len(labelled)
