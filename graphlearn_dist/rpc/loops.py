"""The event loop of an endpoint."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable, Coroutine
from typing import Any


class EndpointLoop(asyncio.SelectorEventLoop):
    """An event loop whose tasks may take their first step at once (``asyncio.eager_task_factory`` is of Python 3.12).

    A coroutine that never waits then ends where it began, without another turn of the loop.
    """

    def __init__(self) -> None:
        super().__init__()
        self._first_steps: list[Callable[[], object]] | None = None

    def run(self, started: threading.Event) -> None:
        """Run on the calling thread until it is stopped."""
        asyncio.set_event_loop(self)
        self.call_soon(started.set)
        self.run_forever()

    def call_soon(  # type: ignore[override]  # typing has no name for the types of *args before Python 3.11
        self, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        """See ``asyncio.loop.call_soon``; the call by which a task asks for its first step may be kept."""
        if self._first_steps is None:
            return super().call_soon(callback, *args, context=context)
        run = contextvars.copy_context().run if context is None else context.run
        self._first_steps.append(lambda: run(callback, *args))
        return asyncio.Handle(callback, args, self, context)

    def begin_task(self, coroutine: Coroutine[Any, Any, None], context: contextvars.Context) -> asyncio.Task[None]:
        """``create_task`` in a context, whose first step is taken before this returns, unless another task runs."""
        if asyncio.current_task(self) is not None:
            return context.run(self.create_task, coroutine)
        steps: list[Callable[[], object]] = []
        self._first_steps = steps
        try:
            task = context.run(self.create_task, coroutine)
        finally:
            self._first_steps = None
        for step in steps:
            step()
        return task
