"""What can be called: a table of registered functions, and how their answers come about.

Coroutine functions run on the endpoint's loop, and begin at once; all others run in its few threads, by turns of the
connections that the requests came by, so that one peer's backlog holds up nobody else. An answer is encoded where it
was made. A request whose caller gave up is cancelled (coroutines), never started (waiting functions), or its answer is
dropped (running functions).
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import math
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from time import perf_counter_ns
from typing import Any

from ...errors import InvalidArgumentError, ProtocolError, SystemLimitError
from ..connection import Connection
from ..engine.loops import EndpointLoop
from ..engine.threads import WorkerThreads, post
from ..peers.identity import enter_request
from ..traffic import FunctionTimes
from ..wire.codec import Value, decode, encode
from ..wire.encoded import Encoded, release
from ..wire.failures import pack_failure
from .deadlines import Deadlines

_CURRENT_CONNECTION: contextvars.ContextVar[Connection] = contextvars.ContextVar("current_connection")


def current_connection() -> Connection:
    """The connection that the running callee's request came by. For coroutine callees: it lives on the loop."""
    return _CURRENT_CONNECTION.get()


class Serving:
    """One request that is being answered; ``cancel`` when nobody waits any more.

    Attributes:
        deadline: the loop's time at which its caller gives up; infinite where that is unknown.
        times: of the function that answers; None before that is known.
        begun_ns: when it came.
        answer_bytes: of its answer.

    Args:
        tasks: where its task stays until it ends.
    """

    def __init__(self, deadline: float, tasks: set[asyncio.Task[None]]) -> None:
        self.deadline = deadline
        self.times: FunctionTimes | None = None
        self.begun_ns = self.answer_bytes = 0
        self.cancelled = False
        self.task: asyncio.Task[None] | None = None
        self._tasks = tasks

    def answered(self) -> None:
        """It has its answer: its time is counted."""
        if self.times is not None:
            self.times.add(perf_counter_ns() - self.begun_ns, self.answer_bytes)

    def cancel(self) -> None:
        """Stop the coroutine, or drop the answer to come."""
        self.cancelled = True
        if self.task is not None:
            self.task.add_done_callback(self._tasks.discard)  # one that has not begun cannot do so itself
            self.task.cancel()

    def expire(self) -> None:
        """The deadline has passed."""
        self.cancel()


class Callees:
    """The functions of one endpoint, by name.

    Args:
        num_threads: threads for functions that are not coroutine functions.
        own_name: name of the endpoint, for messages.

    Attributes:
        times: of the functions that were called, by name.
    """

    def __init__(self, num_threads: int, own_name: str) -> None:
        self._functions: dict[str, tuple[Callable[..., Any], bool]] = {}
        self.times: dict[str, FunctionTimes] = {}
        self._threads = WorkerThreads(num_threads, f"rpc-{own_name}")
        self._own_name = own_name
        self._tasks: set[asyncio.Task[None]] = set()
        self._deadlines: Deadlines | None = None  # of the tasks

    def register(self, name: str, function: Callable[..., Any]) -> None:
        """Make ``function`` callable under ``name``, in place of what had the name before."""
        if not callable(function):
            raise InvalidArgumentError(f"function: expected a callable for {name!r}, got {function!r}")
        call = getattr(function, "__call__", None)  # noqa: B004 an object whose __call__ is a coroutine function
        is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)
        self._functions[name] = (function, is_async)

    def register_all(self, functions: Mapping[str, Callable[..., Any]]) -> None:
        """Make several functions callable under their names."""
        for name, function in functions.items():
            self.register(name, function)

    def unregister(self, name: str) -> None:
        """Forget a function; later requests for it fail."""
        self._functions.pop(name, None)

    def serve(
        self, connection: Connection, request_id: int, deadline_ms: int, name: str, value: Value
    ) -> tuple[Serving, Callable[[], None]]:
        """What answers a request, and what begins to. On the loop's thread.

        The second is to be called once, by the connection, when it knows of the request; the first does not hold it:
        what a request holds must not wait for a garbage collection.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + deadline_ms / 1000 if deadline_ms else None
        serving = Serving(math.inf if deadline is None else deadline, self._tasks)
        try:
            if (entry := self._functions.get(name)) is None:
                raise InvalidArgumentError(
                    f"function: {name!r:.200} is not registered on {self._own_name}; it exports functions by "
                    "graphlearn_dist.distributed.register_function(func)"
                )
            function, is_async = entry
            args, kwargs = _arguments(value)
            serving.times, serving.begun_ns = self.times.get(name) or self._times_of(name), perf_counter_ns()
        except (InvalidArgumentError, ProtocolError) as error:
            return serving, partial(connection.respond_failure, request_id, pack_failure(error))
        context = contextvars.Context()
        context.run(enter_request, connection.peer, deadline)
        context.run(_CURRENT_CONNECTION.set, connection)
        if is_async:
            coroutine = self._run_coroutine(serving, connection, request_id, function, args, kwargs)
            return serving, partial(self._begin, loop, serving, coroutine, context)

        def work() -> None:
            if not serving.cancelled and loop.time() <= serving.deadline:
                context.run(_run_function, serving, loop, connection, request_id, function, args, kwargs)
                serving.answered()

        def begin() -> None:
            try:
                self._threads.submit(work, connection)
            except SystemLimitError as error:  # nobody else would tell the caller
                connection.respond_failure(request_id, pack_failure(error))

        return serving, begin

    def _begin(
        self,
        loop: asyncio.AbstractEventLoop,
        serving: Serving,
        coroutine: Coroutine[Any, Any, None],
        context: contextvars.Context,
    ) -> None:
        if not isinstance(loop, EndpointLoop):
            raise TypeError(f"loop: expected an endpoint's, got {loop!r}")
        task = loop.begin_task(coroutine, context)
        if task.done():
            return
        if self._deadlines is None:
            self._deadlines = Deadlines(loop)
        self._deadlines.add(serving)
        serving.task = task
        self._tasks.add(task)
        if serving.cancelled:  # its first step closed the connection
            serving.cancel()

    def _times_of(self, name: str) -> FunctionTimes:
        times = self.times[name] = FunctionTimes()
        return times

    async def _run_coroutine(
        self,
        serving: Serving,
        connection: Connection,
        request_id: int,
        function: Callable[..., Any],
        args: list[Any],
        kwargs: dict[str, Any],
    ) -> None:
        try:
            result = await function(*args, **kwargs)
            encoded = result if isinstance(result, Encoded) else encode(result)
            del result  # it may be large, and is on its way
        except asyncio.CancelledError as error:
            if not serving.cancelled:  # else the caller gave up: its CANCEL frees the request
                connection.respond_failure(request_id, pack_failure(error))
            raise
        except Exception as error:
            connection.respond_failure(request_id, pack_failure(error))
        else:
            serving.answer_bytes = encoded.nbytes
            connection.respond(request_id, encoded)
        finally:
            serving.answered()
            # A task's own callback would cost another turn of the loop.
            if self._deadlines is not None and serving.task is not None:
                self._deadlines.discard(serving)
                self._tasks.discard(serving.task)
                serving.task = None  # a cancelled one keeps its error, whose traceback leads back to what answered

    async def cancel_all(self) -> None:
        """Cancel the coroutines that still run, and wait for them."""
        tasks = [task for task in self._tasks if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def close(self, timeout_s: float) -> None:
        """Let the threads go. Idempotent."""
        self._threads.close(timeout_s)


def _arguments(value: Value) -> tuple[list[Any], dict[str, Any]]:
    match decode(*value):
        case [list(args), dict(kwargs)] if not kwargs or all(isinstance(key, str) for key in kwargs):
            return args, kwargs
        case _:
            raise ProtocolError("request: expected [args, kwargs]")


def _run_function(
    serving: Serving,
    loop: asyncio.AbstractEventLoop,
    connection: Connection,
    request_id: int,
    function: Callable[..., Any],
    args: list[Any],
    kwargs: dict[str, Any],
) -> None:
    encoded: Encoded | None = None
    try:
        result = function(*args, **kwargs)
        encoded = result if isinstance(result, Encoded) else encode(result)
        del result  # it may be large, and is on its way
        serving.answer_bytes = encoded.nbytes
        is_sent = connection.respond_here(request_id, encoded)
    except BaseException as error:  # SystemExit too: a callee must not end a thread that others need
        post(loop, connection.respond_failure, request_id, pack_failure(error))
    else:
        if not is_sent and not post(loop, connection.respond, request_id, encoded):
            release(encoded)
