"""Arguments of other libraries that programs may give, and that change nothing here."""

from __future__ import annotations

import warnings

_warned: set[str] = set()


def warn_no_effect(argument: str, why: str) -> None:
    """Warns that an argument changes nothing; once a process for each argument."""
    if argument not in _warned:
        _warned.add(argument)
        warnings.warn(f"{argument}: it has no effect here: {why}", stacklevel=3)
