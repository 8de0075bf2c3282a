"""Counts of batches: what is added, from several threads, and in memory that somebody else reads."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import torch

from graphlearn_dist.distributed.workers.row_counts import SharedBatchCounts, open_counts
from graphlearn_dist.telemetry import BatchCounts, BatchSums


def test_sizes_and_times_are_added_up() -> None:
    counts = BatchCounts()
    counts.add_sizes(2, 10, 20, row_bytes=40, sample_ns=5, rows_ns=7)
    counts.add_sizes(1, 3, 4, row_bytes=0, sample_ns=1, rows_ns=2)
    counts.add_send(11)
    counts.add_times(rows_ns=3)
    counts.add_seeds(4)
    counts.add_seeds(1)
    counts.add_copy(6)
    expected = BatchSums(2, 3, 13, 24, 40, 6, 12, 11, seeds_ns=5, copy_ns=6)
    assert counts.sums() == expected
    changed = counts.sums() - BatchSums(batches=1, edges=4) + BatchSums(seeds=1, credit_ns=9)
    assert changed == replace(expected, batches=1, edges=20, seeds=4, credit_ns=9)


def test_times_of_exchanges_are_followed() -> None:
    """They are totals of a process; what was counted of them before is not counted again."""
    counts = BatchCounts()
    for times in ((1, 10, 100, 5), (1, 10, 100, 5), (3, 15, 107, 6)):
        counts.follow_exchanges(times)
    assert counts.sums() == BatchSums(split_ns=3, own_ns=15, peers_ns=107, stitch_ns=6)


def test_no_count_is_lost_between_threads() -> None:
    counts = BatchCounts()
    with ThreadPoolExecutor(8) as threads:
        list(
            threads.map(
                lambda _: [(counts.add_seeds(1), counts.add_sizes(1, 2, 3, 4, 5, 6)) for _ in range(500)], range(8)
            )
        )
    assert counts.sums() == BatchSums(4000, 4000, 8000, 12000, 16000, 20000, 24000, seeds_ns=4000)


def test_workers_count_where_their_owner_reads() -> None:
    """A worker that follows another goes on in its row."""
    shared = SharedBatchCounts(2)
    for rank, seeds in ((0, 1), (1, 10), (1, 100)):
        memory: memoryview = open_counts(shared.handle_of(rank)).numpy().data
        BatchCounts(memory).add_sizes(seeds, 1, 1, 1, 1, 1)
    assert shared.sums() == BatchSums(3, 111, 3, 3, 3, 3, 3)
    assert torch.equal(open_counts(shared.handle_of(0))[:2], torch.tensor([1, 1]))


def test_batches_are_summed_up_before_anybody_asks() -> None:
    """What waits to be added up stays small, and a reader has all of it."""
    counts = BatchCounts()
    for index in range(1000):
        counts.add_sizes(1, 2, 3, 4, 5, 6)
        counts.add_seeds(2)
        if index % 300 == 0:
            assert counts.sums().batches == index + 1
    assert max(len(counts._waiting), len(counts._seed_times)) < 256
    assert counts.sums() == BatchSums(1000, 1000, 2000, 3000, 4000, 5000, 6000, seeds_ns=2000)
