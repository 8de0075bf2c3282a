"""Coroutines that are begun together."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from graphlearn_dist.utils.coroutines import begin_all, run_local


async def give(value: int) -> int:
    return value


async def fail(error: Exception) -> int:
    raise error


def test_those_that_never_wait_need_no_event_loop() -> None:
    assert run_local(begin_all(give(i) for i in range(3))) == [0, 1, 2]
    assert run_local(begin_all([])) == []


def test_all_have_asked_before_any_is_answered() -> None:
    log: list[str] = []

    async def ask(name: str, answers: asyncio.Queue[str]) -> str:
        log.append(f"{name} asks")
        answer = await answers.get()
        log.append(f"{name} got {answer}")
        return answer + await answers.get()

    async def run() -> list[str]:
        queues: list[asyncio.Queue[str]] = [asyncio.Queue() for _ in range(3)]
        together = asyncio.create_task(begin_all(ask("abc"[i], queue) for i, queue in enumerate(queues)))
        await asyncio.sleep(0)
        assert log == ["a asks", "b asks", "c asks"]
        for i in (2, 0, 1):  # whoever is answered first
            queues[i].put_nowait(str(i))
            queues[i].put_nowait("!")
        return await together

    assert asyncio.run(run()) == ["0!", "1!", "2!"]


@pytest.mark.parametrize("fails_at_once", [True, False])
def test_where_one_fails_the_others_are_cancelled(fails_at_once: bool) -> None:
    ended: list[Any] = []

    async def wait(name: str) -> int:
        try:
            return await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            ended.append(name)
            raise

    async def fail_later() -> int:
        await asyncio.sleep(0)
        raise ValueError("later")

    async def run() -> None:
        broken = fail(ValueError("at once")) if fails_at_once else fail_later()
        order = [wait("a"), broken, wait("b")] if fails_at_once else [broken, wait("a"), wait("b")]
        with pytest.raises(ValueError, match="at once" if fails_at_once else "later"):
            await begin_all(order)

    asyncio.run(run())
    assert ended == (["a"] if fails_at_once else ["a", "b"])  # what was not begun has nothing to end


def test_cancelling_reaches_all() -> None:
    ended: list[str] = []

    async def wait(name: str) -> int:
        try:
            return await asyncio.get_running_loop().create_future()
        finally:
            ended.append(name)

    async def run() -> None:
        together = asyncio.create_task(begin_all([wait("a"), give(1), wait("b")]))
        await asyncio.sleep(0)
        together.cancel()
        with pytest.raises(asyncio.CancelledError):
            await together

    asyncio.run(run())
    assert ended == ["a", "b"]
