"""Messages between a driver and the local processes it started, over a socket pair that nobody else holds.

Calls carry whatever a caller passes to its own class, so they are pickled, as Ray does. That is safe here and only
here: both ends are processes of one user, one started the other, and the socket was never bound to a name or a port.
"""

from __future__ import annotations

import io
import os
import pickle
import runpy
import sys
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .base import ActorProfile


@dataclass(frozen=True)
class Start:
    """First message to a child: the driver's main program, and what to construct (a ``ShellSetup``)."""

    main_path: str | None
    max_concurrency: int
    setup: bytes


@dataclass(frozen=True)
class Call:
    """A call of a method; of a control operation where ``kind`` is ``control``."""

    number: int
    kind: str
    method: str
    args: Sequence[Any]
    kwargs: Mapping[str, Any]


@dataclass(frozen=True)
class Ready:
    """The object is constructed."""

    profile: ActorProfile


@dataclass(frozen=True)
class Answer:
    """What a call returned or raised; number 0 is the constructor.

    ``more`` says that it is an item of a stream; the last message of a stream has neither item nor error.
    """

    number: int
    value: Any = None
    error: BaseException | None = None
    more: bool = False


def dump_answer(message: Ready | Answer) -> bytes:
    """An answer to the driver, with the number of its call before it."""
    return (message.number if isinstance(message, Answer) else 0).to_bytes(8, "little") + dump(message)


def load_answer(data: bytes) -> Ready | Answer:
    """The answer; one that cannot be read here, as its class is the worker's alone, is an error of its call."""
    try:
        message: Ready | Answer = load(data[8:])
    except Exception as error:  # whatever a foreign class raises
        failure, text = dump_error(error)
        return Answer(int.from_bytes(data[:8], "little"), text, failure)
    return message


class RemoteTracebackError(Exception):
    """The cause of an exception that came from another process: its traceback there, as text."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


def dump(message: Any) -> bytes:
    """A message as bytes. What it holds must be picklable, or the error says why it is not."""
    return pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)


def load(data: bytes, main_path: str | None = None) -> Any:
    """The message; ``main_path`` is the driver's script, run without being its main program where its names are met."""
    return _Unpickler(io.BytesIO(data), main_path).load()


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, main_path: str | None) -> None:
        super().__init__(file)
        self._main_path = main_path

    def find_class(self, module: str, name: str) -> Any:
        if module == "__main__" and self._main_path is not None and not hasattr(sys.modules["__main__"], name):
            names = runpy.run_path(self._main_path, run_name="__mp_main__")
            for key, value in names.items():
                if not key.startswith("__"):
                    setattr(sys.modules["__main__"], key, value)
        return super().find_class(module, name)


def header(call: Call) -> bytes:
    """What precedes a call: whether it is a control call, and its number, which is thus known of any call."""
    return (b"c" if call.kind == "control" else b"m") + call.number.to_bytes(8, "little")


def read_header(data: bytes) -> tuple[bool, int, bytes]:
    """Whether it is a control call, its number, and the call's own bytes."""
    return data[:1] == b"c", int.from_bytes(data[1:9], "little"), data[9:]


def dump_error(error: BaseException) -> tuple[BaseException, str]:
    """An exception that can travel, and its traceback: itself, or its text where it cannot be rebuilt elsewhere."""
    text = "".join(traceback.format_exception(error))
    error.__traceback__ = error.__cause__ = error.__context__ = None
    try:
        load(dump(error))
    except Exception as reason:  # any defect of a foreign exception class: its text arrives all the same
        error = RuntimeError(f"{type(error).__name__}: {error} (which cannot be pickled: {reason})")
    return error, text


def main_path() -> str | None:
    """The file of this process's main program, or None."""
    path = getattr(sys.modules.get("__main__"), "__file__", None)
    return None if path is None else os.path.abspath(path)
