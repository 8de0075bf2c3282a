"""Counts of the batches that somebody makes for a loader, and of where their time goes."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, fields

import torch

from ..messages import SampledBatch
from ..utils.message_types import register_message

_ITEM_BYTES = 8
_BYTES_OF_AN_EDGE = 16
_FOLD_EVERY = 256  # counted batches that wait to be summed up, at most so many and one for each thread


@register_message
@dataclass(frozen=True)
class BatchSums:
    """Sums over the batches that were made for a loader.

    Times are those of each batch from its beginning to its end, which batches that are made together share; several
    batches may be under way at once.

    Attributes:
        batches: how many.
        seeds: their seeds, or links.
        nodes: their nodes, of all types.
        edges: their edges, of all types.
        row_bytes: bytes of the features, labels and other rows that were looked up.
        sample_ns: from the name of a batch to its nodes and edges.
        rows_ns: looking up rows.
        send_ns: waiting until a finished batch was taken over; a full queue is a trainer that is slower.
        seeds_ns: of ``sample_ns``, finding out which seeds a batch has, and drawing its negatives.
        copy_ns: of ``rows_ns``, writing to shared memory what of a batch is no row; rows are looked up to there.
        split_ns: of ``sample_ns`` and ``rows_ns``, splitting by owner and asking; this and the next three are 0 where
            all partitions are at hand.
        own_ns: of both, what this process's own partition was asked while others were.
        peers_ns: of both, waiting for other partitions beyond that.
        stitch_ns: of both, putting answers together.
        credit_ns: waiting, after all of that, until the reader's credit had room for a batch.
        recent_bytes: of ``row_bytes``, those that other partitions had answered for earlier batches.
    """

    batches: int = 0
    seeds: int = 0
    nodes: int = 0
    edges: int = 0
    row_bytes: int = 0
    sample_ns: int = 0
    rows_ns: int = 0
    send_ns: int = 0
    seeds_ns: int = 0
    copy_ns: int = 0
    split_ns: int = 0
    own_ns: int = 0
    peers_ns: int = 0
    stitch_ns: int = 0
    credit_ns: int = 0
    recent_bytes: int = 0

    def __add__(self, other: BatchSums) -> BatchSums:
        return BatchSums(*map(sum, zip(astuple(self), astuple(other), strict=True)))

    def __sub__(self, other: BatchSums) -> BatchSums:
        return BatchSums(*(mine - theirs for mine, theirs in zip(astuple(self), astuple(other), strict=True)))


_NAMES = [field.name for field in fields(BatchSums)]
NUM_COUNTS = len(_NAMES)
_SAMPLE, _ROWS, _SEND, _SEEDS, _COPY = range(5, 10)  # add_sizes gives the first seven
_EXCHANGES = range(10, 14)
_RECENT = _NAMES.index("recent_bytes")


class BatchCounts:
    """Where batches are counted; of one writing process, any number of its threads.

    Args:
        memory: int64 ``[NUM_COUNTS]`` that another process reads; memory of this process unless given.
    """

    def __init__(self, memory: memoryview | None = None) -> None:
        self._at = memoryview(bytearray(NUM_COUNTS * _ITEM_BYTES)).cast("q") if memory is None else memory
        self._is_shared = memory is not None
        self._waiting: list[tuple[int, int, int, int, int, int, int]] = []
        self._seed_times: list[int] = []
        self._seen = (0, 0, 0, 0)
        self._seen_recent = 0
        self._lock = threading.Lock()

    def add(
        self, made: Sequence[tuple[SampledBatch, Mapping[str, torch.Tensor]]], sample_ns: int, rows_ns: int
    ) -> None:
        """Batches were made together, with rows that were looked up for each."""
        seeds = nodes = ends = row_bytes = 0
        # Loops, as each comprehension is a call; numel, as size(1) takes three times as long.
        for batch, rows in made:
            seeds += batch.input_positions.numel()
            for ids in batch.subgraph.nodes:
                nodes += ids.numel()
            for pair in batch.subgraph.edge_index:
                ends += pair.numel()
            for compressed in batch.subgraph.adjacency:
                ends += 2 * compressed.rows.numel()
            for tensor in rows.values():
                row_bytes += tensor.nbytes
            for runs in batch.subgraph.unwritten:  # edges that were written together with the rows
                row_bytes -= 0 if runs is None else _BYTES_OF_AN_EDGE * len(runs)
        self.add_sizes(seeds, nodes, ends >> 1, row_bytes, sample_ns, rows_ns, batches=len(made))

    def add_sizes(
        self, seeds: int, nodes: int, edges: int, row_bytes: int, sample_ns: int, rows_ns: int, *, batches: int = 1
    ) -> None:
        """As ``add``, of batches of any form."""
        # A list takes them without a lock, in a tenth of the time that sums take; they are for whoever reads them.
        waiting = self._waiting
        waiting.append((batches, seeds, nodes, edges, row_bytes, sample_ns, rows_ns))
        if self._is_shared or len(waiting) >= _FOLD_EVERY:
            self._fold()

    def add_seeds(self, ns: int) -> None:
        """It took so long to find out which seeds some batches have."""
        self._seed_times.append(ns)
        if len(self._seed_times) >= _FOLD_EVERY:
            self._fold()

    def _fold(self) -> None:
        """Sums up what waits."""
        with self._lock:
            count = len(self._seed_times)
            self._at[_SEEDS] += sum(self._seed_times[:count])
            del self._seed_times[:count]
            count = len(self._waiting)
            if count == 1:
                sums: Iterable[int] = self._waiting[0]
            else:
                sums = map(sum, zip(*self._waiting[:count], strict=True))
            for at, value in enumerate(sums):
                self._at[at] += value
            del self._waiting[:count]  # what other threads have appended since then stays

    def add_times(self, *, sample_ns: int = 0, rows_ns: int = 0) -> None:
        """Stages of a batch that is counted by itself took so long."""
        with self._lock:
            self._at[_SAMPLE] += sample_ns
            self._at[_ROWS] += rows_ns

    def add_send(self, waited_ns: int) -> None:
        """A finished batch was taken over after so long."""
        with self._lock:
            self._at[_SEND] += waited_ns

    def add_copy(self, ns: int) -> None:
        """It took so long to write some batches to shared memory."""
        with self._lock:
            self._at[_COPY] += ns

    def follow_exchanges(self, times: tuple[int, int, int, int]) -> None:
        """``ExchangeRunner.times`` of this process, which only grow."""
        with self._lock:
            for at, now, seen in zip(_EXCHANGES, times, self._seen, strict=True):
                self._at[at] += now - seen
            self._seen = times

    def follow_recent(self, nbytes: int) -> None:
        """``FeatureCollector.recent_bytes`` of this process, which only grow."""
        if nbytes != self._seen_recent:
            with self._lock:
                self._at[_RECENT] += nbytes - self._seen_recent
                self._seen_recent = nbytes

    def sums(self) -> BatchSums:
        """What was counted until now."""
        self._fold()
        return BatchSums(*self._at.tolist())
