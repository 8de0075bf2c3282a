"""Tensors that a second process maps: values arrive, nothing is copied twice, nothing is left."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from graphlearn_dist.data import Dataset, Feature, Topology
from graphlearn_dist.data.shared_memory import _file_at, from_handle, share, share_all, to_handle
from graphlearn_dist.distributed import DistDataset
from graphlearn_dist.errors import StorageError
from graphlearn_dist.messages import TensorHandle
from graphlearn_dist.partition import TablePartitioner
from tests.support.graphs import analytic_edges, make_dataset, random_graph, typed_graph
from tests.support.processes import run_processes

HERE = "tests.unit.data.test_shared_memory"
DEADLINE_S = 60.0  # only ever reached by a hang
DTYPES = [
    torch.bool,
    torch.uint8,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
]


def handle_of(fields: dict[str, Any]) -> TensorHandle:
    return TensorHandle(**{**fields, "shape": tuple(fields["shape"])})


def read_elsewhere(handles: list[dict[str, Any]]) -> list[Any]:
    """In a second process: dtype, values and shape of each tensor; then overwrites its own view of it."""
    seen = []
    for fields in handles:
        tensor = from_handle(handle_of(fields))
        seen.append([str(tensor.dtype), tensor.double().view(-1).tolist(), list(tensor.shape)])
        tensor.zero_()
    return seen


def test_a_second_process_maps_the_values_and_writes_for_itself_alone(tmp_path: Path) -> None:
    tensors = [torch.tensor([[1, 0], [1, 1], [0, 1]]).to(dtype) for dtype in DTYPES]
    tensors += [torch.arange(5000.0), torch.empty(0, 3), torch.arange(10).view(2, 5).t()]  # one is not contiguous
    shared = [share(tensor) for tensor in tensors]
    views = [shared[8][1234:1240], shared[8][5:]]  # parts of shared memory are shared, too
    file = tmp_path / "rows.bin"
    file.write_bytes(bytes(4096) + torch.arange(300, dtype=torch.int64).numpy().tobytes())
    mapped = from_handle(TensorHandle(str(file), 4096 + 80, "int64", (100, 2)))
    everything = [*shared, *views, mapped]
    (seen,) = run_processes(
        [(f"{HERE}.read_elsewhere", {"handles": [asdict(to_handle(tensor)) for tensor in everything]})], DEADLINE_S
    )
    for tensor, (dtype, values, shape) in zip(everything, seen, strict=True):
        assert dtype == str(tensor.dtype)
        assert shape == list(tensor.shape)
        assert values == tensor.double().view(-1).tolist()
    for tensor, original in zip(shared, tensors, strict=True):
        assert torch.equal(tensor, original)  # whatever the other process wrote
    assert mapped.view(-1).tolist() == list(range(10, 210))


def test_sharing_copies_once_and_files_never(tmp_path: Path) -> None:
    private = torch.arange(1000)
    shared = share(private)
    assert shared.data_ptr() != private.data_ptr()
    assert share(shared).data_ptr() == shared.data_ptr()
    file = tmp_path / "rows.bin"
    file.write_bytes(torch.arange(1000).numpy().tobytes())
    for mapped in (
        from_handle(TensorHandle(str(file), 0, "int64", (1000,))),
        torch.from_file(str(file), shared=True, size=1000, dtype=torch.int64),
    ):
        assert share(mapped) is mapped
        assert to_handle(mapped[7:]) == TensorHandle(str(file), 56, "int64", (993,))
        assert torch.equal(from_handle(to_handle(mapped[7:])), torch.arange(7, 1000))
        feature = Feature(mapped, dtype=None).share_memory_()
        assert feature.feature_tensor.data_ptr() == mapped.data_ptr()


def test_what_cannot_be_shared_or_mapped(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"call share\(\) first"):
        to_handle(torch.arange(1000))
    with pytest.raises(StorageError, match="cannot map"):
        from_handle(TensorHandle(str(tmp_path / "nothing"), 0, "int64", (1,)))
    short = tmp_path / "short.bin"
    short.write_bytes(bytes(15))
    with pytest.raises(StorageError, match="expected at least 16 bytes"):
        from_handle(TensorHandle(str(short), 0, "int64", (2,)))
    deleted = tmp_path / "deleted.bin"
    deleted.write_bytes(bytes(8000))
    mapped = from_handle(TensorHandle(str(deleted), 0, "int64", (1000,)))
    deleted.unlink()
    assert share(mapped) is not mapped  # no other process could open it any more
    assert torch.equal(from_handle(to_handle(share(mapped))), mapped)


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        (0x0FFF, None),  # below all maps
        (0x1000, ("/data/a file", 0x200000)),
        (0x2FFF, ("/data/a file", 0x201FFF)),
        (0x3000, ("/data/b", 0)),  # its neighbor's end
        (0x4000, None),  # a hole
        (0x7FFF, None),
        (0x8000, None),  # anonymous
        (0x9000, None),  # named by the kernel
        (0xA000, None),  # no other process could open it
        (0xB000, None),
        (0xC000, ("/data/b", 0x1000)),
        (0xD000, None),  # above all maps
    ],
)
def test_the_file_at_an_address(address: int, expected: tuple[str, int] | None) -> None:
    maps = [
        "1000-3000 r--p 00200000 08:01 11                       /data/a file\n",
        "3000-4000 r--p 00000000 08:01 12                       /data/b\n",
        "8000-9000 rw-p 00000000 00:00 0 \n",
        "9000-a000 rw-p 00000000 00:00 0                        [heap]\n",
        "a000-b000 r--p 00000000 08:01 13                       /data/c (deleted)\n",
        "b000-c000 rw-s 00000000 00:01 14                       /dev/shm/d\n",
        "c000-d000 r--p 00001000 08:01 12                       /data/b\n",
    ]
    assert _file_at(address, maps) == expected


def test_share_all_and_topologies() -> None:
    assert share_all(None) is None
    made = share_all({"a": torch.arange(3), "b": {"c": torch.arange(4)}})
    assert torch.equal(from_handle(to_handle(made["b"]["c"])), torch.arange(4))
    topology = Topology(analytic_edges(50))
    expected = [topology[name].clone() for name in ("indptr", "indices", "edge_ids")]
    topology.share_memory_()
    for name, values in zip(("indptr", "indices", "edge_ids"), expected, strict=True):
        assert torch.equal(from_handle(to_handle(topology[name])), values)
    feature = Feature(torch.arange(3.0)[:, None], torch.tensor([2, -1, 0, 1]))
    before = feature[torch.tensor([0, 3])]
    assert torch.equal(feature.share_memory_()[torch.tensor([0, 3])], before)


@pytest.mark.parametrize("typed", [False, True])
def test_a_dataset_through_its_handle(typed: bool) -> None:
    """What a sampling worker maps is what the server holds, and the same memory."""
    graph = typed_graph(30, 12, 90, 1, explicit_edge_ids=True) if typed else random_graph(40, 200, 1)
    whole = DistDataset.from_dataset(make_dataset(graph, "in"))
    opened = DistDataset.from_ipc_handle(whole.share_ipc())
    assert opened.schema == whole.schema
    opened.validate()
    for name, store in whole.stores().items():
        assert torch.equal(opened.stores()[name].feature_tensor, store.feature_tensor)
    for edge_type in graph.edges:
        mine, other = whole.get_graph(edge_type), opened.get_graph(edge_type)
        assert mine is not None
        assert other is not None
        assert all(torch.equal(a, b) for a, b in zip(mine.export_topology(), other.export_topology(), strict=True))


def test_shared_memory_goes_with_its_last_tensor() -> None:
    """And is not mistaken for whatever is mapped at its address next: each block here takes the place of the last."""
    before, places = len(os.listdir("/proc/self/fd")), set()
    for value in range(30):
        shared = share(torch.full((100_000,), value))
        part = shared[5:10]
        del shared
        places.add(part.data_ptr())
        assert torch.equal(from_handle(to_handle(part)), torch.full((5,), value))
        del part
    assert len(places) < 30  # addresses were used again
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_handle_never_leads_to_other_memory() -> None:
    """The number of a descriptor is another's as soon as it is closed: here it is that of memory of the same size."""
    first = share(torch.arange(100))
    handle = to_handle(first)
    assert from_handle(handle)[7] == 7
    mapped = from_handle(handle)
    del first
    other = share(-torch.arange(100))
    with pytest.raises(StorageError, match=r"/proc/.*keep the object that was shared"):
        from_handle(replace(handle, path=to_handle(other).path))
    assert replace(handle, path=to_handle(other).path) != to_handle(other)
    with pytest.raises(StorageError, match="/proc/"):
        from_handle(handle)
    assert mapped[7] == 7  # who has opened it keeps it


def test_mapping_leaves_no_descriptor_open() -> None:
    handle = to_handle(shared := share(torch.arange(1000)))
    before = len(os.listdir("/proc/self/fd"))
    tensors = [from_handle(handle) for _ in range(20)]
    assert all(torch.equal(tensor, shared) for tensor in tensors)
    del tensors
    assert len(os.listdir("/proc/self/fd")) == before


def test_table_books_stay_shared_while_the_dataset_lives(tmp_path: Path) -> None:
    """Tables are few bytes beside features, and easily dropped while a handle still names them."""
    owners = torch.arange(20) % 2
    partitioner = TablePartitioner(str(tmp_path / "parts"), 2, 20, analytic_edges(20), node_owners=owners)
    dataset = DistDataset()
    dataset.load(partitioner.partition(), 1)
    book = dataset.node_pb
    book.owners, book.rows = book.owners.clone(), book.rows.clone()  # as if made in memory
    handle = dataset.share_ipc()
    reused = [share(torch.zeros(20, dtype=torch.int64)) for _ in range(4)]
    opened = DistDataset.from_ipc_handle(handle)
    assert torch.equal(opened.node_pb[torch.arange(20)], owners)
    assert len(reused) == 4


def test_a_data_set_is_shared_once_whoever_asks() -> None:
    edges = torch.randint(0, 2000, (2, 60_000), generator=torch.Generator().manual_seed(0))
    dataset = Dataset(edge_dir="in")
    dataset.init_graph(edges, edge_weights=torch.ones(60_000), num_nodes=2000)
    dataset.init_node_features(torch.zeros(2000, 64))
    whole = DistDataset.from_dataset(dataset)
    together = threading.Barrier(4)

    def share(_: int) -> Any:
        together.wait(30)
        return whole.share_ipc()

    with ThreadPoolExecutor(4) as threads:
        handles = list(threads.map(share, range(4)))
    assert all(handle == handles[0] for handle in handles)
    for handle in handles:
        assert torch.equal(DistDataset.from_ipc_handle(handle).graph.topo.indices, whole.graph.topo.indices)


@pytest.mark.parametrize(
    ("offset", "dtype", "shape", "message"),
    [
        (0, "no dtype", (1,), "expected a dtype"),
        (0, "Tensor", (1,), "expected a dtype"),
        (-8, "int64", (1,), "an offset of at least 0"),
        (0, "int64", (-1, -1), "extents"),
        (0, "int64", (1 << 62, 2), "expected at least"),
        (8, "int64", (2,), "expected at least 24 bytes"),
    ],
)
def test_handles_of_wrong_sizes(tmp_path: Path, offset: int, dtype: str, shape: tuple[int, ...], message: str) -> None:
    file = tmp_path / "array.bin"
    file.write_bytes(bytes(16))
    with pytest.raises(StorageError, match=message):
        from_handle(TensorHandle(str(file), offset, dtype, shape))


def test_a_handle_of_no_memory_has_no_entries() -> None:
    assert from_handle(TensorHandle("", 0, "float32", (0, 3))).shape == (0, 3)
    with pytest.raises(StorageError, match="and a file, got"):
        from_handle(TensorHandle("", 0, "int64", (4,)))
