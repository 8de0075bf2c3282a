"""The other partitions, as those who sample see them: processes that serve them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from ..config import RpcSettings, job_token
from ..rpc import Endpoint
from ..rpc.peers import PeerAddress
from .host_partitions import SharedPartition


@dataclass(frozen=True)
class PartitionHolders:
    """Who serves the other partitions of a data set.

    Attributes:
        addresses: by partition; empty where there are no others.
        shared: those of them that another process of this host holds, to be read in place.
        suffix: of the names of the functions to call; tells several data sets of one process apart.
    """

    addresses: dict[int, PeerAddress]
    shared: dict[int, SharedPartition] = field(default_factory=dict)
    suffix: str = ""


class EndpointPeers:
    """Asks the holders of the other partitions over an endpoint that is open.

    Args:
        endpoint: whose connections are used.
        holders: who serves what.
        request_timeout_s: deadline of each request.
    """

    def __init__(self, endpoint: Endpoint, holders: PartitionHolders, request_timeout_s: float) -> None:
        self._endpoint = endpoint
        self._addresses: Mapping[int, PeerAddress] = holders.addresses
        self._suffix = holders.suffix
        self._timeout_s = request_timeout_s

    def ask(self, partition: int, function: str, request: Any) -> asyncio.Future[Any]:
        """Sends a request to the holder of a partition; the answer comes in the running loop."""
        name, address = function + self._suffix, self._addresses[partition]
        # It listened when it said what it holds: where it cannot be reached now, it is gone, and waiting does not help.
        future = self._endpoint.request(address, name, request, timeout_s=self._timeout_s, fail_fast=True)
        return asyncio.wrap_future(future)


class ServerPeers(EndpointPeers):
    """The same over an endpoint of its own, open for the time of a ``with`` block.

    Args:
        name: of this process, for the peers' logs.
        rank: of this process.
        holders: who serves what.
        request_timeout_s: deadline of each request.
    """

    def __init__(self, name: str, rank: int, holders: PartitionHolders, request_timeout_s: float) -> None:
        settings = RpcSettings(request_timeout_s=request_timeout_s, num_threads=1)
        endpoint = Endpoint("sampling_worker", rank, name=name, settings=settings, token=job_token(), listen_host=None)
        super().__init__(endpoint, holders, request_timeout_s)

    def __enter__(self) -> ServerPeers:
        self._endpoint.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._endpoint.close()
