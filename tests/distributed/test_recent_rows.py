"""Rows that other partitions answered lately are not asked for again, and what a lookup gives does not depend on it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from graphlearn_dist import _C
from graphlearn_dist.core import thread_pool
from graphlearn_dist.data import Feature, Graph, Topology
from graphlearn_dist.data.schema import NODE_FEATURE, NODE_LABEL, store_name
from graphlearn_dist.distributed import DistDataset
from graphlearn_dist.distributed.partitions.partition_service import PartitionService
from graphlearn_dist.distributed.sampling.feature_collector import FeatureCollector
from graphlearn_dist.errors import InvalidArgumentError
from graphlearn_dist.partition import CachedRows
from graphlearn_dist.utils import id2idx
from tests.support.direct_peers import DirectPeers
from tests.support.jobs import NUM_FEATURES, NUM_NODES, load, make_partitions

PARTS = 3
FEATURES, LABELS = store_name(NODE_FEATURE, 0), store_name(NODE_LABEL, 0)
BOTH = frozenset({FEATURES, LABELS})
ROW_BYTES = 4 * NUM_FEATURES + 8
PLACE_BYTES = ROW_BYTES + 40


@pytest.fixture(scope="module")
def datasets(tmp_path_factory: pytest.TempPathFactory) -> list[DistDataset]:
    directory = make_partitions(tmp_path_factory.mktemp("thirds"), PARTS)
    return [load(directory, partition) for partition in range(PARTS)]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, torch.Tensor]:
    dataset = load(make_partitions(tmp_path_factory.mktemp("whole"), 1))
    return FeatureCollector(dataset, [PartitionService(dataset)], DirectPeers([])).look_up(
        dict.fromkeys(BOTH, torch.arange(NUM_NODES))
    )


def collector_of(datasets: list[DistDataset], nbytes: int, threads: int = 1) -> tuple[FeatureCollector, DirectPeers]:
    services = [PartitionService(dataset) for dataset in datasets]
    peers = DirectPeers(services)
    collector = FeatureCollector(datasets[0], services[:1], peers, threads)
    collector.keep_recent(BOTH, nbytes)
    collector.counts = torch.zeros(3, dtype=torch.int64)
    return collector, peers


def room_for(datasets: list[DistDataset], share: float) -> int:
    others = sum(datasets[0].store_books()[FEATURES].native.size(partition) for partition in range(1, PARTS))
    return int(-(-others // 8) * 8 * PLACE_BYTES * share)  # in eight blocks of one size


def look_up(collector: FeatureCollector, *ids: torch.Tensor) -> list[dict[str, torch.Tensor]]:
    wanted = [dict.fromkeys(sorted(BOTH), each) for each in ids]
    lookup = collector.start(wanted, [{} for _ in wanted])
    outputs = collector.unwritten(wanted)
    asyncio.run(lookup.fill(outputs))
    return outputs


def test_rows_are_asked_for_once(datasets: list[DistDataset], whole: dict[str, torch.Tensor]) -> None:
    collector, peers = collector_of(datasets, room_for(datasets, 1.0))
    every = torch.arange(NUM_NODES)
    num_others = int((datasets[0].node_pb[every] != 0).sum())
    for ids in (every, every.flip(0), every[::7].contiguous()):
        before = len(peers.asked)
        (found,) = look_up(collector, ids)
        assert all(torch.equal(found[name], whole[name][ids]) for name in BOTH)
        assert len(peers.asked) - before == (PARTS - 1 if ids is every else 0)
    again = num_others + int((datasets[0].node_pb[every[::7]] != 0).sum())
    assert collector.recent_bytes == again * ROW_BYTES


def test_lookups_that_never_end_are_not_counted(datasets: list[DistDataset]) -> None:
    collector, _ = collector_of(datasets, room_for(datasets, 1.0))
    every = torch.arange(NUM_NODES)
    look_up(collector, every)
    wanted = [dict.fromkeys(sorted(BOTH), every)]
    for _ in range(3):
        collector.start(wanted, [{}])
    assert collector.recent_bytes == 0
    look_up(collector, every, every)  # in a batch each
    assert collector.recent_bytes == 2 * int((datasets[0].node_pb[every] != 0).sum()) * ROW_BYTES


def test_too_little_room_keeps_nothing(datasets: list[DistDataset]) -> None:
    """A quarter of what others have has to find room."""
    every = torch.arange(NUM_NODES)
    for share, is_kept in ((0.24, False), (0.26, True)):
        collector, peers = collector_of(datasets, room_for(datasets, share))
        look_up(collector, every)
        look_up(collector, every)
        assert (collector.recent_bytes > 0) == is_kept
        assert len(peers.asked) == 2 * (PARTS - 1)
    collector.keep_recent(BOTH, 0)
    before = collector.recent_bytes
    look_up(collector, every)
    assert collector.recent_bytes == before


def test_a_lookup_of_some_stores_keeps_and_finds_nothing(
    datasets: list[DistDataset], whole: dict[str, torch.Tensor]
) -> None:
    """Rows are kept, and found, of all stores alike."""
    collector, _ = collector_of(datasets, room_for(datasets, 1.0))
    every = torch.arange(NUM_NODES)
    for _ in range(2):
        assert torch.equal(collector.look_up({LABELS: every})[LABELS], whole[LABELS])
    assert collector.recent_bytes == 0


def test_copies_come_first(datasets: list[DistDataset], whole: dict[str, torch.Tensor]) -> None:
    """What was kept is given up for copies, and those are found before what is kept from then on."""
    collector, _ = collector_of(datasets, room_for(datasets, 1.0))
    every = torch.arange(NUM_NODES)
    look_up(collector, every)
    others = every[datasets[0].node_pb[every] != 0][::2].contiguous()
    collector.use_copies({name: CachedRows(others, whole[name][others]) for name in BOTH})
    for round_ in range(2):
        before = collector.recent_bytes
        (found,) = look_up(collector, every)
        assert all(torch.equal(found[name], whole[name]) for name in BOTH)
        num_kept = int((datasets[0].node_pb[every] != 0).sum()) - len(others)
        assert collector.recent_bytes - before == round_ * num_kept * ROW_BYTES
    hits, misses, saved = collector.counts.tolist()
    assert (hits, misses) == (2 * len(others), len(others) + 3 * num_kept)  # there were none at first
    assert saved == 2 * len(others) * ROW_BYTES


def rows_of(values: torch.Tensor) -> list[_C.RowStore]:
    return [_C.RowStore([values])]


def found_of(
    datasets: list[DistDataset], rows: _C.RecentRows, stores: Sequence[str] = (FEATURES,)
) -> tuple[_C.RowLookup, int]:
    """A lookup of the rows of four nodes where all partitions are asked, and how many of them are kept."""
    book = datasets[0].store_books()[FEATURES].native
    plan = _C.RowPlan([(stores, book, None, None, rows, -1)], [True] * PARTS)
    lookup = _C.RowsExchange(plan, [[torch.arange(4)]], thread_pool(1)).rows
    return lookup, lookup.counts(0, 0)[1]


def test_what_cannot_be_kept_is_forgotten(datasets: list[DistDataset]) -> None:
    """A failure between a row's place and its bytes leaves no place behind."""
    rows, pool = _C.RecentRows(1, NUM_NODES, 8, 8), thread_pool(1)
    rows.keep(torch.arange(4), rows_of(torch.ones(4, NUM_FEATURES)), pool)
    assert found_of(datasets, rows)[1] == 4
    for wrong in (torch.ones(4, NUM_FEATURES + 1), torch.ones(4, NUM_FEATURES, dtype=torch.int32)):
        with pytest.raises(InvalidArgumentError):
            rows.keep(torch.arange(4, 8), rows_of(wrong), pool)
        assert found_of(datasets, rows)[1] == 0
        rows.keep(torch.arange(4), rows_of(torch.ones(4, NUM_FEATURES)), pool)
    with pytest.raises(InvalidArgumentError, match="answers: expected rows of 1 stores, got 2"):
        rows.keep(torch.arange(4, 8), 2 * rows_of(torch.ones(4, NUM_FEATURES)), pool)
    assert found_of(datasets, rows)[1] == 4


def test_without_memory_nothing_is_kept(datasets: list[DistDataset]) -> None:
    """And that is no error: a batch whose rows are there comes all the same."""
    rows = _C.RecentRows(2, NUM_NODES, 1 << 27, 8)
    small, large = torch.ones(4, 1), torch.ones(4, 1 << 18)  # in a block of 2^47 bytes, which no process has
    for _ in range(2):
        rows.keep(torch.arange(4), rows_of(small) + rows_of(large), thread_pool(1))
        assert found_of(datasets, rows, sorted(BOTH))[1] == 0
    rows.keep(torch.arange(4), 2 * rows_of(small), thread_pool(1))
    assert found_of(datasets, rows, sorted(BOTH))[1] == 4


def test_plans_that_do_not_fit_together(datasets: list[DistDataset]) -> None:
    rows, book = _C.RecentRows(1, NUM_NODES, 8, 8), datasets[0].store_books()[FEATURES].native
    asked = [True] * PARTS
    for group, message in (
        (([], book, None, None, None, -1), "groups: expected a store in each"),
        ((sorted(BOTH), book, None, None, rows, -1), "recent: expected rows of 2 stores, got those of 1"),
        (([FEATURES], _C.PartitionBook.permuted(4, 2, 1), None, None, None, -1), "books of 3 partitions"),
    ):
        with pytest.raises(InvalidArgumentError, match=message):
            _C.RowPlan([group], asked)
    plan, pool = _C.RowPlan([([FEATURES], book, None, None, None, -1)], asked), thread_pool(1)
    for wanted, message in (([[]], "wanted: expected entries of 1 groups"), ([[(1, 2)]], "wanted: expected 7 parts")):
        with pytest.raises(InvalidArgumentError, match=message):
            _C.RowsExchange(plan, wanted, pool)
    lookup = _C.RowsExchange(plan, [[None], [torch.arange(4)]], pool).rows
    for batch, group in ((0, 0), (1, 1), (2, 0)):
        with pytest.raises(InvalidArgumentError, match="batch, group: expected one that is looked up"):
            lookup.counts(batch, group)
    out = torch.zeros(4, NUM_FEATURES)
    for store, held, message in ((1, [None] * 4, "store"), (0, [None] * 3, "held: expected rows of 3 partitions")):
        with pytest.raises(InvalidArgumentError, match=message):
            lookup.gather(1, 0, store, held, out)
    with pytest.raises(InvalidArgumentError):  # nobody has answered yet
        lookup.gather(1, 0, 0, [None] * 4, out)


def test_a_partition_with_other_rows_is_named(datasets: list[DistDataset]) -> None:
    services = [PartitionService(dataset) for dataset in datasets]
    book = datasets[2].store_books()[FEATURES].native
    for like, what in (
        (torch.zeros(NUM_FEATURES, dtype=torch.float64), rf"torch.float64 \[{NUM_FEATURES}\]"),
        (torch.zeros(NUM_FEATURES + 1), rf"torch.float32 \[{NUM_FEATURES + 1}\]"),
    ):
        rows = like.expand(book.size(2), -1).contiguous()
        store = (FEATURES, book, None, _C.RowStore([rows]), None)
        other: Any = SimpleNamespace(native=_C.PartitionServer(2, [], [store], thread_pool(1), 1 << 20))
        collector = FeatureCollector(datasets[0], services[:1], DirectPeers([*services[:2], other]))
        message = rf"{FEATURES}: partition 2 has rows of {what}, another one of torch.float32 \[{NUM_FEATURES}\]"
        with pytest.raises(InvalidArgumentError, match=message):
            collector.look_up({FEATURES: torch.arange(NUM_NODES)})


def test_rows_travel_as_they_are_stored() -> None:
    """And are cast as they are gathered: those at hand, answers, those that are kept, and copies."""
    generator = torch.Generator().manual_seed(0)
    count, edges = 90, torch.randint(0, 90, (2, 400), generator=generator)
    rows, owners = torch.randn(count, 4, generator=generator).half(), torch.arange(count) % 3
    parts = []
    for partition in range(3):
        own, held = (owners == partition).nonzero().view(-1), (owners[edges[1]] == partition).nonzero().view(-1)
        feature = Feature(rows[own], id2idx(own), dtype=None, out_dtype=torch.float32)
        graph = Graph(Topology(edges[:, held], held, layout="CSC"), "CPU")
        parts.append(DistDataset(3, partition, graph, feature, node_pb=owners, edge_pb=owners[edges[1]], edge_dir="in"))
    services = [PartitionService(part) for part in parts]
    peers = DirectPeers(services)
    collector = FeatureCollector(parts[0], services[:1], peers)
    every = torch.arange(count)
    for nbytes, copied in ((0, 0), (1 << 20, 0), (1 << 20, 40)):
        others = every[owners != 0][:copied]
        collector.use_copies({FEATURES: CachedRows(others, rows[others])} if copied else {})
        collector.keep_recent(frozenset({FEATURES}), nbytes)
        before = collector.recent_bytes
        for _ in range(2):
            found = collector.look_up({FEATURES: every})[FEATURES]
            assert found.dtype == torch.float32
            assert torch.equal(found, rows.float())
        kept = 0 if nbytes == 0 else 60 - copied
        assert collector.recent_bytes - before == kept * rows[0].nbytes


@pytest.mark.parametrize("block_rows", [8, 1])  # a table of all ids, and one of those that have places
def test_what_was_forgotten_has_no_place(datasets: list[DistDataset], block_rows: int) -> None:
    """And what was found before stays where it was."""
    rows = _C.RecentRows(1, NUM_NODES, block_rows, 8)
    for value in (1.0, 2.0):
        rows.keep(torch.arange(4), rows_of(torch.full((4, NUM_FEATURES), value)), thread_pool(1))
        lookup, num_kept = found_of(datasets, rows)
        assert num_kept == 4
        rows.forget()
        assert found_of(datasets, rows)[1] == 0
        out = torch.zeros(4, NUM_FEATURES)
        lookup.gather(0, 0, 0, [None] * (PARTS + 1), out)
        assert torch.equal(out, torch.full((4, NUM_FEATURES), value))


@given(
    steps=st.lists(
        st.tuples(st.booleans(), st.integers(0, 3), st.lists(st.integers(0, NUM_NODES - 1), max_size=60, unique=True)),
        max_size=24,
    ),
    share=st.sampled_from([0.26, 0.5, 1.0]),
    threads=st.integers(1, 2),
)
@settings(max_examples=60, deadline=None)
def test_lookups_under_way_at_once(
    datasets: list[DistDataset],
    whole: dict[str, torch.Tensor],
    steps: list[tuple[bool, int, list[int]]],
    share: float,
    threads: int,
) -> None:
    """Whatever ends first, and whatever was kept in between: rows that a lookup found stay where it found them."""
    collector, _ = collector_of(datasets, room_for(datasets, share), threads)
    under_way: list[tuple[object, list[torch.Tensor], list[dict[str, torch.Tensor]]]] = []

    def finish(number: int) -> None:
        lookup, lists, outputs = under_way.pop(number % len(under_way))
        asyncio.run(lookup.fill(outputs))  # type: ignore[attr-defined]
        for ids, found in zip(lists, outputs, strict=True):
            assert all(torch.equal(found[name], whole[name][ids]) for name in BOTH)

    for is_start, number, ids in steps:
        if is_start or not under_way:
            lists = [torch.tensor(ids, dtype=torch.int64), torch.tensor(ids[::2], dtype=torch.int64)][: 1 + number % 2]
            wanted = [dict.fromkeys(sorted(BOTH), each) for each in lists]
            lookup = collector.start(wanted, [{} for _ in wanted])
            under_way.append((lookup, lists, collector.unwritten(wanted)))
        else:
            finish(number)
    while under_way:
        finish(0)
