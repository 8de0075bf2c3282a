"""What the workers of a producer count, in memory that their owner reads."""

from __future__ import annotations

from collections.abc import Callable

import torch

from ...data import shared_memory
from ...messages import TensorHandle
from ...telemetry import BatchSums
from ...telemetry.batch_counts import NUM_COUNTS as NUM_BATCH_COUNTS

NUM_COUNTS = 3  # see FeatureCollector.counts


class SharedBatchCounts:
    """The counts of a producer's batches; each worker, and who follows it, adds to a row of its own.

    Args:
        num_workers: how many rows.
    """

    def __init__(self, num_workers: int) -> None:
        self._rows = shared_memory.share(torch.zeros(num_workers, NUM_BATCH_COUNTS, dtype=torch.int64))

    def handle_of(self, rank: int) -> TensorHandle:
        """Where a worker counts."""
        return shared_memory.to_handle(self._rows[rank])

    def sums(self) -> BatchSums:
        """Of all workers, now."""
        return BatchSums(*self._rows.sum(0).tolist())


class RowCounts:
    """The counts of a producer's workers, which add to rows of their own.

    Args:
        num_workers: how many rows.
        on_close: given the sums when the workers have ended.
    """

    def __init__(self, num_workers: int, on_close: Callable[[RowCounts], None]) -> None:
        self._rows = shared_memory.share(torch.zeros(num_workers, NUM_COUNTS, dtype=torch.int64))
        self._on_close = on_close

    def handle_of(self, rank: int) -> TensorHandle:
        """Where a worker counts."""
        return shared_memory.to_handle(self._rows[rank])

    def sums(self) -> torch.Tensor:
        """int64 ``[3]``, of all workers, now."""
        return self._rows.sum(0)

    def close(self) -> None:
        """The workers have ended."""
        self._on_close(self)


def open_counts(handle: TensorHandle) -> torch.Tensor:
    """Where this process counts; private memory where the owner has ended."""
    counts = shared_memory.from_handle(handle)
    shared = shared_memory.map_writable(counts)
    return counts if shared is None else shared
