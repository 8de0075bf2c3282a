"""Requests to other partitions whose answers nobody waits for any more."""

from __future__ import annotations

import asyncio
import gc
import threading
from typing import Any

from graphlearn_dist.distributed.partitions.partition_peers import EndpointPeers, PartitionHolders
from graphlearn_dist.rpc import Endpoint
from graphlearn_dist.rpc.calls.remote import remote, remote_functions

DEADLINE_S = 60.0  # only ever reached by a hang


def test_leaving_with_requests_under_way_says_nothing() -> None:
    """A batch is called off while it waits for the first of its peers; the others' ends are nobody's errors."""
    num_asked, all_asked = 0, threading.Event()

    class Hanging:
        @remote
        async def one_hop(self, _: Any) -> None:
            nonlocal num_asked
            num_asked += 1
            if num_asked == 3:
                all_asked.set()
            await asyncio.get_running_loop().create_future()

    async def sample(client: Endpoint, holders: PartitionHolders) -> list[dict[str, Any]]:
        complaints: list[dict[str, Any]] = []
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: complaints.append(context))
        peers = EndpointPeers(client, holders, DEADLINE_S)
        function: Any = Hanging.one_hop

        async def make_batch() -> None:
            answers = [peers.ask(0, function, part) for part in range(3)]
            for answer in answers:
                await answer

        batch = asyncio.create_task(make_batch())
        assert await loop.run_in_executor(None, all_asked.wait, DEADLINE_S)
        batch.cancel()
        await asyncio.gather(batch, return_exceptions=True)
        await loop.run_in_executor(None, client.close)
        await asyncio.sleep(0)  # one turn of the loop: what the endpoint failed has arrived
        del batch
        gc.collect()
        return complaints

    with Endpoint("server", 0) as server, Endpoint("client", 0, listen_host=None) as client:
        server.register_all(remote_functions(Hanging()))
        server.join("127.0.0.1", 0, host_registry=True)
        client.join("127.0.0.1", server.master_port, timeout_s=DEADLINE_S)
        (holder,) = client.wait_for_members("server", 1, DEADLINE_S)
        assert asyncio.run(sample(client, PartitionHolders({0: holder.address}))) == []
