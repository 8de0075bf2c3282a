"""The event loop of an endpoint."""

from __future__ import annotations

import asyncio
import contextvars
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any

from .threads import LoopExecutor, run_loop


class EndpointLoop(asyncio.SelectorEventLoop):
    """An event loop whose tasks may take their first step at once (``asyncio.eager_task_factory`` is of Python 3.12).

    A coroutine that never waits then ends where it began, without another turn of the loop.
    """

    def __init__(self) -> None:
        super().__init__()
        self.set_default_executor(LoopExecutor("rpc-blocking"))
        self.time = time.monotonic  # type: ignore[method-assign]  # the method does so too, by one more step of Python
        self._keeps_first_step = False
        self._first_step: tuple[contextvars.Context, Callable[..., object], tuple[Any, ...]] | None = None
        self._kept = asyncio.Handle(lambda: None, (), self)  # a task does not look at what it gets

    def run(self, started: threading.Event) -> None:
        """Run on the calling thread until it is stopped."""
        asyncio.set_event_loop(self)
        self.call_soon(started.set)
        run_loop(self)

    def call_soon(  # type: ignore[override]  # typing has no name for the types of *args before Python 3.11
        self, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        """See ``asyncio.loop.call_soon``; the call by which a task asks for its first step may be kept."""
        if not self._keeps_first_step:
            return super().call_soon(callback, *args, context=context)
        self._keeps_first_step = False
        self._first_step = (contextvars.copy_context() if context is None else context, callback, args)
        return self._kept

    def begin_task(self, coroutine: Coroutine[Any, Any, None], context: contextvars.Context) -> asyncio.Task[None]:
        """``create_task`` in a context, whose first step is taken before this returns, unless another task runs."""
        if asyncio.current_task(self) is not None:
            return context.run(self.create_task, coroutine)
        self._keeps_first_step = True
        try:
            task = context.run(asyncio.Task, coroutine, loop=self)
        finally:
            self._keeps_first_step = False
        step, self._first_step = self._first_step, None
        if step is not None:
            step[0].run(step[1], *step[2])
        return task
