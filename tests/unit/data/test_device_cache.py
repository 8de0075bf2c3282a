"""A cache of rows on a device: lookups are the same with it, and it keeps what is looked up most."""

from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.reduction import ForkingPickler
from typing import Any

import pytest
import torch

from graphlearn_dist import _C
from graphlearn_dist.data import Dataset, Feature
from graphlearn_dist.data.device import placed_rows
from graphlearn_dist.data.device.device_cache import DeviceCache
from graphlearn_dist.data.device.device_rows import DeviceRows
from graphlearn_dist.data.device.placed_rows import PlacedRows
from graphlearn_dist.distributed import CollocatedDistSamplingWorkerOptions, DistDataset, DistNeighborLoader
from graphlearn_dist.errors import InvalidArgumentError, UnknownIdError
from graphlearn_dist.loader import LinkNeighborLoader, NeighborLoader
from graphlearn_dist.sampler.device.padding import StaticShapes
from graphlearn_dist.telemetry import DeviceCacheCounts
from tests.support.stand_in import HOST, kernels_sample

NUM_ROWS = 300


def skewed(count: int, seed: int, num_rows: int = NUM_ROWS) -> torch.Tensor:
    """Ids, of which low ones come much more often."""
    draws = torch.rand(count, generator=torch.Generator().manual_seed(seed))
    return (draws**4 * num_rows).long()


def bytes_for(num_slots: int, rows: torch.Tensor) -> int:
    """``device_cache`` that has room for so many rows."""
    return 8 * len(rows) + num_slots * (rows[0].nbytes + 8)


def cached_rows(parts: list[torch.Tensor], nbytes: int) -> DeviceRows:
    """Rows with a cache of so many bytes of the last piece."""
    return DeviceRows(parts, HOST, cache=DeviceCache(parts[-1], sum(map(len, parts[:-1])), nbytes, HOST))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("width", [1, 3, 16, 33, 301])
@pytest.mark.parametrize("num_slots", [1, 20, NUM_ROWS])
def test_lookups_are_the_same(dtype: torch.dtype, width: int, num_slots: int) -> None:
    rows = torch.randint(0, 100, (NUM_ROWS, width), generator=torch.Generator().manual_seed(2)).to(dtype)
    cached = cached_rows([rows], bytes_for(num_slots, rows))
    assert cached.cache is not None
    assert cached.cache.num_slots == num_slots
    for seed in range(8):
        ids = skewed(200, seed)
        ids = ids.int() if seed % 2 else ids
        assert torch.equal(cached.gather(ids, dtype), rows[ids.long()])
        assert torch.equal(cached.gather(ids, torch.float32), rows[ids.long()].float())
        out, places = torch.zeros(500, width, dtype=dtype), torch.randperm(500)[:200]
        cached.gather_into(out, places, ids)
        assert torch.equal(out[places], rows[ids.long()])
        assert len(cached.gather(ids[:0], dtype)) == 0
    counts = cached.cache.counts
    assert counts.hits + counts.misses == 8 * 3 * 200
    assert counts.hits > (0 if num_slots == 1 else 1000)
    assert counts.bytes_saved == counts.hits * rows[0].nbytes


def test_ids_that_do_not_exist_are_refused_and_nothing_is_kept_of_them() -> None:
    rows, table = torch.randn(NUM_ROWS, 5), torch.arange(NUM_ROWS).flip(0)
    table[7] = -1
    cached = DeviceRows([rows], HOST, table, DeviceCache(rows, 0, bytes_for(100, rows), HOST))
    with pytest.raises(UnknownIdError, match="id 7 has no feature row here"):
        cached.gather(torch.tensor([3, 7, 4]), torch.float32)
    with pytest.raises(UnknownIdError, match="row 300 is outside"):
        cached.gather(torch.tensor([NUM_ROWS]), torch.float32)
    with pytest.raises(UnknownIdError, match="position 9 outside"):
        cached.gather_into(torch.zeros(2, 5), torch.tensor([0, 9]), torch.tensor([11, 12]))
    ids = torch.tensor([3, 4, 11, 12])
    assert torch.equal(cached.gather(ids, torch.float32), rows[table[ids]])
    assert cached.cache is not None
    assert cached.cache.counts == DeviceCacheCounts(3, 4, 3 * 20, 100)


def test_rows_of_the_gpu_are_not_cached_again() -> None:
    rows = torch.randn(NUM_ROWS, 4)
    cached = cached_rows([rows[:100], rows[100:]], bytes_for(10, rows[100:]))
    for seed in range(5):
        ids = skewed(100, seed)
        assert torch.equal(cached.gather(ids, torch.float32), rows[ids])
    assert cached.cache is not None
    of_host = sum(int((skewed(100, seed) >= 100).sum()) for seed in range(5))
    assert cached.cache.counts.hits + cached.cache.counts.misses == of_host
    assert set(cached.cache._slot_rows.tolist()) < {-1, *range(200)}


def test_it_learns_what_is_looked_up_most_and_forgets_it() -> None:
    rows = torch.randn(NUM_ROWS, 4)
    cached = cached_rows([rows], bytes_for(32, rows))
    assert cached.cache is not None

    def hit_rate(flipped: bool) -> float:
        assert cached.cache is not None
        before = cached.cache.counts
        for seed in range(200):
            ids = skewed(40, seed)
            cached.gather(NUM_ROWS - 1 - ids if flipped else ids, torch.float32)
        after = cached.cache.counts
        return (after.hits - before.hits) / (200 * 40)

    best = sum(int((skewed(40, seed) < 32).sum()) for seed in range(200)) / (200 * 40)  # 32 rows, chosen beforehand
    for flipped in (False, True, False):
        hit_rate(flipped)
        assert hit_rate(flipped) > 0.85 * best


def test_sizes() -> None:
    rows = torch.randn(NUM_ROWS, 4)
    with pytest.raises(InvalidArgumentError, match=r"device_cache: expected at least 2424 bytes .* got 2423"):
        cached_rows([rows], bytes_for(1, rows) - 1)
    assert DeviceCache(rows, 0, 1 << 20, HOST).num_slots == NUM_ROWS  # no more than there are
    nothing = cached_rows([rows[:0]], 100)
    assert len(nothing.gather(torch.empty(0, dtype=torch.int64), torch.float32)) == 0


def test_what_a_failed_launch_left_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, ids = torch.randn(NUM_ROWS, 4), torch.arange(20)
    cached = cached_rows([rows], bytes_for(50, rows))
    assert cached.cache is not None
    cached.gather(ids, torch.float32)
    with pytest.raises(InvalidArgumentError):
        cached.launch(torch.empty(20, 5), None, ids, torch.full((1,), -1))  # rows of another shape
    assert set(cached.cache._slot_rows.tolist()) == {-1}
    assert torch.equal(cached.gather(ids, torch.float32), rows[ids])


def test_threads_gather_at_once() -> None:
    rows = torch.randn(NUM_ROWS, 9)
    cached = cached_rows([rows], bytes_for(40, rows))

    def gather(seed: int) -> bool:
        ids = skewed(150, seed)
        return torch.equal(cached.gather(ids, torch.float32), rows[ids])

    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(gather, range(100)))


@pytest.fixture
def imagined_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """GPU 0, whose memory is the host's."""
    make = placed_rows.DeviceRows
    monkeypatch.setattr(placed_rows, "DeviceRows", lambda parts, _, *more: make(parts, HOST, *more))
    monkeypatch.setattr(placed_rows, "DeviceCache", lambda *sizes: DeviceCache(*sizes[:3], HOST))
    monkeypatch.setattr(placed_rows, "put_on_gpu", lambda rows, _: rows.clone())
    monkeypatch.setattr(_C, "cuda_device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)


@pytest.mark.parametrize("split_ratio", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("hotness", [None, torch.arange(NUM_ROWS)], ids=["first rows", "hottest rows"])
@pytest.mark.usefixtures("imagined_gpu")
def test_features_have_it_beside_hot_rows(split_ratio: float, hotness: Any) -> None:
    rows = torch.randn(NUM_ROWS, 6)
    feature = Feature(rows, split_ratio=split_ratio, hotness=hotness, device_cache="4KB")
    assert feature.gathers_on_gpu
    sent = Feature.from_ipc_handle(pickle.loads(ForkingPickler.dumps(feature.share_ipc())))
    for one in (feature, sent):  # each process has its own
        for seed in range(4):
            assert torch.equal(one[skewed(100, seed)], rows[skewed(100, seed)])
        counts = one.device_cache_counts
        assert counts is not None
        assert (counts.hits > 0) == (split_ratio < 1.0)
    with pytest.raises(InvalidArgumentError, match="device_cache: expected None of features for batches of static"):
        feature.on_device(HOST, NUM_ROWS)
    assert Feature(rows).device_cache_counts is None
    with pytest.raises(InvalidArgumentError, match="device_cache"):
        Feature(rows, device_cache="much")


@pytest.mark.usefixtures("imagined_gpu")
def test_there_is_one_cache_wherever_the_rows_move() -> None:
    """Loaders hold what they gather by: rows that moved, and were given a second cache, would take its memory twice."""
    rows = torch.randn(NUM_ROWS, 6)
    feature = Feature(rows, device_cache="4KB")
    ids = skewed(100, 1)
    assert torch.equal(feature[ids], rows[ids])
    assert feature._placed is not None
    before, counts = feature._placed.on(torch.device("cuda", 0)), feature.device_cache_counts
    feature.share_memory_()
    after = feature._placed.on(torch.device("cuda", 0))
    assert before is not after
    assert before.cache is after.cache is not None
    assert torch.equal(feature[ids], rows[ids])
    assert torch.equal(before.gather(ids, torch.float32), rows[ids])
    assert counts is not None
    assert counts.hits < feature.device_cache_counts.hits  # type: ignore[union-attr]
    assert counts.misses > feature.device_cache_counts.misses - counts.misses  # type: ignore[union-attr]


def make_data(cache: Any) -> Dataset:
    dataset = Dataset()
    edges = torch.stack([skewed(4000, 1), skewed(4000, 2)])
    dataset.init_graph(edges, num_nodes=NUM_ROWS, graph_mode="CUDA")
    dataset.init_node_features(torch.randn(NUM_ROWS, 6, generator=torch.Generator().manual_seed(1)), device_cache=cache)
    dataset.init_edge_features(torch.randn(4000, 3, generator=torch.Generator().manual_seed(2)), device_cache=cache)
    return dataset


@pytest.mark.usefixtures("imagined_gpu")
def test_loaders_count_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Edges of trees come several times in one batch."""
    settings: dict[str, Any] = {"batch_size": 32, "shuffle": True, "with_edge": True, "disjoint": True}
    seeds, links = torch.arange(NUM_ROWS), torch.stack([skewed(100, 3), skewed(100, 4)])
    plain = make_data(None)
    expected = list(NeighborLoader(plain, [5, 3], seeds, seed=3, **settings))
    linked = list(LinkNeighborLoader(plain, [5, 3], edge_label_index=links, seed=3, **settings))
    data = make_data("40KB")
    with kernels_sample(monkeypatch):
        loader = NeighborLoader(data, [5, 3], seeds, seed=3, **settings)
        for batch, wanted in zip(loader, expected, strict=True):
            assert torch.equal(batch.x, wanted.x)
            assert torch.equal(batch.edge_attr, wanted.edge_attr)
        of_links = LinkNeighborLoader(data, [5, 3], edge_label_index=links, seed=3, **settings)
        for batch, wanted in zip(of_links, linked, strict=True):
            assert torch.equal(batch.x, wanted.x)
        counts = loader.stats().made.device_cache
        assert counts is not None
        assert counts.hits > counts.misses / 4
        assert "  device cache" in str(loader.stats())
        with pytest.raises(InvalidArgumentError, match="device_cache: expected None"):
            NeighborLoader(data, [5], seeds, batch_size=32, static_shapes=StaticShapes())
        far = {**settings, "collect_features": True, "random_seed": 3}
        options = CollocatedDistSamplingWorkerOptions()
        with DistNeighborLoader(
            DistDataset.from_dataset(data), [5, 3], seeds, worker_options=options, **far
        ) as distributed:
            for batch, wanted in zip(distributed, expected, strict=True):
                assert torch.equal(batch.x, wanted.x)
            found = distributed.stats().made.device_cache
            assert found is not None
            assert found.hits > counts.hits
    assert NeighborLoader(plain, [5], seeds, **settings).stats().made.device_cache is None
    assert isinstance(data.node_features._placed, PlacedRows)
