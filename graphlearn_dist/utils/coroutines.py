"""Coroutines that wait for nobody, and those that wait at once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine, Iterable
from typing import Any, TypeVar

T = TypeVar("T")


def run_local(coroutine: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine to its end, without an event loop.

    What asks other processes when it has to is written once, as a coroutine; where everything is in this process it
    never waits.

    Raises:
        RuntimeError: it did wait.
    """
    try:
        coroutine.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    coroutine.close()
    raise RuntimeError(f"{coroutine} waits for another process; run it in an event loop")


async def gather_all(coroutines: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """What several coroutines give that run at once.

    Where one fails, or this is cancelled, the others are cancelled and have ended before that is raised.
    """
    tasks = [asyncio.create_task(each) for each in coroutines]
    try:
        return await asyncio.gather(*tasks)
    except BaseException:
        await _call_off(tasks)
        raise
    finally:
        tasks.clear()  # an error's traceback leads here, and its task to the error: no memory waits for a collection


async def _call_off(tasks: Iterable[asyncio.Future[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def within(awaitable: Awaitable[T], timeout_s: float | None) -> T:
    """What an awaitable gives within so many seconds; else it is cancelled.

    As ``asyncio.wait_for``, which before Python 3.12 forgets that it was cancelled where the result is there already.

    Raises:
        asyncio.TimeoutError: it took longer.
    """
    task = asyncio.ensure_future(awaitable)
    try:
        await asyncio.wait((task,), timeout=timeout_s)
    except BaseException:
        await _call_off((task,))
        raise
    if task.done():
        return task.result()
    await _call_off((task,))
    if task.cancelled():
        raise asyncio.TimeoutError
    return task.result()
