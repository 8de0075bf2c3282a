"""Which worker of a group is asked for a partition that several of them hold."""

from __future__ import annotations

import threading

from ...errors import InvalidArgumentError


class RpcDataPartitionRouter:
    """Which worker to ask for a partition: those that hold it, in turn.

    Args:
        partition2workers: names of the workers that hold each partition.

    Raises:
        InvalidArgumentError: nobody holds some partition.
    """

    def __init__(self, partition2workers: list[list[str]]) -> None:
        orphans = [index for index, workers in enumerate(partition2workers) if not workers]
        if orphans:
            raise InvalidArgumentError(f"partition2workers: nobody holds the partitions {orphans}")
        self.partition2workers = [list(workers) for workers in partition2workers]
        self._turns = [0] * len(partition2workers)
        self._lock = threading.Lock()

    def get_to_worker(self, data_partition_idx: int) -> str:
        """The name of the worker to ask next for a partition."""
        if not 0 <= data_partition_idx < len(self.partition2workers):
            last = len(self.partition2workers) - 1
            raise InvalidArgumentError(f"data_partition_idx: expected 0 to {last}, got {data_partition_idx}")
        workers = self.partition2workers[data_partition_idx]
        with self._lock:
            turn = self._turns[data_partition_idx]
            self._turns[data_partition_idx] = turn + 1
        return workers[turn % len(workers)]
