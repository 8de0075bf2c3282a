"""Threads that send requests and receive answers themselves, beside the endpoint's loop; over both engines."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import ExitStack
from types import FrameType
from typing import Any

import pytest
import torch

from graphlearn_dist.config import RpcSettings
from graphlearn_dist.errors import DeadlineExceededError, PeerLostError, RemoteError
from graphlearn_dist.rpc import Endpoint, encode
from graphlearn_dist.rpc.calls.callees import current_connection

DEADLINE_S = 60.0


class Pair:
    """A server and its client, in one process."""

    def __init__(self, engine: str, stack: ExitStack) -> None:
        settings = RpcSettings(engine=engine, max_inflight=16, request_timeout_s=DEADLINE_S)
        self.server = stack.enter_context(Endpoint("server", 0, settings=settings))
        self.client = stack.enter_context(Endpoint("client", 0, settings=settings))
        self.gate = threading.Event()
        self.entered = threading.Semaphore(0)
        self.numbers: list[int] = []
        stack.callback(self.gate.set)
        for function in (self.echo, self.wait, self.collect, self.tell, self.fail):
            self.server.register(function.__name__, function)
        assert self.call("echo", 1) == 1  # connected

    def call(self, function: str, *args: Any, **kwargs: Any) -> Any:
        return self.client.call(self.server.address, function, *args, **kwargs)

    def request(self, function: str, *args: Any, **kwargs: Any) -> Future[Any]:
        return self.client.request(self.server.address, function, *args, **kwargs)

    async def echo(self, value: Any) -> Any:
        return value

    def wait(self, value: int) -> int:
        self.entered.release()
        self.gate.wait(DEADLINE_S)
        return value

    async def collect(self, number: int, payload: torch.Tensor) -> None:
        assert payload.eq(number).all()
        self.numbers.append(number)

    async def tell(self, number: int) -> int:
        current_connection().send_event("number", encode(number))
        return number

    async def fail(self) -> None:
        raise KeyError("no such thing")


@pytest.fixture(params=["native", "python"])
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    with ExitStack() as stack:
        yield Pair(request.param, stack)


def in_thread(work: Callable[[], Any]) -> Future[Any]:
    """Runs ``work`` in a thread of its own."""
    future: Future[Any] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


@pytest.mark.parametrize("engine", ["native"])
def test_small_calls_need_no_loop(engine: str) -> None:
    """While the client's loop does something else, its threads send, and receive answers and errors."""
    with ExitStack() as stack:
        pair = Pair(engine, stack)
        blocked, over = threading.Event(), threading.Event()
        stack.callback(over.set)

        def block() -> None:
            blocked.set()
            over.wait(DEADLINE_S)

        pair.client.loop.call_soon_threadsafe(block)
        assert blocked.wait(DEADLINE_S)
        for number in range(20):
            x = torch.full((100,), number)
            assert torch.equal(pair.call("echo", x), x)
        with pytest.raises(RemoteError, match="no such thing"):
            pair.call("fail")


def test_requests_of_a_thread_keep_their_order(pair: Pair) -> None:
    """Small ones, sent by the thread, do not overtake large ones, sent by the loop, nor those above the limit."""
    futures = [pair.request("collect", n, torch.full((9 if n % 3 else 30_000,), n)) for n in range(200)]
    for future in futures:
        future.result(DEADLINE_S)
    assert pair.numbers == list(range(200))


def test_what_came_before_an_answer_is_known_with_it(pair: Pair) -> None:
    heard: list[int] = []
    pair.client.subscribe("number", lambda connection, value: heard.append(value))
    for number in range(200):
        assert pair.call("tell", number) == number
        assert heard[-1] == number


def test_a_wait_that_ends_early_loses_no_answer(pair: Pair) -> None:
    future = pair.request("wait", 5)
    for _ in range(3):
        with pytest.raises(FutureTimeoutError):
            future.result(0.01)
    waiting = [in_thread(future.result) for _ in range(3)]  # one receives, the others are told
    pair.gate.set()
    assert [other.result(DEADLINE_S) for other in waiting] == [5, 5, 5]
    assert future.result() == 5
    assert future.exception() is None


def test_a_signal_ends_a_wait(pair: Pair) -> None:
    class Interrupted(Exception):
        pass

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise Interrupted

    def wait() -> None:
        in_thread(kill)
        future.result(DEADLINE_S)

    def kill() -> None:
        assert pair.entered.acquire(timeout=DEADLINE_S)
        signal.pthread_kill(main, signal.SIGUSR1)

    main = threading.get_ident()
    before = signal.signal(signal.SIGUSR1, interrupt)
    try:
        future = pair.request("wait", 5)
        with pytest.raises(Interrupted):
            wait()
    finally:
        signal.signal(signal.SIGUSR1, before)
    pair.gate.set()
    assert future.result(DEADLINE_S) == 5


def test_who_waits_hears_of_the_end(pair: Pair) -> None:
    """A deadline, a cancellation and the loss of the peer all end the wait of a thread."""
    with pytest.raises(DeadlineExceededError, match=r"wait: no answer from server-0 within 0\.2 s"):
        pair.call("wait", 1, timeout_s=0.2)
    cancelled, lost = pair.request("wait", 2), pair.request("wait", 3)
    waiting = [in_thread(cancelled.result), in_thread(lost.result)]
    assert cancelled.cancel()
    assert isinstance(waiting[0].exception(DEADLINE_S), CancelledError)
    threading.Thread(target=pair.server.close, daemon=True).start()
    assert isinstance(waiting[1].exception(DEADLINE_S), PeerLostError)


def test_deadlines_pass_in_their_order(pair: Pair) -> None:
    """Of many calls the shortest limit comes first, whatever the order in which they were made."""
    over: list[float] = []
    limits = (25.0, 0.6, 20.0, 0.3, 0.9)
    futures = {limit: pair.request("wait", 0, timeout_s=limit) for limit in limits}
    for limit, future in futures.items():
        future.add_done_callback(lambda done, limit=limit: over.append(limit))  # type: ignore[misc]
    for limit in (0.9, 0.6, 0.3):
        assert isinstance(futures[limit].exception(DEADLINE_S), DeadlineExceededError)
    assert over == [0.3, 0.6, 0.9]
    assert not futures[20.0].done()
