"""Python's garbage collections, where they find nothing and cost much."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def permanent_heap() -> Iterator[None]:
    """What is there now is not looked through by collections meanwhile.

    torch and its like are several hundred thousand objects, which live as long as the process. In one that answers
    requests, collections that visit them all took a quarter of the CPU time.
    """
    is_frozen = gc.get_freeze_count() > 0  # by somebody who wants it so
    if not is_frozen:
        gc.collect()
        gc.freeze()
    try:
        yield
    finally:
        if not is_frozen:
            gc.unfreeze()
