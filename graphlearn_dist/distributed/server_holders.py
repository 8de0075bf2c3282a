"""Which servers hold the other partitions of a data set, as one of them finds out."""

from __future__ import annotations

import asyncio

from ..config import share_partitions
from ..errors import GraphLearnError, InvalidArgumentError, NotInitializedError
from ..rpc.peers import Member, PeerAddress
from . import rpc
from .dist_context import DistContext, get_context
from .dist_dataset import DistDataset
from .host_partitions import SharedPartition
from .partition_peers import PartitionHolders

SHARE_PARTITION = "DistServer.share_partition"
_ANSWER_S = 10.0  # a member that does not say what it holds within this time has a successor, or will have
_RETRY_S = 0.5


class ServerHolders:
    """The servers that hold the other partitions: asked once, and again when one was lost. On the endpoint's loop.

    Args:
        dataset: the partition that is held here.
    """

    def __init__(self, dataset: DistDataset) -> None:
        self._dataset = dataset
        self._known = PartitionHolders({}) if dataset.num_partitions == 1 else None
        self._num_lost = 0

    @property
    def are_known(self) -> bool:
        """Whether they have been asked since the last was lost."""
        return self._known is not None

    def forget(self) -> None:
        """A server is gone: when it comes back it listens elsewhere."""
        if self._dataset.num_partitions > 1:
            self._num_lost += 1
            self._known = None

    async def find(self) -> PartitionHolders:
        """The first server that holds each other partition; the same object until one is lost. Waits for all servers.

        Raises:
            InvalidArgumentError: they serve different data sets, or nobody serves a partition.
            DeadlineExceededError: one of them did not come.
            PeerLostError: one of them, or the registry, is gone.
        """
        while self._known is None:
            num_lost = self._num_lost
            found = await self._ask()
            if num_lost == self._num_lost:
                self._known = found
        return self._known

    async def find_at_last(self) -> PartitionHolders:
        """As ``find``, for as long as it takes: a server that came back may be gone again, or not answer yet."""
        while True:
            try:
                return await self.find()
            except GraphLearnError:
                await asyncio.sleep(_RETRY_S)

    async def _ask(self) -> PartitionHolders:
        own = self._dataset.partition_idx
        found: dict[int, PeerAddress] = {own: rpc.get_endpoint().address}
        shared: dict[int, SharedPartition] = {}
        for member, partition, in_place in await self._ask_members():
            if partition in found:
                continue
            found[partition] = member.address
            if in_place is not None and share_partitions():
                shared[partition] = in_place
        missing = set(range(self._dataset.num_partitions)) - {*found}
        if missing:
            raise InvalidArgumentError(f"dataset: no server holds partitions {sorted(missing)}")
        del found[own]
        endpoint = rpc.get_endpoint()
        return PartitionHolders(found, shared, tls=endpoint.settings.tls, token=endpoint.token)

    async def _ask_members(self) -> list[tuple[Member, int, SharedPartition | None]]:
        """Every other server by rank, with its partition and how that is read in place."""
        endpoint, context = rpc.get_endpoint(), _server_context()
        loop = asyncio.get_running_loop()
        members = await loop.run_in_executor(None, endpoint.wait_for_members, "server", context.world_size)
        others = [member for member in members if member.rank != context.rank]
        answers = [endpoint.request(member.name, SHARE_PARTITION, timeout_s=_ANSWER_S) for member in others]
        held = []
        for member, answer in zip(others, answers, strict=True):
            num_partitions, partition, in_place = await asyncio.wrap_future(answer)
            if num_partitions != self._dataset.num_partitions:
                raise InvalidArgumentError(
                    f"dataset: {member.name} serves a data set of {num_partitions} partitions, this server one of "
                    f"{self._dataset.num_partitions}"
                )
            held.append((member, partition, in_place))
        return held


def _server_context() -> DistContext:
    context = get_context()
    if context is None:
        raise NotInitializedError("there is no server in this process: call init_server first")
    return context
