"""What the workers of a group do for each other: serve their partitions, and wait for each other at the end."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import threading
from dataclasses import dataclass, replace

from ...config import share_partitions
from ...data.schema import GraphSchema
from ...errors import InvalidArgumentError, RpcError
from ...rpc import Endpoint
from ...rpc.calls.callees import current_connection
from ...rpc.calls.remote import LONGEST_S, Remote, remote, remote_functions
from ...rpc.peers.identity import PeerAddress
from ...utils.message_types import register_message
from ..dist_context import DistContext
from ..dist_dataset import DistDataset
from ..partitions.host_partitions import SharedPartition, describe_partition
from ..partitions.partition_peers import PartitionHolders
from ..partitions.partition_service import SERVICE, PartitionService


@register_message
@dataclass(frozen=True)
class PartitionInfo:
    """Which partition of which data set a worker holds, and how processes of its host read it in place."""

    num_partitions: int
    partition_idx: int
    schema: GraphSchema
    shared: SharedPartition | None = None


class WorkerGroup:
    """This worker's part in its group.

    The ``n``-th data set that a worker opens loaders of is the ``n``-th of every other worker: all of them name it by
    that number, and each holds one of its partitions.

    Args:
        endpoint: the worker's; before it joins, so that nobody's question comes too early.
        context: who it is.
    """

    def __init__(self, endpoint: Endpoint, context: DistContext) -> None:
        self._endpoint = endpoint
        self._context = context
        self._lock = threading.Lock()
        self._served: list[tuple[DistDataset, PartitionInfo]] = []
        self._shared: set[int] = set()  # numbers of those that processes of this host have mapped
        self._waiting: dict[int, asyncio.Future[None]] = {}
        self._is_done = asyncio.Event()
        endpoint.register_all(remote_functions(self))

    # --- partitions --------------------------------------------------------------------------------------------

    def serve(self, dataset: DistDataset) -> int:
        """Lets the other workers ask for this partition, from now until the end; the data set's number."""
        with self._lock:
            for number, (served, _) in enumerate(self._served):
                if served is dataset:
                    return number
            number = len(self._served)
            self._answer_for(number, dataset)
            info = PartitionInfo(dataset.num_partitions, dataset.partition_idx, dataset.schema)
            self._served.append((dataset, info))
        self._endpoint.loop.call_soon_threadsafe(self._wake, number)
        return number

    def _answer_for(self, number: int, dataset: DistDataset) -> None:
        """Answers for the partition from where its arrays lie now."""
        service, suffix = PartitionService(dataset), self._suffix(number)
        self._endpoint.register_all(remote_functions(service, suffix))
        self._endpoint.answer_queries(SERVICE + suffix, service.native)

    @staticmethod
    def _suffix(number: int) -> str:
        return f".{number}" if number else ""

    def _wake(self, number: int) -> None:
        waiting = self._waiting.pop(number, None)
        if waiting is not None:
            waiting.set_result(None)

    @remote
    async def describe_partition(self, number: int) -> PartitionInfo:
        """What this worker holds of a data set; waits until it has opened a loader of it."""
        if number >= len(self._served):
            if number not in self._waiting:
                self._waiting[number] = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._waiting[number])
        dataset, info = self._served[number]
        if current_connection().kind != "unix" or not share_partitions():
            return info
        loop = asyncio.get_running_loop()
        share = functools.partial(dataset.to_handle, with_splits=True)
        handle = await loop.run_in_executor(None, share)  # may copy, once, what is in private memory
        if number not in self._shared:
            self._shared.add(number)
            self._answer_for(number, dataset)  # what its arrays were copied from goes
        return replace(info, shared=describe_partition(handle))

    def find_holders(self, dataset: DistDataset, timeout_s: float) -> PartitionHolders:
        """Serves this partition, and says who serves the others; waits until all workers have come so far.

        Raises:
            DeadlineExceededError: a worker did not join, or did not open a loader of this data set.
            PeerLostError: a worker is gone.
            InvalidArgumentError: nobody holds some partition, or another worker's data set differs from this one.
        """
        number, context = self.serve(dataset), self._context
        mine = self._served[number][1]
        members = self._endpoint.wait_for_members("worker", context.world_size, timeout_s)
        others = [member for member in members if member.rank != context.rank]
        asked = [
            Remote[WorkerGroup](self._endpoint, member.name, timeout_s=timeout_s).ask(
                WorkerGroup.describe_partition, number
            )
            for member in others
        ]
        holders: dict[int, list[tuple[PeerAddress, SharedPartition | None]]] = {}
        for member, answer in zip(others, asked, strict=True):
            theirs = answer.result()
            if (theirs.num_partitions, theirs.schema) != (mine.num_partitions, mine.schema):
                raise InvalidArgumentError(
                    f"data: {member.name} has {theirs} where this worker has {mine}; workers must open loaders of "
                    "several data sets in the same order"
                )
            holders.setdefault(theirs.partition_idx, []).append((member.address, theirs.shared))
        missing = set(range(mine.num_partitions)) - {mine.partition_idx, *holders}
        if missing:
            raise InvalidArgumentError(f"data: none of {context.world_size} workers holds partitions {sorted(missing)}")
        chosen = {
            partition: held[context.rank % len(held)]
            for partition, held in holders.items()
            if partition != mine.partition_idx
        }
        addresses = {partition: address for partition, (address, _) in chosen.items()}
        shared = {partition: entry for partition, (_, entry) in chosen.items() if entry and share_partitions()}
        endpoint = self._endpoint
        return PartitionHolders(addresses, shared, self._suffix(number), endpoint.settings.tls, endpoint.token)

    # --- the end -----------------------------------------------------------------------------------------------

    @remote
    async def wait_until_done(self) -> None:
        """Waits until this worker has come to ``wait_for_others``."""
        await self._is_done.wait()

    def wait_for_others(self, timeout_s: float | None = None) -> None:
        """Serves until every other member of the group has come here too, or is gone.

        Args:
            timeout_s: how long at most; None waits as long as the others live.
        """
        self._endpoint.loop.call_soon_threadsafe(self._is_done.set)
        members = self._endpoint.members("worker")
        limit = LONGEST_S if timeout_s is None else timeout_s
        asked = [
            Remote[WorkerGroup](self._endpoint, member.name, timeout_s=limit, fail_fast=True).ask(
                WorkerGroup.wait_until_done
            )
            for member in members
            if member.rank != self._context.rank
        ]
        for answer in asked:
            with contextlib.suppress(RpcError):  # it is gone, or too slow: nobody waits for it any more
                answer.result()
