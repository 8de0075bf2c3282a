"""Features that are read from their files behind a bounded cache: the same rows, and errors that name file and row."""

from __future__ import annotations

import itertools
import os
import pickle
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from graphlearn_dist import _C
from graphlearn_dist.data import Dataset, Feature, UnifiedTensor
from graphlearn_dist.data.disk_tier import Announced, DiskTier, FeatureMemory
from graphlearn_dist.data.feature import divide_memory
from graphlearn_dist.errors import InvalidArgumentError, StorageError, UnknownIdError
from graphlearn_dist.loader import NeighborLoader
from tests.support.oracle import assert_same, pyg_tensors


def mapped(path: Path, rows: torch.Tensor) -> torch.Tensor:
    """The rows in a file, mapped."""
    np.save(path, rows.numpy())
    return torch.from_numpy(np.load(path, mmap_mode="c"))


def numbered(num_rows: int, width: int) -> torch.Tensor:
    """Row r has r * width + j."""
    return torch.arange(num_rows * width, dtype=torch.float32).view(num_rows, width)


def test_rows_of_a_feature_are_those_of_the_file(tmp_path: Path) -> None:
    rows = numbered(5000, 33)
    feature = Feature(mapped(tmp_path / "x.npy", rows), dtype=None)
    assert feature.is_in_file
    feature.limit_memory(100 << 10)
    for seed in range(5):
        ids = torch.randint(5000, (2000,), generator=torch.Generator().manual_seed(seed))
        assert torch.equal(feature[ids], rows[ids])
        out = torch.zeros(2000, 33)
        feature.gather_into(out, torch.arange(1999, -1, -1), ids)
        assert torch.equal(out, rows[ids].flip(0))
    assert feature.disk_tier is not None
    counts = feature.disk_tier.counts
    assert counts["misses"] > 0
    assert counts["hits"] > 0
    assert counts["bytes"] >= counts["misses"] * 33 * 4 // 16
    with pytest.raises(UnknownIdError, match="row 5000 is outside"):
        feature[torch.tensor([5000])]
    feature.limit_memory(None)
    assert feature.disk_tier is None
    assert torch.equal(feature[ids], rows[ids])


def test_rows_in_memory_stay_there(tmp_path: Path) -> None:
    feature = Feature(numbered(10, 4))
    assert not feature.is_in_file
    feature.limit_memory(1)
    assert feature.disk_tier is None
    shared = Feature(numbered(10, 4)).share_memory_()
    assert not shared.is_in_file
    with pytest.raises(StorageError):
        DiskTier(torch.zeros(3, 2), 1000)
    unified = UnifiedTensor()
    unified.append_disk_tier(DiskTier(mapped(tmp_path / "x.npy", numbered(10, 4)), 1000))
    with pytest.raises(InvalidArgumentError, match="beside rows"):
        unified.append_cpu_tensor(torch.zeros(1, 4))


def test_memory_is_divided_by_size_and_what_fits_stays_mapped(tmp_path: Path) -> None:
    large = Feature(mapped(tmp_path / "a.npy", numbered(3000, 64)), dtype=None)
    small = Feature(mapped(tmp_path / "b.npy", numbered(1000, 64)), dtype=None)
    here = Feature(numbered(1000, 64))
    divide_memory([large, small, here], FeatureMemory(600_000, 400_000))
    assert large.disk_tier is not None
    assert small.disk_tier is not None
    assert here.disk_tier is None
    few = _C.DiskRows.least_bytes(1000, 256)
    left = (400_000 - 2 * few) // 4
    assert (large.disk_tier.memory_bytes, small.disk_tier.memory_bytes) == (few + left * 3, few + left)
    divide_memory([large, small, here], FeatureMemory(4000 * 64 * 4, 1))
    assert large.disk_tier is None
    assert small.disk_tier is None


def test_each_feature_has_room_for_a_few_rows(tmp_path: Path) -> None:
    """A type that is small beside others would get less by its size."""
    rows = numbered(200, 4), numbered(60_000, 32)
    features = [Feature(mapped(tmp_path / f"{len(each)}.npy", each), dtype=None) for each in rows]
    least = [_C.DiskRows.least_bytes(200, 16), _C.DiskRows.least_bytes(60_000, 128)]
    for nbytes in (sum(least), 200_000):
        divide_memory(features, FeatureMemory(nbytes, nbytes))
        tiers = [feature.disk_tier for feature in features]
        assert sum(tier.memory_bytes for tier in tiers if tier is not None) <= nbytes
        for feature, expected in zip(features, rows, strict=True):
            ids = torch.randint(len(expected), (500,), generator=torch.Generator().manual_seed(1))
            assert torch.equal(feature[ids], expected[ids])
    too_few = sum(least) - 1
    with pytest.raises(InvalidArgumentError, match=rf"feature_memory: expected at least {sum(least)} .* got {too_few}"):
        divide_memory(features, FeatureMemory(too_few, too_few))


def test_rows_that_were_changed_stay_in_memory(tmp_path: Path) -> None:
    """A mapping takes writes, which the file does not get."""
    rows, others = numbered(5000, 32), numbered(5000, 32)
    changed, unchanged = mapped(tmp_path / "x.npy", rows), mapped(tmp_path / "y.npy", others)
    changed[4000] = -1.0
    rows[4000] = -1.0
    for feature, expected in ((Feature(changed, dtype=None), rows), (Feature(unchanged, dtype=None), others)):
        feature.limit_memory(100_000)
        assert (feature.disk_tier is None) == (expected is rows)
        assert torch.equal(feature[torch.arange(5000)], expected)


def test_another_file_of_the_same_name(tmp_path: Path) -> None:
    rows = numbered(4000, 16)
    feature = Feature(mapped(tmp_path / "x.npy", rows), dtype=None)
    feature.limit_memory(100_000)
    np.save(tmp_path / "y.npy", rows.numpy() + 1)
    os.replace(tmp_path / "y.npy", tmp_path / "x.npy")
    with pytest.raises(StorageError, match=r"x\.npy: expected the file that is mapped"):
        feature[torch.tensor([1])]


def test_an_open_file_may_be_deleted(tmp_path: Path) -> None:
    rows = numbered(4000, 16)
    feature = Feature(mapped(tmp_path / "x.npy", rows), dtype=None)
    feature.limit_memory(60_000)
    assert torch.equal(feature[torch.tensor([5])], rows[[5]])
    os.unlink(tmp_path / "x.npy")
    assert torch.equal(feature[torch.arange(4000)], rows)


def test_where_there_are_no_direct_reads() -> None:
    """Files of memory under a name: their file system may take direct reads or not."""
    rows = numbered(4000, 33)
    path = Path("/run") if os.access("/run", os.W_OK) else Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=path) as folder:
        feature = Feature(mapped(Path(folder) / "x.npy", rows), dtype=None)
        feature.limit_memory(60_000)
        assert torch.equal(feature[torch.arange(3999, -1, -1)], rows.flip(0))


def test_what_was_announced_ends_where_announcing_fails(tmp_path: Path) -> None:
    tiers = [DiskTier(mapped(tmp_path / f"{name}.npy", numbered(1000, 16)), 20_000) for name in "ab"]
    wanted = [(tiers[0], torch.arange(100)), (tiers[1], torch.tensor([1000]))]
    with pytest.raises(UnknownIdError):
        Announced(wanted)
    assert tiers[0].native.num_uses == 0


def test_threads_that_come_at_once_have_one_cache(tmp_path: Path) -> None:
    tier = DiskTier(mapped(tmp_path / "x.npy", numbered(1000, 16)), 20_000)
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: tier.native, range(64)))
    assert all(each is found[0] for each in found)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.int8, torch.uint8])
@pytest.mark.parametrize("width", [1, 7, 33, 3000])
def test_rows_of_any_width_are_cast(tmp_path: Path, dtype: torch.dtype, width: int) -> None:
    """Rows that are smaller than a block of the disk, larger than a page, and whose sizes divide neither."""
    rows = torch.randint(100, (3000, width), generator=torch.Generator().manual_seed(width)).to(dtype)
    stored = rows.view(torch.int16) if dtype == torch.bfloat16 else rows
    feature = Feature(mapped(tmp_path / "x.npy", stored).view(dtype), dtype=None, out_dtype=torch.float32)
    feature.limit_memory(max(rows.numel() * rows.element_size() // 10, 8000))
    assert feature.disk_tier is not None
    ids = torch.randint(3000, (2000,), generator=torch.Generator().manual_seed(1))
    assert torch.equal(feature[ids], rows[ids].float())


def test_a_pickled_feature_has_the_rows_themselves(tmp_path: Path) -> None:
    rows = numbered(2000, 16)
    feature = Feature(mapped(tmp_path / "x.npy", rows), dtype=None)
    feature.limit_memory(60_000)
    again = pickle.loads(pickle.dumps(feature))
    assert again.disk_tier is None
    assert torch.equal(again[torch.arange(2000)], rows)


def test_a_file_that_was_cut_and_too_little_memory(tmp_path: Path) -> None:
    path = tmp_path / "x.npy"
    feature = Feature(mapped(path, numbered(4000, 64)), dtype=None)
    feature.limit_memory(50)
    with pytest.raises(InvalidArgumentError, match="feature_memory: expected at least"):
        feature[torch.tensor([1])]
    feature.limit_memory(100_000)
    assert feature[torch.tensor([3999])][0, 0] == 3999 * 64
    os.truncate(path, 500_000)
    with pytest.raises(StorageError, match=r"x\.npy: row 3998: expected to end at byte"):
        feature[torch.tensor([5, 3998])]
    assert feature[torch.tensor([6])][0, 0] == 6 * 64
    feature.limit_memory(100_001)
    with pytest.raises(StorageError, match=r"x\.npy: expected at least"):
        feature[torch.tensor([5])]


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_any_announcements_give_the_same_rows(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    rows = numbered(400, 20)
    tier = DiskTier(mapped(tmp_path_factory.mktemp("rows") / "x.npy", rows), data.draw(st.integers(10_000, 40_000)))
    unified = UnifiedTensor()
    unified.append_disk_tier(tier)
    ids = st.lists(st.integers(0, 399), max_size=150).map(lambda each: torch.tensor(each, dtype=torch.int64))
    known: list[Announced] = []
    for _ in range(data.draw(st.integers(1, 12))):
        match data.draw(st.sampled_from(["announce", "finish", "look up"])):
            case "announce":
                known.append(Announced([(tier, data.draw(ids))]))
            case "finish" if known:
                known.pop(data.draw(st.integers(0, len(known) - 1))).finish()
            case _:
                wanted = data.draw(ids)
                assert torch.equal(unified[wanted], rows[wanted])
    for each in known:
        each.finish()
        each.finish()


def make_dataset(folder: Path, *, typed: bool) -> tuple[Dataset, Dataset]:
    """The same data set with features in memory, and in files."""
    generator = torch.Generator().manual_seed(1)
    made = []
    sizes = {"user": 3000, "item": 2000}
    if typed:
        edges = {
            ("user", "buys", "item"): torch.stack(
                [torch.randint(n, (20_000,), generator=generator) for n in (3000, 2000)]
            ),
            ("item", "of", "user"): torch.stack(
                [torch.randint(n, (20_000,), generator=generator) for n in (2000, 3000)]
            ),
        }
        rows = {name: numbered(count, 24) + len(name) for name, count in sizes.items()}
        files = {name: mapped(folder / f"{name}.npy", each) for name, each in rows.items()}
        edge_rows = {("user", "buys", "item"): numbered(20_000, 8)}
        edge_files = {("user", "buys", "item"): mapped(folder / "e.npy", edge_rows["user", "buys", "item"])}
    else:
        edges = torch.randint(3000, (2, 40_000), generator=generator)
        rows, edge_rows = numbered(3000, 24), numbered(40_000, 8)
        files, edge_files = mapped(folder / "x.npy", rows), mapped(folder / "e.npy", edge_rows)
    for of_nodes, of_edges in ((rows, edge_rows), (files, edge_files)):
        dataset = Dataset(edge_dir="in")
        dataset.init_graph(edges, num_nodes=sizes if typed else 3000)
        dataset.init_node_features(of_nodes, allow_nonfinite=True)
        dataset.init_edge_features(of_edges, allow_nonfinite=True)
        made.append(dataset)
    return made[0], made[1]


@pytest.mark.parametrize("typed", [False, True])
@pytest.mark.parametrize("prefetch", [0, 3])
def test_batches_of_a_local_loader_are_those_of_memory(tmp_path: Path, typed: bool, prefetch: int) -> None:
    in_memory, in_files = make_dataset(tmp_path, typed=typed)
    in_files.limit_feature_memory("150KB")
    tiers = [store.disk_tier for name, store in in_files.stores().items() if "feat" in name or store.disk_tier]
    assert tiers
    assert all(tier is not None for tier in tiers)

    def loader(dataset: Dataset) -> NeighborLoader:
        seeds = ("user", torch.arange(3000)) if typed else torch.arange(3000)
        return NeighborLoader(dataset, [4, 3], seeds, batch_size=100, shuffle=True, seed=3, prefetch=prefetch)

    expected, found = loader(in_memory), loader(in_files)
    for _ in range(2):
        for one, other in zip(expected, found, strict=True):
            assert_same(pyg_tensors(other), pyg_tensors(one))
    assert any(tier.counts["rows_ahead"] > 0 for tier in tiers if tier is not None)
    iterator = iter(found)  # one that is left half-way leaves nothing announced
    next(iterator)
    del iterator
    assert_same(pyg_tensors(found.batch(0, 5)), pyg_tensors(expected.batch(0, 5)))


@pytest.mark.parametrize("prefetch", [0, 2])
def test_batches_in_a_programs_own_order(tmp_path: Path, prefetch: int) -> None:
    """Later ones are known as far as they are sampled ahead, of an order without an end, too."""
    in_memory, in_files = make_dataset(tmp_path, typed=False)
    in_files.limit_feature_memory("150KB")
    tier = next(store.disk_tier for store in in_files.stores().values() if store.disk_tier is not None)
    num_asked = 0

    class Endless:
        def __iter__(self) -> Iterator[list[int]]:
            nonlocal num_asked
            for number in itertools.count():
                num_asked += 1
                yield [(37 * number + at) % 3000 for at in range(50)]

    def first(dataset: Dataset, order: Any, count: int) -> list[dict[str, Any]]:
        loader = NeighborLoader(dataset, [4, 3], torch.arange(3000), batch_sampler=order, seed=3, prefetch=prefetch)
        return [pyg_tensors(batch) for batch in itertools.islice(loader, count)]

    for one, other in zip(first(in_memory, Endless(), 40), first(in_files, Endless(), 40), strict=True):
        assert_same(other, one)
    assert num_asked < 120
    assert tier.counts["rows_ahead"] > 0
    few = list(itertools.islice(Endless(), 5))  # fewer than are sampled ahead
    for one, other in zip(first(in_memory, few, 9), first(in_files, few, 9), strict=True):
        assert_same(other, one)


def test_an_error_of_the_disk_ends_the_iteration(tmp_path: Path) -> None:
    _, in_files = make_dataset(tmp_path, typed=False)
    in_files.limit_feature_memory(60_000)
    loader = NeighborLoader(in_files, [4, 3], torch.arange(3000), batch_size=100, prefetch=2)
    iterator = iter(loader)
    next(iterator)
    os.truncate(tmp_path / "x.npy", 1000)
    with pytest.raises(StorageError, match=r"x\.npy: row \d+: expected to end at byte"):
        for _ in iterator:
            pass


def test_a_fork_has_a_cache_of_its_own(tmp_path: Path) -> None:
    feature = Feature(mapped(tmp_path / "x.npy", numbered(2000, 16)), dtype=None)
    feature.limit_memory(60_000)
    assert feature[torch.tensor([7])][0, 0] == 7 * 16
    child = os.fork()
    if child == 0:
        os._exit(0 if feature[torch.tensor([7, 1999])][:, 0].tolist() == [7 * 16, 1999 * 16] else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert feature[torch.tensor([8])][0, 0] == 8 * 16


@pytest.mark.parametrize("size", ["0", "nothing", -1, 0])
def test_a_size_that_is_none(size: int | str) -> None:
    with pytest.raises(InvalidArgumentError, match="feature_memory"):
        Dataset().limit_feature_memory(size)
