"""What a process is called in the system's lists."""

from __future__ import annotations

import ctypes

_PR_SET_NAME = 15  # see prctl(2)


def name_process(name: str) -> None:
    """Names the calling thread, and the process where it is the main thread; at most 15 bytes are kept.

    ``ps -o comm``, ``top`` and ``/proc/<pid>/comm`` show it.
    """
    ctypes.CDLL(None).prctl(_PR_SET_NAME, name.encode(), 0, 0, 0)
