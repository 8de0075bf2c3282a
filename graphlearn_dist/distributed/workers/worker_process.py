"""One process of a sampling worker, from its start to its end: its socket, its ring, its region, its pulse."""

from __future__ import annotations

import asyncio
import contextlib
import mmap
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from ... import _C
from ...config import RpcSettings
from ...errors import SamplingWorkerError
from ...messages import WorkerFailure
from ...rpc.wire.codec import decode_blob
from ...rpc.wire.encoded import Encoded, SharedRegion
from .control import Control, receive_message, send_message
from .fork_server import ForkedWorker, ForkServer
from .pulse import PulseWatch
from .worker_failure import failure_error
from .worker_messages import ITEM_HEADER_BYTES, ItemHeader, ItemKind, ReleaseSlots, StopWorker, WorkerReady, WorkerSetup

# Messages with finished batches that a worker may have announced and not yet handed over. The client asks well ahead,
# so that few keep the worker busy, and more would only hold memory.
_RING_WINDOW = 2
_MOST_FREE_SLOTS = 16  # that wait to be given back together
_FREE_SHARE = 64  # of the region: so many bytes of slots do not wait
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
        make_setup: what to tell one of them, given the path of its ring.
    """

    forks: ForkServer
    make_setup: Callable[[str], WorkerSetup]


class ProcessOwner(Protocol):
    """Who is told what a worker process does."""

    def on_item(self, header: ItemHeader, encoded: Encoded, announcement: Any) -> None:
        """A batch or the like is there; ``announcement`` is its place in the ring, to be released."""

    def is_current(self, run: int) -> bool:
        """Whether items of that run are still wanted."""

    def on_end(self, process: WorkerProcess, why: SamplingWorkerError | WorkerDeath) -> None:
        """The process is of no use any more: it failed and said so, or it died. All it announced was handed over."""


class WorkerProcess:
    """A sampling worker's process. Made, and used, on one asyncio loop.

    Args:
        name: of the worker, for errors.
        buffer_bytes: room for batches that find none in the worker's region; committed as it is used.
        owner: who is told.
        origin: what it is started from.
    """

    def __init__(self, name: str, buffer_bytes: int, owner: ProcessOwner, origin: WorkerOrigin) -> None:
        self.name = name
        self.origin = origin
        self._owner = owner
        self._ring = _C.ShmRing(buffer_bytes, _RING_WINDOW)
        self._worker: ForkedWorker | None = None
        self._control: Control | None = None
        self._pulse: PulseWatch | None = None
        self._listener: asyncio.Task[None] | None = None
        self._free: list[int] = []  # slots that the worker is yet to be told of
        self._free_bytes = 0
        self._region: mmap.mmap | None = None
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
            forking.add_done_callback(_drop)  # it starts all the same, finds its socket closed, and ends
            raise
        except OSError as error:  # no more processes, memory or descriptors
            raise SamplingWorkerError(f"{self.name}: stage start: {error}") from error
        self._pulse = PulseWatch(worker.pulse, RpcSettings(), self._on_frozen)
        self._control = await Control.open(worker.control, self._drain)
        self._listener = loop.create_task(self._listen(self._control))
        with contextlib.suppress(ConnectionError):  # it has died: the listener says how
            send_message(self._control, self.origin.make_setup(self._ring.path))
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
            if isinstance(message, WorkerFailure):
                failure = failure_error(message)
        self._drain()
        if failure is not None or self._worker is None:
            return failure or SamplingWorkerError(f"{self.name} was never started")
        code = await self._worker.wait()
        return WorkerDeath((self._frozen or describe_exit(code)) + self._unreachable)

    def _end(self, why: SamplingWorkerError | WorkerDeath) -> None:
        was_over, self._is_over = self._is_over, True
        if self._lendable is not None:
            self._lendable.close()
        if was_over:
            return
        if self._ready is None or self._ready.done():
            self._owner.on_end(self, why)
            return
        if isinstance(why, WorkerDeath):
            self._ready.set_result(why)
            return
        self._ready.set_exception(why)
        self._ready.exception()  # seen: start() may have been cancelled

    def _drain(self) -> None:
        while not self._is_over and (message := self._ring.try_recv()) is not None:
            view = memoryview(message)
            header = ItemHeader.unpack(view)
            if header.kind is ItemKind.READY:
                self._on_ready(decode_blob(bytearray(view[ITEM_HEADER_BYTES:])))
                del view
                message.release()
            elif not self._owner.is_current(header.run):  # left over from an older run
                del view
                message.release()
                self._release(header.offset, header.nbytes)
            else:
                self._owner.on_item(header, self._encoded(header, view), message)
                del view

    def _encoded(self, header: ItemHeader, view: memoryview) -> Encoded:
        """The item as it can be sent on, without decoding it; good also when its process has died meanwhile."""
        if not header.offset:
            return Encoded.from_blob(view[ITEM_HEADER_BYTES:])  # gives its room back when the last view of it dies
        head = bytes(view[ITEM_HEADER_BYTES : ITEM_HEADER_BYTES + header.head_len])
        assert self._region is not None  # READY comes before any batch
        payload = memoryview(self._region)[header.offset : header.offset + header.nbytes]
        view.release()
        offset, nbytes = header.offset, header.nbytes
        place = None if self._lendable is None else (self._lendable, offset)
        return Encoded(head, (payload,), nbytes, partial(self._release, offset, nbytes), place)

    def _release(self, offset: int, nbytes: int) -> None:
        """Gives a slot back. Small ones go together: a message for each would cost more than they are worth."""
        if not offset or self._is_over or self._region is None:
            return
        self._free.append(offset)
        self._free_bytes += nbytes
        if len(self._free) < _MOST_FREE_SLOTS and self._free_bytes < len(self._region) // _FREE_SHARE:
            return
        free, self._free, self._free_bytes = tuple(self._free), [], 0
        self.send(ReleaseSlots(free))

    def _on_ready(self, ready: WorkerReady) -> None:
        try:
            descriptor = os.open(ready.region_path, os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:  # mostly as it has died since: the listener says how
            self._unreachable = f" (its memory could not be opened: {error})"
            self._kill()
            return
        try:
            self._region = mmap.mmap(descriptor, ready.region_bytes)
        finally:
            os.close(descriptor)
        self._lendable = SharedRegion(ready.region_path, ready.region_bytes, ready.region_nonce)
        self._is_set_up = True
        if self._ready is not None and not self._ready.done():
            self._ready.set_result(None)

    # --- the end -----------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Ends the process: asks, then kills. Idempotent."""
        was_over, self._is_over = self._is_over, True
        self._ring.close()
        if self._lendable is not None:
            self._lendable.close()
        if self._pulse is not None:
            self._pulse.close()
        if self._control is not None:
            if not was_over:
                with contextlib.suppress(ConnectionError):  # it is gone already
                    send_message(self._control, StopWorker())
            self._control.close()
        if self._worker is not None:
            await _end(self._worker)
        if self._listener is not None:
            self._listener.cancel()
            await asyncio.gather(self._listener, return_exceptions=True)
        if self._worker is not None:
            self._worker.close()
        # They refer to this object, whose memory must not wait for a garbage collection.
        self._pulse = self._listener = self._control = None


def _drop(forking: asyncio.Future[ForkedWorker]) -> None:
    if not forking.cancelled() and forking.exception() is None:
        worker = forking.result()
        worker.control.close()
        os.close(worker.pulse)
        worker.close()


async def _end(worker: ForkedWorker) -> None:
    try:
        await asyncio.wait_for(worker.wait(), _STOP_TIMEOUT_S)
    except (TimeoutError, asyncio.TimeoutError):
        worker.kill()
        await worker.wait()


def describe_exit(code: int | None) -> str:
    """An exit status in words; None where nobody was there to see it."""
    if code is None:
        return "nobody knows how, as the fork server was gone or stopped too"
    return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
