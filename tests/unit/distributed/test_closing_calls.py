"""What a client says on its way out reaches servers whose connection was lost."""

from __future__ import annotations

import threading

from graphlearn_dist.distributed.session.closing_calls import ClosingCalls
from graphlearn_dist.rpc import Endpoint
from graphlearn_dist.rpc.calls.callees import current_connection

DEADLINE_S = 30.0  # only ever reached by a hang


def test_a_connection_that_breaks_takes_no_call_along() -> None:
    heard, told = threading.Event(), []

    async def forget(key: int) -> None:
        told.append(key)
        if len(told) == 1:
            current_connection().close("cut by a test")
        else:
            heard.set()

    with Endpoint("server", 0) as server, Endpoint("client", 0) as client:
        server.register("forget", forget)
        server.join("127.0.0.1", 0, host_registry=True)
        client.join("127.0.0.1", server.master_port, timeout_s=DEADLINE_S)
        client.wait_for_members("server", 1, DEADLINE_S)
        ClosingCalls(client).send("forget", {0: (3,)})
        assert heard.wait(DEADLINE_S)
        assert told == [3, 3]
