"""Functions that other processes call: declared by ``@remote`` where they are written, and called by themselves.

Who has an object of ``class Store`` with a method ``@remote def get(self, key: str) -> int`` registers
``remote_functions(store)``. Others ask ``Remote[Store](endpoint, target).ask(Store.get, "a")`` a ``Future[int]``.
A type checker finds arguments that do not fit, and functions of other classes. A method may answer with an ``Encoded``
of what it is declared to answer, which is sent as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar, overload

from ...errors import InvalidArgumentError
from ..peers.identity import Target

if TYPE_CHECKING:  # typing has them since Python 3.10, type checkers before
    from typing import Concatenate, ParamSpec

    _Arguments = ParamSpec("_Arguments")

_Function = TypeVar("_Function", bound=Callable[..., Any])
_Owner = TypeVar("_Owner")
_Answer = TypeVar("_Answer")
_NAME = "__remote_name__"
# A deadline of what takes as long as it takes: whoever is gone is noticed at once.
LONGEST_S = 7 * 24 * 3600.0


def remote(function: _Function) -> _Function:
    """Declares a method that other processes may call, under its qualified name."""
    setattr(function, _NAME, function.__qualname__)
    return function


def is_remote(function: Callable[..., Any]) -> bool:
    """Whether a function is declared by ``@remote``."""
    return hasattr(function, _NAME)


def remote_name(function: Callable[..., Any]) -> str:
    """The name that a declared function is called by.

    Raises:
        InvalidArgumentError: it is not declared.
    """
    name: str | None = getattr(function, _NAME, None)
    if name is None:
        raise InvalidArgumentError(f"function: expected one that is declared by @remote, got {function!r}")
    return name


def remote_functions(owner: object, suffix: str = "") -> dict[str, Callable[..., Any]]:
    """What an object's class (or a class itself) declares, by name: its methods, bound to the object.

    ``suffix`` of all names tells several objects of one process apart.
    """
    of = owner if isinstance(owner, type) else type(owner)
    found = {}
    for base in reversed(of.__mro__):
        for attribute, declared in vars(base).items():
            if is_remote(declared):
                found[remote_name(declared) + suffix] = getattr(owner, attribute)
    return found


class _Requests(Protocol):
    """What an ``Endpoint`` has for ``Remote``."""

    def request(
        self, target: Target, function: str, /, *args: Any, timeout_s: Any, fail_fast: Any, **kwargs: Any
    ) -> Future[Any]: ...
    def call(
        self, target: Target, function: str, /, *args: Any, timeout_s: Any, fail_fast: Any, **kwargs: Any
    ) -> Any: ...


class Remote(Generic[_Owner]):
    """An object in another process.

    Args:
        endpoint: whose connections are used.
        target: the process.
        suffix: of the names of the object's functions, as it was registered.
        timeout_s: deadline of each request; the endpoint's if None.
        fail_fast: fail at once where the process cannot be reached.
    """

    __slots__ = ("_endpoint", "_fail_fast", "_suffix", "_target", "_timeout_s")

    def __init__(
        self,
        endpoint: _Requests,
        target: Target,
        *,
        suffix: str = "",
        timeout_s: float | None = None,
        fail_fast: bool = False,
    ) -> None:
        self._endpoint = endpoint
        self._target = target
        self._suffix = suffix
        self._timeout_s = timeout_s
        self._fail_fast = fail_fast

    @overload
    def ask(
        self,
        function: Callable[Concatenate[_Owner, _Arguments], Coroutine[Any, Any, _Answer]],
        *args: _Arguments.args,
        **kwargs: _Arguments.kwargs,
    ) -> Future[_Answer]: ...
    @overload
    def ask(
        self,
        function: Callable[Concatenate[_Owner, _Arguments], _Answer],
        *args: _Arguments.args,
        **kwargs: _Arguments.kwargs,
    ) -> Future[_Answer]: ...
    def ask(self, function: Any, *args: Any, **kwargs: Any) -> Future[Any]:
        """Calls a declared function of the object; see ``Endpoint.request``."""
        options = {"timeout_s": self._timeout_s, "fail_fast": self._fail_fast}
        return self._endpoint.request(self._target, remote_name(function) + self._suffix, *args, **options, **kwargs)

    @overload
    def call(
        self,
        function: Callable[Concatenate[_Owner, _Arguments], Coroutine[Any, Any, _Answer]],
        *args: _Arguments.args,
        **kwargs: _Arguments.kwargs,
    ) -> _Answer: ...
    @overload
    def call(
        self,
        function: Callable[Concatenate[_Owner, _Arguments], _Answer],
        *args: _Arguments.args,
        **kwargs: _Arguments.kwargs,
    ) -> _Answer: ...
    def call(self, function: Any, *args: Any, **kwargs: Any) -> Any:
        """``ask``, and wait for the answer; see ``Endpoint.call``."""
        options = {"timeout_s": self._timeout_s, "fail_fast": self._fail_fast}
        return self._endpoint.call(self._target, remote_name(function) + self._suffix, *args, **options, **kwargs)
