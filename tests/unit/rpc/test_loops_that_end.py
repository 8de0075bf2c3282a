"""What is asked of a loop at the moment in which it ends is done or refused: its caller never waits for ever."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import CancelledError
from typing import Any

import pytest

from graphlearn_dist.distributed.event_loop import LoopThread
from graphlearn_dist.errors import NotInitializedError, PeerLostError
from graphlearn_dist.rpc import Endpoint, PeerAddress

DEADLINE_S = 60.0  # only ever reached by a hang
USER, CLOSER = "user", "closer"


class Posting:
    """A lock that says whether who closes had to wait for it."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self.is_wanted = threading.Event()
        self.was_free = True

    def __enter__(self) -> None:
        if threading.current_thread().name != CLOSER:
            self._lock.acquire()
            return
        self.was_free = self._lock.acquire(blocking=False)
        self.is_wanted.set()
        if not self.was_free:
            self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


def a_loop() -> tuple[Any, Callable[[], Any], Callable[[], Any]]:
    loop = LoopThread("a loop")
    loop.start()
    return loop, lambda: loop.run(asyncio.sleep(DEADLINE_S)), loop.stop


def an_endpoint() -> tuple[Any, Callable[[], Any], Callable[[], Any]]:
    endpoint = Endpoint("client", 0).open()
    nobody = PeerAddress("127.0.0.1", 1)
    return endpoint, lambda: endpoint.connect(nobody, DEADLINE_S).result(DEADLINE_S), endpoint.close


@pytest.mark.parametrize("make", [a_loop, an_endpoint])
def test_what_is_begun_while_it_closes(make: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    closing, ask, close = make()
    closing._posting = posting = Posting()
    post, is_asked = asyncio.run_coroutine_threadsafe, threading.Event()

    def post_late(coroutine: Any, loop: Any) -> Any:
        if threading.current_thread().name == USER:  # whose thread is kept waiting here until somebody closes
            is_asked.set()
            assert posting.is_wanted.wait(DEADLINE_S)
        return post(coroutine, loop)

    monkeypatch.setattr(asyncio, "run_coroutine_threadsafe", post_late)
    endings: list[BaseException] = []

    def use() -> None:
        try:
            ask()
        except BaseException as error:
            endings.append(error)

    user = threading.Thread(target=use, name=USER, daemon=True)
    closer = threading.Thread(target=close, name=CLOSER, daemon=True)
    user.start()
    assert is_asked.wait(DEADLINE_S)
    closer.start()
    for thread in (user, closer):
        thread.join(DEADLINE_S)
        assert not thread.is_alive()
    assert not posting.was_free
    (ending,) = endings
    assert isinstance(ending, (CancelledError, NotInitializedError, PeerLostError))
