"""What a loader says of its loop: shares, stages, a table, and advice where the loop waits."""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from graphlearn_dist.telemetry import BatchSums, LoaderStats, MadeStats
from graphlearn_dist.telemetry.loader_stats import ADVISE_AFTER_BATCHES, ADVISE_AFTER_NS, LoopTimes

OPTIONS = {"workers": "num_workers=", "ahead": "prefetch_size=", "peers": "row_cache=", "credit": "prefetch_bytes="}
SECOND = 10**9


def stats(wait_s: float, compute_s: float, sums: BatchSums, num_workers: int = 2) -> LoaderStats:
    made = MadeStats("servers 0, 1", sums, num_workers, options=OPTIONS)
    return LoaderStats("DistNeighborLoader 3", 10, 5, wait_s, compute_s, made)


@pytest.mark.parametrize(
    ("wait_s", "sums", "num_workers", "expected"),
    [
        (4.0, BatchSums(), 2, None),
        (6.0, BatchSums(sample_ns=2 * SECOND, peers_ns=3 * SECOND, rows_ns=2 * SECOND), 2, "other partitions 75%"),
        (
            6.0,
            BatchSums(sample_ns=9 * SECOND, credit_ns=6 * SECOND),
            2,
            "until it has read what they sent; prefetch_bytes=",
        ),
        (6.0, BatchSums(sample_ns=9 * SECOND, rows_ns=6 * SECOND), 2, r"busy all the time; num_workers="),
        (6.0, BatchSums(sample_ns=2 * SECOND), 0, r"busy all the time; num_workers="),
        (6.0, BatchSums(sample_ns=2 * SECOND), 2, r"too few batches are made ahead; prefetch_size="),
    ],
    ids=["none", "peers", "credit", "workers", "no workers", "ahead"],
)
def test_advice(wait_s: float, sums: BatchSums, num_workers: int, expected: str | None) -> None:
    advice = stats(wait_s, 10.0 - wait_s, sums, num_workers).advice()
    if expected is None:
        assert advice is None
    else:
        assert advice is not None
        assert advice.startswith("60% of the time the loop waits")
        assert expected in advice


def test_table() -> None:
    sums = BatchSums(4, 40, 400, 4000, 8_000_000, sample_ns=8_000_000, rows_ns=2_000_000, peers_ns=4_000_000)
    sums += BatchSums(credit_ns=16_000_000, seeds_ns=400_000)
    assert str(replace(stats(2.0, 6.0, sums), convert_s=0.0045)).splitlines() == [
        "DistNeighborLoader 3: 10 batches, 5 to come, 1.1 batches/s",
        "  the loop      25.0% of 8.0 s waiting for batches",
        "  made by      servers 0, 1: 4 batches",
        "  a batch      10 seeds, 100 nodes, 1,000 edges, 2.00 MB of rows",
        "  sample               2.00 ms",
        "  rows                 0.50 ms",
        "  credit               4.00 ms",
        "  seeds                0.10 ms",
        "  other partitions     1.00 ms",
        "  convert              0.50 ms",
    ]
    assert "0 batches" in str(LoaderStats("NeighborLoader 0", 0, 0, 0.0, 0.0, MadeStats("this process")))


def test_the_first_batch_of_all_is_told_apart() -> None:
    """Libraries are loaded then, and workers start: no reason to advise more workers."""
    times = LoopTimes()
    times.begin()
    assert not times.gave(0, 100 * ADVISE_AFTER_NS)
    at = times.given_at
    for _ in range(2 * ADVISE_AFTER_BATCHES):
        at += ADVISE_AFTER_NS
        assert not times.gave(at, at + 1)
    times.begin()
    times.gave(at, at + 7)  # an epoch's first batch is waited for each time
    assert times.start_ns == 100 * ADVISE_AFTER_NS
    some = LoaderStats("NeighborLoader 0", 11, 5, 7.0, 3.0, MadeStats("this process", num_workers=1), start_s=5.0)
    assert some.wait_share == 0.4
    assert some.advice() is None
    assert str(some).splitlines()[:2] == [
        "NeighborLoader 0: 11 batches, 5 to come, 2.0 batches/s",
        "  the loop      40.0% of 5.0 s waiting for batches, after 5.0 s for the first",
    ]


def test_conversions_are_added_up_from_several_threads() -> None:
    times = LoopTimes()
    times.converted(10 * SECOND)  # the first, in which libraries are loaded
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda _: [times.converted(3) for _ in range(500)], range(8)))
    assert len(times._conversions) < 512
    assert times.convert_ns == times.convert_ns == 12_000
    assert dict((metric.name, metric.value) for metric in times.metrics({}))["loader_convert_seconds_total"] == 12e-6


def test_the_time_between_iterations_is_nobodys() -> None:
    times = LoopTimes()
    times.begin()
    times.gave(10, 15)
    times.gave(22, 25)
    times.begin()
    times.gave(1000, 1001)
    assert (times.batches, times.wait_ns, times.compute_ns) == (3, 9, 7)


def test_advice_is_given_once(caplog: pytest.LogCaptureFixture) -> None:
    times, at, said = LoopTimes(), 0, 0
    step = 2 * ADVISE_AFTER_NS // ADVISE_AFTER_BATCHES
    for _ in range(3 * ADVISE_AFTER_BATCHES):
        said += times.gave(at, at + step)
        at += step + 1
    assert said == 1
    with caplog.at_level(logging.WARNING, "graphlearn_dist.loader"):
        times.advise(stats(9.0, 1.0, BatchSums()))
        times.advise(stats(1.0, 9.0, BatchSums()))
    assert [record.message.startswith("DistNeighborLoader 3: 90% of the time") for record in caplog.records] == [True]


def test_a_loop_that_computes_is_left_alone() -> None:
    times = LoopTimes()
    for at in range(0, 4 * ADVISE_AFTER_NS, 4 * ADVISE_AFTER_NS // (2 * ADVISE_AFTER_BATCHES)):
        assert not times.gave(at, at + 1)
