"""The other partitions, as a sampling worker sees them: servers it asks."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Any

from ..config import RpcSettings, job_token
from ..rpc import Endpoint
from ..rpc.peers import PeerAddress


class ServerPeers:
    """Connections to the servers that hold the other partitions; a context manager.

    Args:
        name: of this process, for the peers' logs.
        rank: of this process.
        addresses: by partition, the server that holds it.
        request_timeout_s: deadline of each request.
    """

    def __init__(self, name: str, rank: int, addresses: dict[int, PeerAddress], request_timeout_s: float) -> None:
        settings = RpcSettings(request_timeout_s=request_timeout_s, num_threads=1)
        self._addresses = addresses
        self._endpoint = Endpoint(
            "sampling_worker", rank, name=name, settings=settings, token=job_token(), listen_host=None
        )

    def __enter__(self) -> ServerPeers:
        self._endpoint.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._endpoint.close()

    def ask(self, partition: int, function: str, request: Any) -> asyncio.Future[Any]:
        """Sends a request to the holder of a partition; the answer comes in the running loop."""
        return asyncio.wrap_future(self._endpoint.request(self._addresses[partition], function, request))
