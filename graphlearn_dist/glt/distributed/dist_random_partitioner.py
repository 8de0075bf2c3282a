"""The names of ``graphlearn_torch.distributed.dist_random_partitioner``."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import torch

from ...data.schema import bare
from ...distributed import rpc
from ...distributed.dist_context import get_context
from ...distributed.dist_random_partitioner import DistRandomPartitioner as CoreDistRandomPartitioner
from ...errors import InvalidArgumentError, NotInitializedError
from ..partition.defaults import partitioner_init


class DistRandomPartitioner(CoreDistRandomPartitioner):
    """See ``graphlearn_dist.distributed.DistRandomPartitioner``."""

    __init__ = partitioner_init(CoreDistRandomPartitioner.__init__)

    @property
    def current_partition_idx(self) -> int:
        """The partition of this rank."""
        return self.partition_idx

    @property
    def data_cls(self) -> str:
        """``"homo"`` or ``"hetero"``."""
        return "homo" if None in self._slices.num_nodes else "hetero"

    @property
    def num_nodes(self) -> Any:
        """The number of nodes of the whole graph (by node type)."""
        return bare(dict(self._slices.num_nodes))

    @property
    def edge_assign_strategy(self) -> str:
        """``"by_src"`` or ``"by_dst"``."""
        return "by_src" if self.edge_dir == "out" else "by_dst"


class RpcUpdatePartitionValueCallee(rpc.RpcCalleeBase):
    """Takes a value for the partition of this rank."""

    def __init__(self, dist_partition_mgr: DistPartitionManager) -> None:
        self.dist_partition_mgr = dist_partition_mgr

    def call(self, *args: Any, **kwargs: Any) -> None:
        """Adds what another rank sends for this one: a value, and the partition."""
        self.dist_partition_mgr._update_part_val(*args, **kwargs)


class RpcUpdatePartitionBookCallee(rpc.RpcCalleeBase):
    """Takes owners of ids for the book of this rank."""

    def __init__(self, dist_partition_mgr: DistPartitionManager) -> None:
        self.dist_partition_mgr = dist_partition_mgr

    def call(self, *args: Any, **kwargs: Any) -> None:
        """Notes the owner of some ids: the ids, and the partition."""
        self.dist_partition_mgr._update_pb(*args, **kwargs)


class DistPartitionManager:
    """What the ranks of a worker group send each other while they partition something: values, and who owns which id.

    Each rank gives ``process`` its results for all partitions. When all ranks have done so (a ``barrier`` tells), each
    has the values for its own partition, and the whole book. Making one is collective: all ranks make theirs in the
    same order. ``DistRandomPartitioner`` does not use it; it is for a program's own partitioners.

    Args:
        total_val_size: ids of the book.
        generate_pb: whether there is a book.

    Attributes:
        num_parts, cur_pidx: of the worker group.
        cur_part_val_list: what came for this partition, in the order in which it came.
        partition_book: int64 ``[total_val_size]``, the owner of each id; None without ``generate_pb``.

    Raises:
        NotInitializedError: the worker group or its RPC is not initialized.
    """

    def __init__(self, total_val_size: int = 1, generate_pb: bool = True) -> None:
        context = get_context()
        if context is None or not rpc.rpc_is_initialized():
            raise NotInitializedError("call init_worker_group() and init_rpc() first")
        self.num_parts, self.cur_pidx = context.world_size, context.rank
        self._worker_names = rpc.get_rpc_current_group_worker_names()
        self._lock = threading.RLock()
        self.reset(total_val_size, generate_pb)
        self._value_callee = rpc.rpc_register(RpcUpdatePartitionValueCallee(self))
        self._book_callee = rpc.rpc_register(RpcUpdatePartitionBookCallee(self))

    def reset(self, total_val_size: int, generate_pb: bool = True) -> None:
        """Begins with the next thing to partition: no values, and a book of zeros."""
        with self._lock:
            self.generate_pb = generate_pb
            self.cur_part_val_list: list[Any] = []
            self.partition_book = torch.zeros(total_val_size, dtype=torch.int64) if generate_pb else None

    def process(self, res_list: Sequence[tuple[Any, torch.Tensor | None]]) -> None:
        """Sends results to the ranks that they are for, and their owners to all; waits until they have them.

        Args:
            res_list: for each partition a value, or None, and the ids that the book gives to it.

        Raises:
            InvalidArgumentError: there is not one result for each partition.
        """
        if len(res_list) != self.num_parts:
            raise InvalidArgumentError(f"res_list: expected {self.num_parts}, one a partition, got {len(res_list)}")
        sent = []
        for target, (value, ids) in enumerate(res_list):
            for rank, worker in enumerate(self._worker_names):
                if rank == target and rank == self.cur_pidx:
                    self._update_part_val(value, target)
                elif rank == target:
                    sent.append(rpc.rpc_request_async(worker, self._value_callee, (value, target)))
                if self.generate_pb and rank == self.cur_pidx:
                    self._update_pb(ids, target)
                elif self.generate_pb:
                    sent.append(rpc.rpc_request_async(worker, self._book_callee, (ids, target)))
        for answer in sent:
            answer.wait()

    def _update_part_val(self, value: Any, target_pidx: int) -> None:
        if target_pidx != self.cur_pidx:
            raise InvalidArgumentError(f"target_pidx: expected {self.cur_pidx}, this partition, got {target_pidx}")
        if value is not None:
            with self._lock:
                self.cur_part_val_list.append(value)

    def _update_pb(self, ids: torch.Tensor | None, target_pidx: int) -> None:
        with self._lock:
            if self.partition_book is None or ids is None:
                raise InvalidArgumentError("ids: expected ids of a manager with a book, generate_pb=True")
            self.partition_book[ids] = target_pidx


__all__ = [
    "DistPartitionManager",
    "DistRandomPartitioner",
    "RpcUpdatePartitionBookCallee",
    "RpcUpdatePartitionValueCallee",
]
