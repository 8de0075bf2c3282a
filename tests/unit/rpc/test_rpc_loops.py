"""Tasks that begin at once."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Iterator

import pytest

from graphlearn_dist.rpc.engine.loops import EndpointLoop

NUMBER: contextvars.ContextVar[int] = contextvars.ContextVar("number")


@pytest.fixture
def loop() -> Iterator[EndpointLoop]:
    loop = EndpointLoop()
    yield loop
    loop.close()


def context_of(number: int) -> contextvars.Context:
    context = contextvars.Context()
    context.run(NUMBER.set, number)
    return context


def on_loop(loop: EndpointLoop, work: Callable[[], None]) -> None:
    """Runs a function as a callback of the loop, outside of any task, and what it calls soon."""

    def callback() -> None:
        work()
        loop.call_soon(loop.stop)

    loop.call_soon(callback)
    loop.run_forever()


def test_a_coroutine_that_never_waits_is_over_at_once(loop: EndpointLoop) -> None:
    steps: list[object] = []

    async def answer() -> None:
        steps.append((NUMBER.get(), asyncio.current_task()))

    def callback() -> None:
        loop.call_soon(steps.append, "later")
        task = loop.begin_task(answer(), context_of(7))
        assert task.done()
        assert steps == [(7, task)]

    on_loop(loop, callback)
    assert steps[1:] == ["later"]


def test_a_coroutine_that_waits_goes_on_as_a_task(loop: EndpointLoop) -> None:
    began, tasks = [], []

    async def wait(future: asyncio.Future[int]) -> None:
        began.append(NUMBER.get())
        began.append(await asyncio.wait_for(future, 20))

    def callback() -> None:
        futures = [loop.create_future(), loop.create_future()]
        for number, future in enumerate(futures, 1):
            tasks.append(loop.begin_task(wait(future), context_of(number)))
        futures[0].set_result(10)
        tasks[1].cancel()
        assert began == [1, 2]

    on_loop(loop, callback)
    loop.run_until_complete(asyncio.wait(tasks))
    assert began == [1, 2, 10]
    assert tasks[1].cancelled()


def test_inside_a_task_a_coroutine_begins_later(loop: EndpointLoop) -> None:
    began: list[int] = []

    async def inner() -> None:
        began.append(1)

    async def outer() -> None:
        task = loop.begin_task(inner(), context_of(1))
        assert not began
        await task

    loop.run_until_complete(outer())
    assert began == [1]
