"""Rows in the memories of GPUs and the host, what other processes see of them, and what they take."""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.multiprocessing as mp

from graphlearn_dist import _C
from graphlearn_dist.data import Dataset, DeviceGroup, Feature, UnifiedTensor, shared_memory
from graphlearn_dist.data.device.pinned_memory import pin
from graphlearn_dist.errors import UnknownIdError
from graphlearn_dist.loader import NeighborLoader
from tests.support.gpu import needs_gpu
from tests.support.processes import run_processes
from tests.support.waiting import collect

pytestmark = needs_gpu
HERE = "tests.gpu.test_gpu_rows"
DEADLINE_S = 120.0  # only ever reached by a hang
NUM_ROWS, WIDTH = 8192, 64
MIB = 1 << 20


def make_rows() -> torch.Tensor:
    return torch.arange(NUM_ROWS * WIDTH, dtype=torch.float32).view(NUM_ROWS, WIDTH)


def make_ids(seed: int = 0) -> torch.Tensor:
    return torch.randint(0, NUM_ROWS, (20_000,), generator=torch.Generator().manual_seed(seed))


HOTNESS = torch.arange(NUM_ROWS) * 7919 % NUM_ROWS


@pytest.mark.parametrize("split_ratio", [0.0, 0.25, 1.0])
@pytest.mark.parametrize("hotness", [None, HOTNESS], ids=["first rows", "hottest rows"])
def test_hot_rows_change_no_lookup(split_ratio: float, hotness: Any) -> None:
    rows, ids = make_rows(), make_ids()
    table = torch.arange(NUM_ROWS).flip(0)
    table[5] = -1
    plain = Feature(rows, split_ratio=split_ratio, device=0, hotness=hotness)
    assert plain[ids].is_cuda
    assert torch.equal(plain[ids].cpu(), rows[ids])
    assert torch.equal(plain.cpu_get(ids), rows[ids])
    with pytest.raises(UnknownIdError, match=r"ids\[1\]: row 8192 is outside"):
        plain[torch.tensor([0, NUM_ROWS])]
    by_table = Feature(rows, table, split_ratio=split_ratio, device=0, hotness=hotness)
    held = ids[ids != 5]
    assert torch.equal(by_table[held.cuda()].cpu(), rows[table[held]])
    with pytest.raises(UnknownIdError, match="id 5 has no feature row here"):
        by_table[torch.tensor([5])]


def test_host_memory_is_pinned_where_it_lies() -> None:
    private = make_rows()
    shared = shared_memory.share(private)
    received = shared_memory.from_handle(shared_memory.to_handle(shared))
    for tensor in (private, shared, received, private[3:]):
        pinned = pin(tensor.clone() if tensor is private else tensor, 0)
        assert not pinned.is_copy
        assert _C.can_gpu_read(pinned.tensor, 0)
        assert torch.equal(pinned.tensor.to("cuda", non_blocking=True).cpu(), tensor)
    tensor = UnifiedTensor(0)
    tensor.init_from([private[:100], shared[100:]], [0, -1])
    assert tensor.memories == ["memory of GPU 0", "host memory"]
    assert torch.equal(tensor[make_ids()].cpu(), private[make_ids()])


def test_peers_hold_a_share_each() -> None:
    if torch.cuda.device_count() < 2 or not _C.cuda_can_access_peer(0, 1):
        pytest.skip("needs two GPUs that can read each other's memory")
    rows, ids = make_rows(), make_ids()
    groups = [DeviceGroup(0, [torch.device("cuda", 0), torch.device("cuda", 1)])]
    for gpu in (0, 1):
        feature = Feature(rows, split_ratio=0.5, device_group_list=groups, device=gpu, hotness=HOTNESS)
        found = feature[ids]
        assert found.device.index == gpu
        assert torch.equal(found.cpu(), rows[ids])


@pytest.mark.parametrize("split_ratio", [0.0, 0.25])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_a_cache_changes_no_lookup(split_ratio: float, dtype: torch.dtype) -> None:
    """By several streams in turn, on one of which is work that keeps it busy, and cast."""
    rows = make_rows()
    feature = Feature(
        rows, split_ratio=split_ratio, device=0, hotness=HOTNESS, out_dtype=dtype, device_cache=512 * WIDTH * 4
    )
    weights = torch.ones(2000, 2000, device="cuda")
    streams = [torch.cuda.Stream() for _ in range(2)]  # type: ignore[no-untyped-call]
    found: list[tuple[torch.Tensor, torch.Tensor]] = []
    for number in range(60):
        ids = (torch.rand(3000, generator=torch.Generator().manual_seed(number)) ** 4 * NUM_ROWS).long()
        with torch.cuda.stream(streams[number % 2]):
            weights = (weights @ weights).clamp(max=1.0)
            found.append((ids, feature[ids]))
    torch.cuda.synchronize()
    assert all(torch.equal(got.cpu(), rows[ids].to(dtype)) for ids, got in found)
    counts = feature.device_cache_counts
    assert counts is not None
    # 248 rows are cached. Of all lookups, 42 % are of the 248 rows that are looked up most.
    assert counts.hits > 0.3 * (counts.hits + counts.misses)


def test_a_cache_takes_the_memory_that_it_was_given() -> None:
    rows = torch.zeros(1 << 20, 128)  # 512 MiB
    Feature(rows[:10], split_ratio=1.0, device=0)[torch.tensor([0])]  # what the context and the first launch take
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    feature = Feature(rows, device=0, device_cache="100MB")
    feature.lazy_init_with_ipc_handle()
    assert 0.95 * 100e6 <= torch.cuda.memory_allocated() - before <= 100e6 * 1.05


def test_memory_taken_is_memory_promised() -> None:
    """Rows on the GPU take what they hold, to 5 %, with the words that say where each row lies."""
    rows = torch.zeros(1 << 22, 128)  # 2 GiB
    Feature(rows[:10], split_ratio=1.0, device=0)[torch.tensor([0])]  # what the context and the first launch take
    torch.cuda.empty_cache()
    torch.cuda.synchronize()
    before = torch.cuda.mem_get_info()[0]
    feature = Feature(rows, split_ratio=0.5, device=0, hotness=torch.arange(len(rows)))
    feature.lazy_init_with_ipc_handle()
    torch.cuda.synchronize()
    taken = before - torch.cuda.mem_get_info()[0]
    promised = rows.nbytes // 2 + 4 * len(rows)
    assert promised <= taken <= 1.05 * promised


def make_data(mode: str) -> Dataset:
    dataset = Dataset()
    edges = torch.randint(0, NUM_ROWS, (2, 20 * NUM_ROWS), generator=torch.Generator().manual_seed(2))
    dataset.init_graph(edges, num_nodes=NUM_ROWS, graph_mode=mode, device=None if mode == "CPU" else 0)
    dataset.init_node_features(make_rows(), split_ratio=0.0 if mode == "CPU" else 0.25, hotness="degree")
    return dataset


def make_loader(dataset: Dataset) -> NeighborLoader:
    return NeighborLoader(dataset, [4, 3], torch.arange(NUM_ROWS), batch_size=512, shuffle=True)


def first_batches(dataset: Dataset) -> list[tuple[torch.Tensor, ...]]:
    loader = make_loader(dataset)
    found = [loader.batch(0, index) for index in range(3)]
    return [(batch.n_id.cpu(), batch.edge_index.cpu(), batch.x.cpu()) for batch in found]


def use_received(inbox: Any, outbox: Any) -> None:
    """A child: makes batches from data sets and gathers from tensors that it is sent, and says what it took."""
    torch.zeros(1, device="cuda")
    while (received := inbox.get(timeout=DEADLINE_S)) is not None:
        taken = torch.cuda.memory_allocated()
        if isinstance(received, Dataset):
            outbox.put([tuple(one.numpy() for one in batch) for batch in first_batches(received)])
        else:
            outbox.put(received[make_ids()].cpu().numpy())
        del received
        outbox.put(taken)


def share_with_a_child() -> None:
    context = mp.get_context("spawn")
    inbox, outbox = context.Queue(), context.Queue()
    child = context.Process(target=use_received, args=(inbox, outbox), daemon=True)
    child.start()
    try:
        expected = first_batches(make_data("CPU"))
        for mode in ("CUDA", "ZERO_COPY"):
            dataset = make_data(mode)
            inbox.put(dataset)
            for one, other in zip(outbox.get(timeout=DEADLINE_S), expected, strict=True):
                assert all((a == b.numpy()).all() for a, b in zip(one, other, strict=True))
            outbox.get(timeout=DEADLINE_S)
        unified = UnifiedTensor(0)
        unified.init_from([make_rows()[:100], make_rows()[100:200], make_rows()[200:]], [0, -1, 0])
        feature = Feature(make_rows(), split_ratio=0.5, device=0, hotness=HOTNESS)
        for sent in (unified, feature):
            inbox.put(sent)
            assert (outbox.get(timeout=DEADLINE_S) == make_rows()[make_ids()].numpy()).all()
            outbox.get(timeout=DEADLINE_S)
        inbox.put(None)
        child.join(DEADLINE_S)
        assert child.exitcode == 0
    finally:
        child.kill()
        child.join(DEADLINE_S)


def test_another_process_reads_the_same_memory() -> None:
    run_processes([(f"{HERE}.share_with_a_child", {})], DEADLINE_S)


def test_a_handle_is_good_in_the_process_that_made_it() -> None:
    feature = Feature(make_rows(), split_ratio=0.5, device=0, hotness=HOTNESS)
    received = Feature.from_ipc_handle(feature.share_ipc())
    assert torch.equal(received[make_ids()].cpu(), make_rows()[make_ids()])
    sender = make_data("CUDA")
    data = Dataset.from_ipc_handle(sender.share_ipc())
    for one, other in zip(first_batches(data), first_batches(make_data("CPU")), strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_running_out_of_memory_is_an_error_and_nothing_else() -> None:
    """What the GPU has no room for raises torch's error, keeps nothing, and spoils nothing."""
    dataset = make_data("CUDA")
    expected = first_batches(make_data("CPU"))
    first_batches(dataset)  # graph and rows are in place
    too_much = Feature(torch.zeros(1 << 18, 128), split_ratio=1.0, device=0)  # 128 MiB
    too_large = NeighborLoader(dataset, [1000], torch.arange(NUM_ROWS), batch_size=NUM_ROWS, replace=True)  # 8 M edges
    collect()  # what other tests left in cycles
    torch.cuda.empty_cache()
    held, limit = torch.cuda.memory_allocated(), torch.cuda.memory_reserved() + 64 * MIB
    torch.cuda.set_per_process_memory_fraction(limit / torch.cuda.get_device_properties(0).total_memory)
    try:
        with pytest.raises(torch.OutOfMemoryError):
            too_much[torch.tensor([0])]
        with pytest.raises(torch.OutOfMemoryError):
            too_large.batch(0, 0)
        collect()  # tracebacks hold what had been taken
        assert torch.cuda.memory_allocated() == held
        for one, other in zip(first_batches(dataset), expected, strict=True):
            assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert too_much[torch.tensor([0])].shape == (1, 128)


def test_nothing_is_kept_over_ten_thousand_batches() -> None:
    dataset = make_data("CUDA")
    loader = NeighborLoader(dataset, [3, 2], torch.arange(NUM_ROWS), batch_size=8)

    def held() -> tuple[int, int, int]:
        torch.cuda.synchronize()
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return torch.cuda.memory_allocated(), torch.cuda.mem_get_info()[0], pages * mmap.PAGESIZE

    for number in range(11_000):
        loader.batch(*divmod(number, len(loader)))
        if number == 999:
            before = held()
    after = held()
    assert after[0] == before[0]
    assert before[1] - after[1] < 4 * MIB
    assert after[2] - before[2] < 16 * MIB
