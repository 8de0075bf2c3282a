"""What a client says on its way out reaches servers whose connection was lost."""

from __future__ import annotations

import threading

from graphlearn_dist.distributed.session.closing_calls import ClosingCalls
from graphlearn_dist.rpc import Endpoint
from graphlearn_dist.rpc.calls.callees import current_connection
from graphlearn_dist.rpc.calls.remote import remote, remote_functions

DEADLINE_S = 30.0  # only ever reached by a hang


class Forgetful:
    """Cuts the connection of the first call; hears the second."""

    def __init__(self) -> None:
        self.told: list[int] = []
        self.heard = threading.Event()

    @remote
    async def forget(self, key: int) -> None:
        self.told.append(key)
        if len(self.told) == 1:
            current_connection().close("cut by a test")
        else:
            self.heard.set()


def test_a_connection_that_breaks_takes_no_call_along() -> None:
    holder = Forgetful()
    with Endpoint("server", 0) as server, Endpoint("client", 0) as client:
        server.register_all(remote_functions(holder))
        server.join("127.0.0.1", 0, host_registry=True)
        client.join("127.0.0.1", server.master_port, timeout_s=DEADLINE_S)
        client.wait_for_members("server", 1, DEADLINE_S)
        ClosingCalls(client).send(Forgetful.forget, {0: (3,)})
        assert holder.heard.wait(DEADLINE_S)
        assert holder.told == [3, 3]
