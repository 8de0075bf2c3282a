"""Classes that the tests of worker groups run in workers. Import no torch: a worker then starts in a blink."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from graphlearn_dist.cluster.actors.shell import heartbeat, idempotent


class UnpicklableError(Exception):
    """Cannot be rebuilt from its arguments."""

    def __init__(self, one: str, two: str) -> None:
        super().__init__(one + two)


class Worker:
    """Says what it was given."""

    def __init__(self, offset: int = 0, *, path: str = "") -> None:
        self.offset = offset
        self.path = path

    def add(self, value: int, times: int = 1) -> int:
        return self.offset + value * times

    def echo(self, **kwargs: Any) -> dict[str, Any]:
        return kwargs

    def count(self, stop: int, fail: bool = False) -> Iterator[int]:
        for value in range(stop):
            yield self.offset + value
        if fail:
            raise ValueError("at the end")

    async def later(self, value: int) -> int:
        return value

    def environ(self, *names: str) -> list[str | None]:
        return [os.environ.get(name) for name in names]

    def pid(self) -> int:
        return os.getpid()

    def prefix(self) -> str:
        return sys.prefix

    def own_pid(self, value: int) -> int:
        return os.getpid()

    def fail(self, text: str = "as asked") -> None:
        raise ValueError(text)

    def fail_oddly(self) -> None:
        raise UnpicklableError("a", "b")

    def unpicklable(self) -> Any:
        return threading.Lock()

    def wait(self) -> None:
        threading.Event().wait()

    def hold(self, path: str) -> Iterator[str]:
        """Says that it runs, and goes on when something is written to a named pipe."""
        yield "holding"
        yield Path(path).read_text()

    def beat(self) -> None:
        while True:
            heartbeat()
            threading.Event().wait(0.02)

    def stop(self) -> None:
        os.kill(os.getpid(), signal.SIGSTOP)

    def die(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def leave(self, code: int) -> None:
        sys.exit(code)

    async def leave_later(self, code: int) -> None:
        sys.exit(code)

    def leave_half_way(self, code: int) -> Iterator[int]:
        yield 0
        sys.exit(code)

    async def give_up(self) -> None:
        raise asyncio.CancelledError

    @idempotent
    def die_once(self, path: str) -> int:
        """Kills its process, unless a file says that it did so before."""
        marker = Path(path) / f"died-{os.environ['RANK']}"
        if not marker.exists():
            marker.touch()
            self.die()
        return int(os.environ["RANK"])

    def allocate(self, num_bytes: int) -> int:
        return len(bytearray(num_bytes))

    def start_child(self) -> int:
        child = os.fork()
        if not child:
            signal.pause()
            os._exit(0)
        return child

    def cleanup(self) -> None:
        Path(self.path, f"cleaned-{os.environ['RANK']}").touch()


class Hanging(Worker):
    """Is never constructed."""

    def __init__(self) -> None:
        threading.Event().wait()


class Broken:
    """Cannot be constructed."""

    def __init__(self) -> None:
        raise KeyError("missing")
