"""Graphs in files that are damaged, or are something else."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from graphlearn_dist.data import GraphSource
from graphlearn_dist.errors import StorageError


@pytest.mark.parametrize("damage", [lambda data: data[:-30], lambda data: b"PK" + data[90:], lambda data: data[:60]])
def test_a_damaged_npz_is_refused_by_name(tmp_path: Path, damage: Any) -> None:
    path = tmp_path / "graph.npz"
    np.savez_compressed(path, edge_index=np.arange(200).reshape(2, 100))
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(StorageError, match=r"graph\.npz: cannot be read as \.npz"):
        GraphSource.from_npz(path)


def test_any_byte_may_be_another(tmp_path: Path) -> None:
    path = tmp_path / "graph.npz"
    np.savez_compressed(path, edge_index=np.arange(200).reshape(2, 100))
    flipped = bytearray(path.read_bytes())
    for at in range(0, len(flipped), 7):
        flipped[at] ^= 0x5A
        path.write_bytes(flipped)
        with contextlib.suppress(StorageError):
            GraphSource.from_npz(path)


def test_what_is_no_archive(tmp_path: Path) -> None:
    np.save(tmp_path / "graph.npy", np.arange(4))
    with pytest.raises(StorageError, match=r"cannot be read as \.npz"):
        GraphSource.from_npz(tmp_path / "graph.npy")
