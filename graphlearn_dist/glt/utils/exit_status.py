"""The names of ``graphlearn_torch.utils.exit_status``."""

from __future__ import annotations

import sys


def __getattr__(name: str) -> bool:
    if name == "python_exit_status":  # whether the interpreter is shutting down
        return sys.is_finalizing()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
