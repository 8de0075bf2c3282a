"""How a callee's exception reaches its caller, without pickle."""

from __future__ import annotations

import traceback
from typing import Any

from ...errors import GraphLearnError, ProtocolError, RemoteError

_MAX_MESSAGE = 8 << 10
_MAX_TRACEBACK = 16 << 10
_PLAIN = (type(None), bool, int, float, str)


def pack_failure(error: BaseException) -> list[Any]:
    """``error`` as plain values: module, type, message, traceback, and its arguments where those are plain."""
    text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    cls = type(error)
    arguments: list[Any] | None = None
    plain = all(isinstance(value, _PLAIN) for value in error.args)
    if isinstance(error, GraphLearnError) and plain and sum(len(str(v)) for v in error.args) <= _MAX_MESSAGE:
        arguments = list(error.args)
    return [cls.__module__, cls.__qualname__, str(error)[:_MAX_MESSAGE], text[-_MAX_TRACEBACK:], arguments]


def read_failure(peer: str, failure: list[Any]) -> GraphLearnError:
    """The exception to raise at the caller.

    An error of this package comes back as its own class with the ``RemoteError`` as its cause, anything else as
    ``RemoteError``.
    """
    kinds = [type(value) for value in failure]
    if len(kinds) != 5 or kinds[:4] != [str] * 4 or kinds[4] not in (list, type(None)):
        return ProtocolError(f"{peer} sent a malformed error")
    module, name, message, text, arguments = failure
    short = name if module == "builtins" or module.startswith("graphlearn_dist") else f"{module}.{name}"
    remote = RemoteError(peer, short, message, text)
    cls = _find(GraphLearnError, module, name)
    if cls is None or arguments is None:
        return remote
    try:
        error = cls(*arguments)
    except TypeError:  # a constructor with other arguments than `args`
        return remote
    error.__cause__ = remote
    return error


def _find(cls: type[GraphLearnError], module: str, name: str) -> type[GraphLearnError] | None:
    if (cls.__module__, cls.__qualname__) == (module, name):
        return cls
    for subclass in cls.__subclasses__():
        found = _find(subclass, module, name)
        if found is not None:
            return found
    return None
