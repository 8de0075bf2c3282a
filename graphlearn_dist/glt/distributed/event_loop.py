"""``ConcurrentEventLoop`` as ``graphlearn_torch.distributed.event_loop`` has it."""

from __future__ import annotations

from ...distributed import event_loop
from ...distributed.event_loop import wrap_torch_future

__all__ = [
    "ConcurrentEventLoop",
    "wrap_torch_future",
]


class ConcurrentEventLoop(event_loop.ConcurrentEventLoop):
    """``graphlearn_dist.distributed.ConcurrentEventLoop``, whose end waits for what is under way.

    Attributes:
        shutdown_timeout_s: how long it does.
    """

    shutdown_timeout_s = 180.0

    def shutdown_loop(self) -> None:
        """Waits for the tasks that were added, and ends the thread. Idempotent; without effect in a fork.

        Raises:
            RuntimeError: a task or a callback of its own calls this, and would wait for itself; it goes on.
            TimeoutError: some were still in flight after ``shutdown_timeout_s``; they are cancelled.
            Exception: what the first task raised that failed since the last ``wait_all``; the thread has ended.
        """
        if self._thread.is_current:
            raise RuntimeError("shutdown_loop: called in the thread of the loop, by a task or a callback of its own")
        try:
            if self._home.is_here:
                self.wait_all(self.shutdown_timeout_s)
        finally:
            super().shutdown_loop()
