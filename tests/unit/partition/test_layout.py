"""Opening partition directories: foreign, truncated and altered ones are refused by name."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from graphlearn_dist.errors import InvalidArgumentError, PartitionFormatError
from graphlearn_dist.partition import RandomPartitioner, TablePartitioner, layout, load_partition, load_partition_layout

from .graphs import homo_inputs


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return RandomPartitioner(tmp_path / "g", 2, **homo_inputs()).partition()


@pytest.fixture
def table_directory(tmp_path: Path) -> Path:
    return TablePartitioner(tmp_path / "t", 2, node_owners=torch.arange(53) % 2, **homo_inputs()).partition()


def flip_last_byte(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 0x80
    path.write_bytes(data)


def edit_meta(directory: Path, edit: Callable[[dict[str, Any]], None]) -> None:
    meta = json.loads((directory / "META.json").read_text())
    edit(meta)
    (directory / "META.json").write_text(json.dumps(meta))


def test_arrays_are_private_copies_on_write(directory: Path) -> None:
    first, second = (load_partition_layout(directory).open_partition(0).node_feats[None] for _ in range(2))
    before = second.clone()
    first.fill_(-1)
    assert torch.equal(second, before)
    assert torch.equal(load_partition_layout(directory).open_partition(0, verify=True).node_feats[None], before)


@pytest.mark.parametrize("name", ["graph/indices", "graph/indptr", "node_feat/x", "node_label/y", "edge_feat/x"])
def test_altered_file(directory: Path, name: str) -> None:
    flip_last_byte(directory / f"part1/{name}.npy")
    opened = load_partition_layout(directory)
    opened.open_partition(0)
    with pytest.raises(PartitionFormatError, match=rf"part1/{name}.npy: altered: expected CRC-32 [0-9a-f]{{8}}, found"):
        opened.open_partition(1)


def test_large_partitions_are_verified_only_when_asked(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flip_last_byte(directory / "part1/node_feat/x.npy")
    monkeypatch.setattr(layout, "VERIFY_UP_TO_BYTES", 100)
    opened = load_partition_layout(directory)
    opened.open_partition(1)
    with pytest.raises(PartitionFormatError, match="altered"):
        opened.open_partition(1, verify=True)
    with pytest.raises(PartitionFormatError, match="altered"):
        load_partition(directory, 1, verify=True)
    load_partition(directory, 1, verify=False)


@pytest.mark.parametrize("name", ["part0/graph/edge_ids.npy", "node_split/train.npy"])
def test_truncated_file(directory: Path, name: str) -> None:
    path = directory / name
    size = path.stat().st_size
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(PartitionFormatError, match=rf"{name}: expected {size} bytes, found {size - 4}"):
        load_partition_layout(directory, verify=False)


def test_missing_file(directory: Path) -> None:
    (directory / "part0/graph/indices.npy").unlink()
    with pytest.raises(PartitionFormatError, match=r"part0/graph/indices.npy: expected \d+ bytes, got .*No such file"):
        load_partition_layout(directory)


def test_one_partition_is_enough(directory: Path) -> None:
    shutil.rmtree(directory / "part0")
    opened = load_partition_layout(directory)
    opened.open_partition(1)
    with pytest.raises(PartitionFormatError, match=r"part0/graph/indptr\.npy"):
        opened.open_partition(0)


@pytest.mark.parametrize("name", ["owners", "rows"])
def test_altered_book(table_directory: Path, name: str) -> None:
    flip_last_byte(table_directory / f"node_book/{name}.npy")
    with pytest.raises(PartitionFormatError, match=rf"node_book/{name}.npy: altered"):
        load_partition_layout(table_directory)
    with pytest.raises(PartitionFormatError, match=name):  # no checksum needed: the table itself is inconsistent
        load_partition_layout(table_directory, verify=False).node_book(None, 0)


def test_not_a_partition_directory(tmp_path: Path) -> None:
    with pytest.raises(PartitionFormatError, match=r"META.json: not found; .* is no \(complete\) partition directory"):
        load_partition_layout(tmp_path)
    (tmp_path / "META.json").write_text("{")
    with pytest.raises(PartitionFormatError, match="expected JSON"):
        load_partition_layout(tmp_path)
    (tmp_path / "META.json").write_text('{"num_parts": 2, "data_cls": "homo"}')
    with pytest.raises(PartitionFormatError, match="expected format 'graphlearn-dist-partition', found None"):
        load_partition_layout(tmp_path)


Edit = Callable[[dict[str, Any]], Any]
EDITS: list[tuple[Edit, str]] = [
    (lambda meta: meta.update(version=3), "expected version 1 or 2, found 3"),
    (lambda meta: meta.pop("edges"), "META.json: damaged: KeyError"),
    (lambda meta: meta.update(num_parts=3), "expected a book of 53 ids in 3 partitions, found 53 in 2"),
    (lambda meta: meta.update(edge_dir="both"), "edge_dir 'both'"),
    (lambda meta: meta["nodes"][0].update(count=54), "expected a book of 54 ids"),
    (lambda meta: meta["nodes"][0]["book"].update(kind="other"), "expected kind range, permuted or table, got 'other'"),
    (lambda meta: meta["edges"][0].update(part_counts=[1, 1]), "do not add up"),
    (lambda meta: meta["files"][0].update(path="../x.npy"), "not a relative path"),
    (lambda meta: meta["files"][0].update(path="/x.npy"), "not a relative path"),
    (lambda meta: meta["files"][0].update(dtype="object"), "known dtype"),
    (lambda meta: meta["files"][0].pop("crc32"), "KeyError\\('crc32'\\)"),
]


@pytest.mark.parametrize(("edit", "text"), EDITS)
def test_edited_meta(directory: Path, edit: Edit, text: str) -> None:
    edit_meta(directory, edit)
    with pytest.raises(PartitionFormatError, match=text):
        load_partition_layout(directory)


def test_file_that_is_not_what_meta_says(directory: Path) -> None:
    def lie(meta: dict[str, Any]) -> None:
        for file in meta["files"]:
            if file["path"] == "part0/node_feat/x.npy":
                file["shape"][1] = 3

    edit_meta(directory, lie)
    with pytest.raises(PartitionFormatError, match=r"expected float32 \[27, 3\], found float32 \[27, 2\]"):
        load_partition_layout(directory).open_partition(0)


def test_file_with_the_wrong_number_of_rows(directory: Path) -> None:
    def lie(meta: dict[str, Any]) -> None:
        for file in meta["files"]:
            if file["path"] == "part0/node_label/y.npy":
                file["shape"][0] = 26

    edit_meta(directory, lie)
    with pytest.raises(PartitionFormatError, match=r"y\.npy: expected 27 rows"):
        load_partition_layout(directory).open_partition(0)


def test_arguments(directory: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="partition_idx: expected 0 to 1, got 2"):
        load_partition_layout(directory).open_partition(2)
    with pytest.raises(InvalidArgumentError, match="device"):
        load_partition(directory, 0, device="cuda:0")
