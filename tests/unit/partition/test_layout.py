"""Opening partition directories: foreign, truncated and altered ones are refused by name."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch

from graphlearn_dist.distributed import DistDataset
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


def file_of(meta: dict[str, Any], path: str) -> dict[str, Any]:
    found: dict[str, Any] = next(file for file in meta["files"] if file["path"] == path)
    return found


Edit = Callable[[dict[str, Any]], Any]
EDITS: list[tuple[Edit, str]] = [
    (lambda meta: meta.update(version=3), "expected version 1 or 2, found 3"),
    (lambda meta: meta.pop("edges"), "META.json: damaged: KeyError"),
    (lambda meta: meta.update(num_parts=3), "expected a book of 53 ids in 3 partitions, found 53 in 2"),
    (lambda meta: meta.update(edge_dir="both"), "edge_dir 'both'"),
    (lambda meta: meta["nodes"][0].update(count=54), "expected a book of 54 ids"),
    (
        lambda meta: meta["nodes"][0]["book"].update(kind="other"),
        "permuted, table or zones, got 'other'",
    ),
    (lambda meta: meta["edges"][0].update(part_counts=[1, 1]), "do not add up"),
    (lambda meta: meta["files"][0].update(path="../x.npy"), "not a relative path"),
    (lambda meta: meta["files"][0].update(path="/x.npy"), "not a relative path"),
    (lambda meta: meta["files"][0].update(dtype="object"), "known dtype"),
    (lambda meta: meta["files"][0].pop("crc32"), "KeyError\\('crc32'\\)"),
    (lambda meta: meta["files"][0].update(crc32="no"), "a CRC-32"),
    (lambda meta: meta["files"][0].update(path="a\0b"), "not a relative path"),
    (lambda meta: meta["files"][0].update(path="\ud800"), "not a relative path"),
    (lambda meta: meta["files"][0].update(bytes=-1), "bytes of at least 0"),
    (lambda meta: meta["files"].append(meta["files"][0]), "expected each path once"),
    (
        lambda meta: meta["files"].remove(file_of(meta, "part1/graph/weights.npy")),
        r"for each of 2 partitions, found \[0",
    ),
    (lambda meta: meta.update(num_parts=float("inf")), "num_parts: expected an integer"),
    (lambda meta: meta.update(num_parts=10**40), "num_parts: expected an integer"),
    (lambda meta: meta.update(nodes=[]), "types: expected some of nodes and of edges"),
    (lambda meta: meta.update(nodes=["x"]), "damaged: TypeError"),
    (lambda meta: meta["nodes"].append(meta["nodes"][0]), "each once"),
    (lambda meta: meta["nodes"][0].update(type="user"), "are no edges between"),
    (lambda meta: meta["nodes"][0].update(count=True), "count: expected an integer"),
    (lambda meta: meta["nodes"][0].update(part_counts=[53, 0]), "are not the sizes that the book gives"),
    (lambda meta: meta["nodes"][0].update(earliest=53), "earliest: expected an integer from 0 to 52, found 53"),
    (lambda meta: meta["nodes"][0]["book"].update(num_ids=1 << 62), "expected a book of 53 ids"),
    (lambda meta: meta["nodes"][0].update(book={"kind": "range", "bounds": [0, 1 << 63]}), "bounds"),
    (lambda meta: meta["nodes"][0].update(book=None), "expected the description of a book, found None"),
    (lambda meta: meta["edges"][0].update(type=["a", "b"]), "type of edges: expected three texts or null"),
    (lambda meta: meta["edges"][0].update(part_counts=[-1, 401]), "part_counts.0.: expected an integer"),
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
    with pytest.raises(InvalidArgumentError, match=r"graph_caching: expected True or False, got device\(type='cpu'\)"):
        load_partition(directory, 0, torch.device("cpu"))  # type: ignore[arg-type]


def resize(path: Path, change: Callable[[bytes], bytes]) -> int:
    data = change(path.read_bytes())
    path.write_bytes(data)
    return len(data)


def say(directory: Path, path: str, **fields: Any) -> None:
    edit_meta(directory, lambda meta: file_of(meta, path).update(fields))


@pytest.mark.parametrize("name", ["graph/indices", "graph/indptr", "node_feat/x", "node_label/y"])
@pytest.mark.parametrize("change", [lambda data: data[:-8], lambda data: data[:90], lambda data: data + b"12345678"])
def test_a_size_that_meta_knows_and_the_header_does_not(directory: Path, name: str, change: Any) -> None:
    """What lies beyond the end of a file may be mapped, and reading it would end the process."""
    path = f"part1/{name}.npy"
    say(directory, path, bytes=resize(directory / path, change))
    with pytest.raises(PartitionFormatError, match=rf"{path}: expected (\d+ bytes for|a .npy array)"):
        load_partition_layout(directory).open_partition(1, verify=False)


def test_a_shape_that_is_larger_than_the_file(directory: Path) -> None:
    path = "part1/node_feat/x.npy"
    rows = load_partition_layout(directory).files[path].shape[0]
    old, new = f"({rows}, 2)".encode(), f"({rows}, 9)".encode()
    resize(directory / path, lambda data: data.replace(old, new))
    say(directory, path, shape=[rows, 9])
    with pytest.raises(PartitionFormatError, match=rf"{path}: expected \d+ bytes for float32 \[{rows}, 9\], found"):
        load_partition_layout(directory).open_partition(1, verify=False)


def test_threads_that_disturb_pythons_parser(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The files are sound: headers are parsed again. A parser that never works is an error all the same."""
    read = numpy.lib.format.read_array_header_1_0
    failures = [3]

    def disturbed(opened: Any) -> Any:
        header = read(opened)
        if failures[0]:
            failures[0] -= 1
            raise SystemError("AST constructor recursion depth mismatch (before=93, after=90)")
        return header

    expected = load_partition_layout(directory).open_partition(1)
    monkeypatch.setattr(numpy.lib.format, "read_array_header_1_0", disturbed)
    found = load_partition_layout(directory).open_partition(1)
    assert failures == [0]
    assert str(found) == str(expected)
    failures[0] = -1
    with pytest.raises(PartitionFormatError, match="recursion depth mismatch"):
        load_partition_layout(directory).open_partition(1)


@pytest.mark.parametrize("data", [b"", b"\x93NUMPY", b"PK\x03\x04" * 40, b"\x93NUMPY\x01\x00\xff\xff{'descr'"])
def test_what_is_no_array(directory: Path, data: bytes) -> None:
    path = "part1/graph/indices.npy"
    say(directory, path, bytes=resize(directory / path, lambda _: data))
    with pytest.raises(PartitionFormatError, match=f"{path}: expected a .npy array"):
        load_partition_layout(directory).open_partition(1, verify=False)


@pytest.mark.parametrize("node", [-1, 53, 1 << 62])
def test_splits_that_name_no_nodes(directory: Path, node: int) -> None:
    resize(directory / "node_split/train.npy", lambda data: data[:-8] + node.to_bytes(8, "little", signed=True))
    with pytest.raises(PartitionFormatError, match=rf"train.npy: expected ids in \[0, 53\), found {node}"):
        load_partition_layout(directory, verify=False)


def test_splits_that_share_a_node(directory: Path) -> None:
    resize(directory / "node_split/train.npy", lambda data: data[:-8] + (30).to_bytes(8, "little"))
    for use in (load_partition_layout, lambda root, verify: DistDataset().load(root, 0, verify=verify)):
        with pytest.raises(
            PartitionFormatError, match="node_split: expected no node in two parts, got node 30 in train"
        ):
            use(directory, verify=False)


@pytest.mark.parametrize("name", ["node_feat/x", "node_label/y", "edge_feat/x"])
@pytest.mark.parametrize("changes_dtype", [False, True])
def test_rows_that_are_others_in_another_partition(directory: Path, name: str, changes_dtype: bool) -> None:
    """Whichever partition is opened: the other one need not be on this machine."""
    path = f"part1/{name}.npy"
    file = load_partition_layout(directory).files[path]
    if changes_dtype:
        say(directory, path, dtype="float16")
    else:
        say(directory, path, shape=[*file.shape, 1])
    text = rf"part0/{name}.npy: expected rows of one dtype and shape in all partitions, found .* in {path}"
    shutil.rmtree(directory / "part1")
    with pytest.raises(PartitionFormatError, match=text):
        load_partition_layout(directory).open_partition(0, verify=False)
    with pytest.raises(PartitionFormatError, match=text):
        DistDataset().load(directory, 0, verify=False)


def test_weights_that_are_none_name_their_file(directory: Path) -> None:
    resize(directory / "part0/graph/weights.npy", lambda data: data[:-4] + b"\x00\x00\xc0\x7f")
    dataset = DistDataset()
    dataset.load(directory, 0, verify=False)
    with pytest.raises(PartitionFormatError, match=r"part0/graph/weights.npy: edge_weights\[\d+\]: expected a finite"):
        dataset.graph.weighted_handler  # noqa: B018
