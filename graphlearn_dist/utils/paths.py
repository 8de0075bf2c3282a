"""Paths that users give. It imports no torch: a launcher checks its plan by it."""

from __future__ import annotations

import os
from pathlib import Path

from ..errors import InvalidArgumentError
from .shown import shown


def to_path(name: str, value: object) -> Path:
    """The value as a ``Path`` where it is text or a path, of a file or directory; else InvalidArgumentError."""
    if not isinstance(value, (str, os.PathLike)) or not str(value) or "\0" in str(value):
        raise InvalidArgumentError(f"{name}: expected a path, got {shown(value)}")
    return Path(value)
