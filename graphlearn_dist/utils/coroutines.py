"""Coroutines that wait for nobody, and those that wait at once."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Generator, Iterable
from typing import Any, Generic, TypeVar

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


async def _call_off(tasks: Iterable[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def begin_all(coroutines: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """What several coroutines give: each is begun now, and goes on when those before it have ended.

    What they ask of others before they wait is asked at once, as with ``gather_all``. Those that never wait need no
    event loop here, and none of them needs a task.

    Where one fails, or this is cancelled, the others are cancelled before that is raised.
    """
    left, begun = iter(coroutines), list[_Begun[T]]()
    try:
        begun += map(_Begun, left)
        return [await each for each in begun]
    except BaseException:
        for each in left:
            each.close()
        for one in begun:
            one.call_off()
        raise


class _Begun(Generic[T]):
    """A coroutine that has run to its end, or until it waits; to be awaited once."""

    _result: T

    def __init__(self, coroutine: Coroutine[Any, Any, T]) -> None:
        self._coroutine = coroutine
        self._is_over = False
        self._waits_for: Any = None
        self._step(coroutine.send, None)

    def _step(self, go_on: Callable[[Any], Any], value: Any) -> None:
        try:
            self._waits_for = go_on(value)
        except StopIteration as end:
            self._is_over, self._result = True, end.value
        except BaseException:
            self._is_over = True
            raise

    def __await__(self) -> Generator[Any, Any, T]:
        while not self._is_over:
            try:
                value = yield self._waits_for
            except BaseException as error:  # it is the coroutine's, which waits
                self._step(self._coroutine.throw, error)
            else:
                self._step(self._coroutine.send, value)
        return self._result

    def call_off(self) -> None:
        """Cancels it, whatever it makes of that."""
        if self._is_over:
            return
        with contextlib.suppress(asyncio.CancelledError, Exception):
            self._coroutine.throw(asyncio.CancelledError())
        self._coroutine.close()
