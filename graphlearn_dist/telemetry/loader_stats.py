"""Where a loader's time goes, seen from the loop that iterates over it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

from ..utils.message_types import register_message
from .batch_counts import BatchSums
from .samples import Metric

ADVISE_AFTER_BATCHES = 100
ADVISE_AFTER_NS = 5_000_000_000
_FOLD_EVERY = 256
_log = logging.getLogger("graphlearn_dist.loader")


@register_message
@dataclass(frozen=True)
class DeviceCacheCounts:
    """What caches of rows in the memory of GPUs were asked until now.

    Attributes:
        hits: rows that it had.
        misses: rows that were read from host memory, each as often as it was asked for.
        bytes_saved: of the rows that it had, which were not read from host memory.
        num_slots: rows that it has room for.
    """

    hits: int = 0
    misses: int = 0
    bytes_saved: int = 0
    num_slots: int = 0

    @property
    def hit_rate(self) -> float:
        """Share of the rows that it had, 0 to 1."""
        return self.hits / max(self.hits + self.misses, 1)

    def __add__(self, other: DeviceCacheCounts) -> DeviceCacheCounts:
        return DeviceCacheCounts(
            self.hits + other.hits,
            self.misses + other.misses,
            self.bytes_saved + other.bytes_saved,
            self.num_slots + other.num_slots,
        )


@register_message
@dataclass(frozen=True)
class MadeStats:
    """What makes a loader's batches, and what it made.

    Attributes:
        where: for people: ``"this process"``, ``"2 processes"``, ``"servers 0, 1"``.
        sums: of the batches made, those ahead of the reader included.
        num_workers: threads or processes that make them; 0 where the reader does.
        restarts: worker processes that died and were started again.
        device_cache: of rows of features that a GPU gathers for it, in all; None without such caches. They may be other
            loaders' too.
        options: by what could be the trouble (``"workers"``, ``"ahead"``, ``"peers"``, ``"credit"``), what to change.
    """

    where: str
    sums: BatchSums = field(default_factory=BatchSums)
    num_workers: int = 0
    restarts: int = 0
    options: dict[str, str] = field(default_factory=dict)
    device_cache: DeviceCacheCounts | None = None


@dataclass(frozen=True)
class LoaderStats:
    """What a loader has done since it was made; ``str()`` of it is a table.

    Attributes:
        name: of the loader.
        batches: that it gave.
        remaining: batches that are left of this epoch, or of the next before it begins.
        wait_s: time that the loop waited in ``next()``.
        compute_s: time between one ``next()`` and the following one: the model's.
        made: what makes its batches.
        start_s: of ``wait_s``, for the very first batch: libraries are loaded then, and whoever makes batches starts.
        convert_s: making PyG's objects of batches but the first, and beginning to copy them to a device.
    """

    name: str
    batches: int
    remaining: int
    wait_s: float
    compute_s: float
    made: MadeStats
    start_s: float = 0.0
    convert_s: float = 0.0

    @property
    def wait_share(self) -> float:
        """Share of the loop's time in which it waited for batches, 0 to 1; without ``start_s``, which comes once."""
        total = self.wait_s - self.start_s + self.compute_s
        return (self.wait_s - self.start_s) / total if total else 0.0

    @property
    def stages_ms(self) -> dict[str, float]:
        """By stage, the mean milliseconds of a batch; see ``BatchSums``. Stages that never took any are left out."""
        sums = self.made.sums
        names = {"sample": sums.sample_ns, "rows": sums.rows_ns, "send": sums.send_ns, "credit": sums.credit_ns}
        parts = {"seeds": sums.seeds_ns, "copy": sums.copy_ns, "split": sums.split_ns, "stitch": sums.stitch_ns}
        parts |= {"own partition": sums.own_ns, "other partitions": sums.peers_ns}
        found = {name: ns / 1e6 / max(sums.batches, 1) for name, ns in (names | parts).items()}
        found["convert"] = self.convert_s * 1e3 / max(self.batches - 1, 1)
        return {name: ms for name, ms in found.items() if ms}

    def __str__(self) -> str:
        sums, count = self.made.sums, max(self.made.sums.batches, 1)
        sizes = f"{sums.seeds / count:,.0f} seeds, {sums.nodes / count:,.0f} nodes, {sums.edges / count:,.0f} edges"
        rows = f", {sums.row_bytes / count / 1e6:.2f} MB of rows" if sums.row_bytes else ""
        if sums.recent_bytes:
            rows += f", {sums.recent_bytes / sums.row_bytes:.1%} of them answered before"
        seconds = self.wait_s - self.start_s + self.compute_s
        rate = f", {(self.batches - 1) / seconds:.1f} batches/s" if seconds else ""
        start = f", after {self.start_s:.1f} s for the first" if self.start_s else ""
        restarts = f", {self.made.restarts} restarted" if self.made.restarts else ""
        lines = [
            f"{self.name}: {self.batches} batches, {self.remaining} to come{rate}",
            f"  the loop     {self.wait_share:6.1%} of {seconds:.1f} s waiting for batches{start}",
            f"  made by      {self.made.where}{restarts}: {sums.batches} batches",
            f"  a batch      {sizes}{rows}",
        ]
        if (cache := self.made.device_cache) is not None:
            saved = f"{cache.bytes_saved / 1e6:,.0f} MB not read from host memory"
            lines.append(f"  device cache {cache.hit_rate:6.1%} of {cache.hits + cache.misses:,} rows, {saved}")
        lines += [f"  {name:<16} {ms:8.2f} ms" for name, ms in self.stages_ms.items()]
        return "\n".join(lines)

    def advice(self) -> str | None:
        """Why the loop waits more than half of its time, and what to change; None where it does not."""
        if self.wait_share <= 0.5:
            return None
        sums, options = self.made.sums, self.made.options
        seconds = max(self.wait_s - self.start_s + self.compute_s, 1e-9)
        busy = (sums.sample_ns + sums.rows_ns) / 1e9 / seconds / max(self.made.num_workers, 1)
        peers = sums.peers_ns / max(sums.sample_ns + sums.rows_ns, 1)
        if peers > 0.5:
            why, what = f"batches wait for other partitions {peers:.0%} of their time", options.get("peers")
        elif sums.credit_ns / 1e9 / seconds > 0.5:
            why, what = "servers wait until it has read what they sent", options.get("credit")
        elif busy > 0.7 or self.made.num_workers == 0:
            why, what = f"who makes them ({self.made.where}) is busy all the time", options.get("workers")
        else:
            why, what = "too few batches are made ahead", options.get("ahead")
        return f"{self.wait_share:.0%} of the time the loop waits for batches: {why}" + (f"; {what}" if what else "")


class LoopTimes:
    """The clock of a loader's loop."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.batches = self.wait_ns = self.compute_ns = self.start_ns = 0
        self._converted_ns = 0
        self._has_loaded = False
        self._conversions: list[int] = []  # that are not added up; a list takes them without a lock
        self.given_at = 0
        self._advised = False

    def begin(self) -> None:
        """An iteration begins: what was between it and the one before is nobody's."""
        self.given_at = 0

    def gave(self, asked_at: int, given_at: int) -> bool:
        """A batch was asked for and given, at these moments of ``perf_counter_ns``.

        Returns:
            True once, when the loop has waited more than half of a time that is long enough to judge.
        """
        with self._lock:
            self.batches += 1
            self.wait_ns += given_at - asked_at
            if self.given_at:
                self.compute_ns += asked_at - self.given_at
            elif self.batches == 1:
                self.start_ns = given_at - asked_at
            self.given_at = given_at
            if self._advised or self.batches < ADVISE_AFTER_BATCHES:
                return False
            waited = self.wait_ns - self.start_ns
            self._advised = waited > self.compute_ns and waited + self.compute_ns >= ADVISE_AFTER_NS
            return self._advised

    def converted(self, ns: int) -> None:
        """A batch became what the loop gets in so long; on any thread. The first is left out: libraries are loaded."""
        if not self._has_loaded:
            self._has_loaded = True
            return
        self._conversions.append(ns)
        if len(self._conversions) >= _FOLD_EVERY:
            self._fold()

    def _fold(self) -> None:
        with self._lock:
            count = len(self._conversions)
            self._converted_ns += sum(self._conversions[:count])
            del self._conversions[:count]  # what other threads have appended since then stays

    @property
    def convert_ns(self) -> int:
        """Time of all conversions."""
        self._fold()
        return self._converted_ns

    def advise(self, stats: LoaderStats) -> None:
        """Logs what a loop that waits can do."""
        if (text := stats.advice()) is not None:
            _log.warning("%s: %s. Said once; loader.stats() has the figures", stats.name, text)

    def metrics(self, labels: dict[str, str]) -> Iterator[Metric]:
        """The loop's values."""
        yield Metric("loader_batches_total", "Batches given to the loop.", self.batches, labels)
        yield Metric("loader_wait_seconds_total", "Time that the loop waited for batches.", self.wait_ns / 1e9, labels)
        yield Metric(
            "loader_compute_seconds_total", "Time between batches: the model's.", self.compute_ns / 1e9, labels
        )
        help_text = "Time of making PyG's objects of batches, but for the first."
        yield Metric("loader_convert_seconds_total", help_text, self.convert_ns / 1e9, labels)


def made_metrics(made: MadeStats, labels: dict[str, str]) -> Iterator[Metric]:
    """The values of what makes a loader's batches."""
    sums = made.sums
    yield Metric("batches_made_total", "Batches made, those ahead of their reader included.", sums.batches, labels)
    yield Metric("seeds_total", "Seeds of batches made.", sums.seeds, labels)
    yield Metric("nodes_total", "Nodes of batches made.", sums.nodes, labels)
    yield Metric("edges_total", "Edges of batches made.", sums.edges, labels)
    yield Metric("row_bytes_total", "Bytes of features and labels of batches made.", sums.row_bytes, labels)
    recent = "Of these, bytes that other partitions had answered before."
    yield Metric("recent_row_bytes_total", recent, sums.recent_bytes, labels)
    stages = {"sample": sums.sample_ns, "rows": sums.rows_ns, "send": sums.send_ns, "credit": sums.credit_ns}
    parts = {"seeds": sums.seeds_ns, "copy": sums.copy_ns, "split": sums.split_ns, "own": sums.own_ns}
    parts |= {"peers": sums.peers_ns, "stitch": sums.stitch_ns}
    help_text = "Time of batches by stage; all but sample, rows, send and credit are parts of sample and rows."
    for stage, ns in (stages | parts).items():
        yield Metric("batch_seconds_total", help_text, ns / 1e9, labels | {"stage": stage})
    yield Metric("sampling_workers", "Threads or processes that make batches.", made.num_workers, labels)
    yield Metric("worker_restarts_total", "Sampling workers that died and were started again.", made.restarts, labels)
