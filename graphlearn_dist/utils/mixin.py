"""Small behaviours that several carriers share."""

from __future__ import annotations

from typing import Any, TypeVar

T = TypeVar("T", bound="CastMixin")


class CastMixin:
    """``Class.cast(value)`` takes an instance as it is, and builds one from a tuple, a dict or a single argument."""

    @classmethod
    def cast(cls: type[T], *args: Any, **kwargs: Any) -> Any:
        if len(args) == 1 and not kwargs:
            only = args[0]
            if only is None or isinstance(only, cls):
                return only
            if isinstance(only, (tuple, list)):
                return cls(*only)
            if isinstance(only, dict):
                return cls(**only)
        return cls(*args, **kwargs)
