"""What surrounds a worker's object in its process, on every engine: it constructs it, calls it, and watches it.

Imports little, so that a process that needs no torch starts without it.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import importlib
import inspect
import os
import resource
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn, TypeVar

from ...errors import InvalidArgumentError
from .base import ActorProfile, MethodProfile, ResourceUsage, RunningCall
from .usage import measure_usage

_IDEMPOTENT = "_gld_idempotent"
Function = TypeVar("Function", bound=Callable[..., Any])


def idempotent(method: Function) -> Function:
    """Marks a method that may be called again when its worker died during the call."""
    setattr(method, _IDEMPOTENT, True)
    return method


@dataclass
class _Call:
    method: str
    thread_id: int
    started: float = field(default_factory=time.monotonic)
    beat: float = field(default_factory=time.monotonic)


_current_call: contextvars.ContextVar[_Call | None] = contextvars.ContextVar("current_call", default=None)


def heartbeat() -> None:
    """Called by a worker's method now and then: says that a long call makes progress. Elsewhere it does nothing."""
    call = _current_call.get()
    if call is not None:
        call.beat = time.monotonic()


@dataclass(frozen=True)
class ShellSetup:
    """What a shell is started with; see ``ActorSpec``."""

    target: str | type[Any]
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    env: Mapping[str, str]
    memory_limit_bytes: int | None
    node: str


class Shell:
    """Holds a worker's object and forwards calls to it.

    Raises:
        InvalidArgumentError: there is no such class.
        Exception: whatever its constructor raises.
    """

    def __init__(self, setup: ShellSetup) -> None:
        os.environ.update(setup.env)  # before the import: libraries read their settings then
        if setup.memory_limit_bytes is not None:
            limit_memory(setup.memory_limit_bytes)
        self._lock = threading.Lock()
        self._running: dict[int, _Call] = {}
        self._usage_before = time.monotonic(), time.process_time()
        self._object = load_class(setup.target)(*setup.args, **setup.kwargs)
        self.profile = ActorProfile(os.getpid(), setup.node, profile_methods(type(self._object)))

    def call(self, method: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Calls a method to its end; one that is a coroutine runs in an event loop of its own.

        ``sys.exit`` ends the process with its code, whatever thread serves the call; ``atexit`` handlers do not run.
        """
        with self._track(method):
            result = getattr(self._object, method)(*args, **kwargs)
            return asyncio.run(result) if inspect.iscoroutine(result) else result

    def stream(self, method: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[Any]:
        """The items of a generator, as they come."""
        with self._track(method):
            for item in getattr(self._object, method)(*args, **kwargs):
                heartbeat()
                yield item

    def control(self, operation: str) -> Any:
        """Answers beside whatever runs; see ``Actor.control``."""
        if operation == "ping":
            return self._running_calls()
        if operation == "stacks":
            return self._stacks()
        if operation == "usage":
            return self._usage()
        raise InvalidArgumentError(f"operation: expected ping, stacks or usage, got {operation!r}")

    @contextlib.contextmanager
    def _track(self, method: str) -> Iterator[None]:
        call = _Call(method, threading.get_ident())
        token = _current_call.set(call)
        with self._lock:
            self._running[id(call)] = call
        try:
            yield
        except SystemExit as request:
            _leave(request)
        except asyncio.CancelledError as error:  # engines would take it for a call that they cancelled themselves
            raise RuntimeError(f"{method}: it was cancelled in its worker") from error
        finally:
            with self._lock:
                del self._running[id(call)]
            with contextlib.suppress(ValueError):  # a generator that was dropped is closed in another context
                _current_call.reset(token)

    def _calls(self) -> list[_Call]:
        with self._lock:
            return list(self._running.values())

    def _running_calls(self) -> tuple[RunningCall, ...]:
        now = time.monotonic()
        return tuple(RunningCall(call.method, now - call.started, now - call.beat) for call in self._calls())

    def _stacks(self) -> str:
        frames = sys._current_frames()
        texts = []
        for call in self._calls():
            if call.thread_id in frames:
                texts.append(f"{call.method}:\n" + "".join(traceback.format_stack(frames[call.thread_id])))
        return "\n".join(texts)

    def _usage(self) -> ResourceUsage:
        (then, cpu_then), now = self._usage_before, (time.monotonic(), time.process_time())
        self._usage_before = now
        return measure_usage((now[1] - cpu_then) / max(now[0] - then, 1e-9) * 100)


def _leave(request: SystemExit) -> NoReturn:
    """Ends the process as ``sys.exit`` asks. At once: in any thread but the main one, and in all of Ray's, the
    interpreter would take the request for the thread's end, and the caller would wait for an answer that nobody makes.
    """
    if request.code is not None and not isinstance(request.code, int):
        print(request.code, file=sys.stderr)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, OSError, ValueError):  # closed, or none at all
            stream.flush()
    os._exit(request.code & 0xFF if isinstance(request.code, int) else request.code is not None)


def limit_memory(num_bytes: int) -> None:
    """Bounds this process's private memory; mapped files and shared memory do not count. Allocations beyond it fail."""
    resource.setrlimit(resource.RLIMIT_DATA, (num_bytes, resource.getrlimit(resource.RLIMIT_DATA)[1]))


def load_class(target: str | type[Any]) -> type[Any]:
    """The plain class: imported by name where it is one, taken out of Ray's wrapping where it is in it."""
    loaded: Any = import_name(target) if isinstance(target, str) else target
    wrapped = getattr(loaded, "__ray_metadata__", None)
    loaded = loaded if wrapped is None else wrapped.modified_class
    if not isinstance(loaded, type):
        raise InvalidArgumentError(f"worker class: expected a class, got {loaded!r}")
    return loaded


def import_name(dotted: str) -> Any:
    """What a dotted name stands for: ``package.module.Class.Inner``.

    Raises:
        InvalidArgumentError: there is no such module, or nothing of that name in it.
    """
    parts = dotted.split(".")
    for end in range(len(parts) - 1, 0, -1):
        module_name = ".".join(parts[:end])
        try:
            found: Any = importlib.import_module(module_name)
        except ModuleNotFoundError as error:
            if error.name is None or not (module_name == error.name or module_name.startswith(error.name + ".")):
                raise  # the module is there, and what it imports is not
            continue
        try:
            for part in parts[end:]:
                found = getattr(found, part)
        except AttributeError as error:
            raise InvalidArgumentError(f"worker class: {dotted}: {error}") from error
        return found
    raise InvalidArgumentError(
        f"worker class: expected the dotted name of a class, got {dotted!r}, which has no module"
    )


def profile_methods(cls: type[Any]) -> dict[str, MethodProfile]:
    """The public methods of a class, and ``__call__`` where it has one."""
    names = [name for name in dir(cls) if not name.startswith("_") or name == "__call__"]
    return {name: _profile_method(cls, name) for name in names if callable(getattr(cls, name))}


def _profile_method(cls: type[Any], name: str) -> MethodProfile:
    method = getattr(cls, name)
    try:
        parameters = [
            p.name for p in inspect.signature(method).parameters.values() if p.kind <= p.POSITIONAL_OR_KEYWORD
        ]
    except ValueError:  # a builtin without a signature
        parameters = []
    if inspect.isfunction(inspect.getattr_static(cls, name)):
        parameters = parameters[1:]  # self
    return MethodProfile(tuple(parameters), inspect.isgeneratorfunction(method), getattr(method, _IDEMPOTENT, False))
