"""One process of a sampling worker, from its start to its end: its socket, its rings, its region, its pulse."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from ... import _C
from ...config import RpcSettings
from ...errors import ChannelError, SamplingWorkerError
from ...messages import WorkerFailure
from ...rpc.wire.encoded import SharedRegion
from ...utils.coroutines import within
from .batch_shelf import BatchShelf
from .control import Control, receive_message, send_message
from .fork_server import ForkedWorker, ForkServer
from .pulse import PulseWatch
from .worker_failure import failure_error
from .worker_memory import WorkerMemory
from .worker_messages import StopWorker, WorkerReady, WorkerSetup

# Messages with finished batches that a worker may have announced and not yet handed over. The client asks well ahead,
# so that few keep the worker busy, and more would only hold memory.
_RING_WINDOW = 2
_STOP_TIMEOUT_S = 3.0


@dataclass(frozen=True)
class WorkerDeath:
    """A process ended that nobody had told to, and said nothing: in words, how."""

    how: str


@dataclass(frozen=True)
class WorkerOrigin:
    """What processes of a worker are started from.

    Attributes:
        forks: where they are forked.
        make_setup: what to tell one of them, given what it writes and reads its rings by.
    """

    forks: ForkServer
    make_setup: Callable[[_C.WorkerFeed], WorkerSetup]


# Who is told that a process is of no use any more: it failed and said so, or it died. All it announced is on the shelf.
OnEnd: TypeAlias = "Callable[[WorkerProcess, SamplingWorkerError | WorkerDeath], None]"


class WorkerProcess:
    """A sampling worker's process. Made, and used, on one asyncio loop.

    Args:
        name: of the worker, for errors.
        shelf: where its batches go.
        number: of the worker there.
        memory: for its batches.
        on_end: who is told of its end.
        origin: what it is started from.

    Raises:
        SamplingWorkerError: there is no memory for its rings.
    """

    def __init__(
        self, name: str, shelf: BatchShelf, number: int, memory: WorkerMemory, on_end: OnEnd, origin: WorkerOrigin
    ) -> None:
        self.name = name
        self.origin = origin
        self._shelf = shelf
        self._on_end = on_end
        try:
            self._feed = _C.WorkerFeed(shelf.native, number, memory.largest_batch, memory.ring, _RING_WINDOW)
        except ChannelError as error:  # no memory, or no descriptors
            raise SamplingWorkerError(f"{name}: stage set-up: {error}") from error
        self._worker: ForkedWorker | None = None
        self._control: Control | None = None
        self._pulse: PulseWatch | None = None
        self._listener: asyncio.Task[None] | None = None
        self._lendable: SharedRegion | None = None
        self._ready: asyncio.Future[WorkerDeath | None] | None = None
        self._is_set_up = False
        self._frozen = self._unreachable = ""
        self._is_over = False
        self._loop = asyncio.get_running_loop()

    @property
    def pid(self) -> int:
        """Process id; 0 before ``start``."""
        return self._worker.pid if self._worker is not None else 0

    @property
    def is_up(self) -> bool:
        """Whether it is set up, and not over."""
        return self._is_set_up and not self._is_over

    async def start(self) -> WorkerDeath | None:
        """Starts the process and waits until it is set up, or has died. ``close`` is due also where it fails.

        Returns:
            How it died on the way, or None.

        Raises:
            SamplingWorkerError: it could not be started, or failed on the way, and said so.
        """
        loop = self._loop
        self._ready = loop.create_future()
        forking = loop.run_in_executor(None, self.origin.forks.fork)
        try:
            self._worker = worker = await asyncio.shield(forking)
        except asyncio.CancelledError:
            forking.add_done_callback(_drop)  # it starts all the same
            raise
        except OSError as error:  # no more processes, memory or descriptors
            raise SamplingWorkerError(f"{self.name}: stage start: {error}") from error
        self._pulse = PulseWatch(worker.pulse, RpcSettings(), self._on_frozen)
        self._control = await Control.open(worker.control)
        self._listener = loop.create_task(self._listen(self._control))
        with contextlib.suppress(ConnectionError):  # it has died: the listener says how
            send_message(self._control, self.origin.make_setup(self._feed))
        return await self._ready

    def _on_frozen(self, why: str) -> None:
        """It takes no messages either, and what is stopped may go on at a wrong moment: it is killed."""
        self._frozen = f"frozen: {why}"
        self._kill()

    def _kill(self) -> None:
        if self._worker is not None:
            self._worker.kill()

    def send(self, message: Any) -> None:
        """Tells it something; without effect when it is over."""
        if not self._is_over and self._control is not None:
            with contextlib.suppress(ConnectionError):  # it has died: the listener says so to its owner
                send_message(self._control, message)

    # --- what it says ------------------------------------------------------------------------------------------

    async def _listen(self, control: Control) -> None:
        try:
            self._end(await self._follow(control))
        except Exception as error:  # a defect must not leave a client waiting
            failure = SamplingWorkerError(f"{self.name} (pid {self.pid}): {type(error).__name__}: {error}")
            failure.__cause__ = error
            self._end(failure)
            del failure  # its traceback leads back here

    async def _follow(self, control: Control) -> SamplingWorkerError | WorkerDeath:
        """Follows the worker until its socket closes; how it ended."""
        failure: SamplingWorkerError | None = None
        while (message := await receive_message(control)) is not None:
            match message:
                case WorkerReady():
                    self._on_ready(message)
                case WorkerFailure():
                    failure = failure_error(message)
        self._feed.drain()
        if failure is not None or self._worker is None:
            return failure or SamplingWorkerError(f"{self.name} was never started")
        code = await self._worker.wait()
        return WorkerDeath((self._frozen or describe_exit(code)) + self._unreachable)

    def _end(self, why: SamplingWorkerError | WorkerDeath) -> None:
        was_over, self._is_over = self._is_over, True
        self._close_region()
        if was_over:
            return
        if self._ready is None or self._ready.done():
            self._on_end(self, why)
            return
        if isinstance(why, WorkerDeath):
            self._ready.set_result(why)
            return
        self._ready.set_exception(why)
        self._ready.exception()  # seen: start() may have been cancelled

    def _on_ready(self, ready: WorkerReady) -> None:
        region = SharedRegion(ready.region_path, ready.region_bytes, ready.region_nonce)
        try:
            self._feed.open(region.path, region.size, region.number)
        except OSError as error:  # mostly as it has died since: the listener says how
            self._unreachable = f" (its memory could not be opened: {error})"
            self._kill()
            return
        self._lendable = self._shelf.regions[region.number] = region
        self._is_set_up = True
        if self._ready is not None and not self._ready.done():
            self._ready.set_result(None)

    def _close_region(self) -> None:
        if self._lendable is not None:
            self._shelf.regions.pop(self._lendable.number, None)
            self._lendable.close()

    # --- the end -----------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Ends the process: asks, then kills; at once where this is cancelled. Idempotent."""
        was_over, self._is_over = self._is_over, True
        self._feed.close()
        self._close_region()
        if self._pulse is not None:
            self._pulse.close()
        if self._control is not None:
            if not was_over:
                with contextlib.suppress(ConnectionError):  # it is gone already
                    send_message(self._control, StopWorker())
            self._control.close()
        listener, worker = self._listener, self._worker
        # They refer to this object, whose memory must not wait for a garbage collection.
        self._pulse = self._listener = self._control = None
        try:
            if worker is not None and not worker.is_closed:
                await _end(worker)
        finally:
            if worker is not None:
                worker.close()
            if listener is not None:
                listener.cancel()
                await asyncio.gather(listener, return_exceptions=True)


def _drop(forking: asyncio.Future[ForkedWorker]) -> None:
    if not forking.cancelled() and forking.exception() is None:
        worker = forking.result()
        worker.kill()
        worker.control.close()
        os.close(worker.pulse)
        worker.close()


async def _end(worker: ForkedWorker) -> None:
    try:
        await within(worker.wait(), _STOP_TIMEOUT_S)
    except (TimeoutError, asyncio.TimeoutError):
        worker.kill()
        await worker.wait()
    except asyncio.CancelledError:
        worker.kill()
        await worker.wait()  # which is soon
        raise


def describe_exit(code: int | None) -> str:
    """An exit status in words; None where nobody was there to see it."""
    if code is None:
        return "nobody knows how, as the fork server was gone or stopped too"
    return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
