"""Coroutines that wait for nobody, and those that wait at once."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine, Iterable
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

    Where one fails, or this is cancelled, the others are cancelled, once, and have ended before that is raised: this
    may take as long as what they do then.
    """
    tasks = [asyncio.create_task(each) for each in coroutines]
    try:
        if tasks:  # unlike ``gather``, ``wait`` leaves it to us to cancel them
            await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        return await asyncio.gather(*tasks)
    except BaseException:
        await _call_off(tasks)
        raise
    finally:
        tasks.clear()  # an error's traceback leads here, and its task to the error: no memory waits for a collection


async def _call_off(tasks: Iterable[asyncio.Task[Any]]) -> None:
    left = [task for task in tasks if not task.done()]
    for task in left:
        task.cancel()
    while left:
        with contextlib.suppress(asyncio.CancelledError):  # something is about to be raised as it is
            await asyncio.wait(left)
        left = [task for task in left if not task.done()]
    for task in tasks:
        if not task.cancelled():
            task.exception()  # seen
