"""The names of ``graphlearn_torch.distributed.event_loop``."""

from __future__ import annotations

from ...distributed.event_loop import ConcurrentEventLoop, wrap_torch_future

__all__ = [
    "ConcurrentEventLoop",
    "wrap_torch_future",
]
