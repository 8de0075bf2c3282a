"""Tables of edges and nodes, from files, columns, records, and readers of a program's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from graphlearn_dist.data.tables import feature_column, id_column, read_columns
from graphlearn_dist.errors import InvalidArgumentError, StorageError

RECORDS = [(0, "0.5:1"), (2, "1.5:2"), (1, "2.5:3")]
FEATURES = torch.tensor([[0.5, 1.0], [1.5, 2.0], [2.5, 3.0]])


def tables(folder: Path) -> dict[str, Any]:
    """The same table in every form."""
    text = "".join(f"{number},{feature}\n" for number, feature in RECORDS)
    (folder / "t.csv").write_text(text)
    (folder / "t.tsv").write_text(text.replace(",", "\t"))
    np.savez(folder / "t.npz", ids=np.array([0, 2, 1]), feat=FEATURES.numpy())
    return {
        "csv": str(folder / "t.csv"),
        "tsv": folder / "t.tsv",
        "npz": folder / "t.npz",
        "columns": (torch.tensor([0, 2, 1]), FEATURES),
        "named columns": {"id": np.array([0, 2, 1]), "feat": FEATURES},
        "records": RECORDS,
        "bytes": [(number, feature.encode()) for number, feature in RECORDS],
        "numbers": [(number, [float(x) for x in feature.split(":")]) for number, feature in RECORDS],
        "generator": lambda part, num_parts: iter(RECORDS[3 * part // num_parts : 3 * (part + 1) // num_parts]),
    }


def test_forms(tmp_path: Path) -> None:
    for form, table in tables(tmp_path).items():
        ids, features = read_columns(table, form)
        assert torch.equal(id_column(ids, form), torch.tensor([0, 2, 1]))
        assert torch.equal(feature_column(features, form).float(), FEATURES)
        parts = [read_columns(table, form, part, 2) for part in range(2)]
        assert [id_column(part[0], form).tolist() for part in parts] == [[0], [2, 1]]


def test_parquet(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    rows = {"id": [0, 2, 1], "feat": [[0.5, 1.0], [1.5, 2.0], [2.5, 3.0]]}
    parquet.write_table(pyarrow.table(rows), tmp_path / "t.parquet")
    ids, features = read_columns(tmp_path / "t.parquet", "table")
    assert torch.equal(id_column(ids, "table"), torch.tensor([0, 2, 1]))
    assert torch.equal(feature_column(features, "table"), FEATURES)


@pytest.mark.parametrize(
    ("table", "error", "message"),
    [
        (3, InvalidArgumentError, "table: expected a file, columns, records or a callable"),
        ("odps://project/tables/edges", InvalidArgumentError, "table: expected a .csv, .* or a callable that gives"),
        ("nowhere.csv", StorageError, "table: nowhere.csv cannot be read"),
        ((torch.arange(2), torch.arange(3)), InvalidArgumentError, r"columns of one length, got \[2, 3\]"),
    ],
)
def test_what_is_no_table(table: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        read_columns(table, "table")


def test_what_is_no_column() -> None:
    with pytest.raises(InvalidArgumentError, match="t: expected a column of ids: invalid literal"):
        id_column(["1", "x"], "t")
    with pytest.raises(InvalidArgumentError, match=r"t: expected a column of ids, got torch.float32 \[2\]"):
        id_column(torch.zeros(2), "t")
    for wrong in (["1:2", "1"], ["1:x"]):
        with pytest.raises(InvalidArgumentError, match="t: expected rows of numbers, or texts"):
            feature_column(wrong, "t")


def test_a_file_without_a_suffix_has_tabs(tmp_path: Path) -> None:
    (tmp_path / "edges").write_text("0\t1\n1\t2\n")
    columns = read_columns(tmp_path / "edges", "table")
    assert [id_column(column, "table").tolist() for column in columns] == [[0, 1], [1, 2]]
