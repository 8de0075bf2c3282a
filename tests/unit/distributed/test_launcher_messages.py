"""What a client hears from its launcher."""

from __future__ import annotations

import os

import pytest

from graphlearn_dist.distributed.session.launcher_messages import LauncherMessages
from graphlearn_dist.errors import PeerLostError
from graphlearn_dist.rpc import Endpoint

DEADLINE_S = 20.0  # shorter than connecting is tried


def test_nobody_waits_for_a_server_that_was_given_up() -> None:
    """Neither who waits for it now, nor who asks later; the others are asked as before."""
    reading, writing = os.pipe()
    with Endpoint("client", 0) as client:
        client.join("127.0.0.1", 0, host_registry=True)
        client.register("here", lambda: True)
        news = LauncherMessages(reading, client)
        waiting = client.request(("server", 1), "anything")
        os.write(writing, b'{"role": "server", "rank": 1, "why": "it was killed"}\n')
        for future in (waiting, news.alarm, client.request(("server", 1), "anything")):
            with pytest.raises(PeerLostError, match="lost server 1: the launcher has given it up: it was killed"):
                future.result(DEADLINE_S)
        assert client.call(("client", 0), "here", timeout_s=DEADLINE_S)
        client.loop.call_soon_threadsafe(news.close)
    os.close(reading)
    os.close(writing)
