"""Other defaults for what is otherwise the same."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch

FLOAT32 = {"node_feat_dtype": torch.float32, "edge_feat_dtype": torch.float32}
"""What features are stored as, unless a program says something else; the core keeps the dtype that they have."""


def with_defaults(function: Callable[..., Any], defaults: dict[str, Any]) -> Callable[..., Any]:
    """The same function, with other defaults of some arguments."""
    signature = inspect.signature(function)

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        for name, value in defaults.items():
            bound.arguments.setdefault(name, value)
        return function(*bound.args, **bound.kwargs)

    parameters = [one.replace(default=defaults.get(one.name, one.default)) for one in signature.parameters.values()]
    call.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]  # functions have it
    return call
