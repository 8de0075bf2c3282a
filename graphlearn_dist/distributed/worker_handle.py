"""One sampling worker, as the process sees it that started it: its commands, and the batches that it has ready."""

from __future__ import annotations

import asyncio
import contextlib
import mmap
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from .. import _C
from ..errors import SamplingWorkerError
from ..messages import WorkerFailure
from ..rpc.codec import decode_blob
from ..rpc.encoded import Encoded, SharedRegion
from .control import NOTIFICATION, Control, receive_message, send_message
from .worker_failure import failure_error
from .worker_messages import (
    ITEM_HEADER_BYTES,
    ItemHeader,
    ItemKind,
    ReleaseSlots,
    StartRun,
    StopWorker,
    WorkerReady,
    WorkerSetup,
)

# Finished batches a worker may have announced and not yet handed over. The client asks well ahead, so that two keep the
# worker busy; more would only hold memory.
_RING_WINDOW = 2
_STOP_TIMEOUT_S = 5.0


class WorkerHandle:
    """One sampling worker, as its server sees it.

    Args:
        name: of the worker, for errors.
        buffer_bytes: room for batches that found none in the worker's region; committed as it is used.
    """

    def __init__(self, name: str, buffer_bytes: int) -> None:
        self.name = name
        self._ring = _C.ShmRing(buffer_bytes, _RING_WINDOW)
        self._process: subprocess.Popen[bytes] | None = None
        self._control: Control | None = None
        self._listener: asyncio.Task[None] | None = None
        self._sending: set[asyncio.Task[None]] = set()
        self._region: mmap.mmap | None = None
        self._lendable: SharedRegion | None = None
        self._ready: asyncio.Future[None] | None = None
        self._run = 0
        self._items: dict[tuple[int, int], Encoded] = {}
        self._announcements: dict[tuple[int, int], Any] = {}  # of items: places of the ring that they still take
        self._waiting: dict[tuple[int, int], asyncio.Future[Encoded]] = {}
        self._failure: SamplingWorkerError | None = None

    async def start(self, make_setup: Callable[[str], WorkerSetup]) -> None:
        """Starts the process and waits until it is set up.

        Raises:
            SamplingWorkerError: it failed on the way.
        """
        loop = asyncio.get_running_loop()
        ours, theirs = socket.socketpair()
        with theirs, contextlib.ExitStack() as undo:
            undo.callback(ours.close)
            spawning = loop.run_in_executor(None, _spawn, theirs.fileno())
            try:
                self._process = await asyncio.shield(spawning)
            except asyncio.CancelledError:
                self._process = await spawning  # it starts all the same, and close() has to end it
                raise
            self._control = await Control.open(ours)
            undo.pop_all()
        self._ready = loop.create_future()
        self._listener = loop.create_task(self._listen(self._control))
        await send_message(self._control, make_setup(self._ring.path))
        await self._ready

    @property
    def pid(self) -> int:
        """Process id; 0 before ``start``."""
        return self._process.pid if self._process is not None else 0

    async def start_run(self, start: StartRun) -> None:
        """Begins a run; what the last one left is dropped."""
        self._run = start.run
        self._drop_items()
        self._fail_waiting(SamplingWorkerError(f"{self.name}: run {start.run} has begun"))
        await self._send(start)

    async def item(self, run: int, index: int) -> Encoded:
        """The batch of that index, encoded; waits for it.

        Raises:
            SamplingWorkerError: the worker died.
        """
        key = run, index
        if key in self._items:
            if (announcement := self._announcements.pop(key, None)) is not None:
                announcement.release()
            return self._items.pop(key)
        if self._failure is not None:
            raise self._failure
        future: asyncio.Future[Encoded] = asyncio.get_running_loop().create_future()
        self._waiting[key] = future
        try:
            return await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled() and future.exception() is None:
                _release(future.result())  # it came at the moment when nobody wanted it any more
            raise
        finally:
            self._waiting.pop(key, None)

    async def _listen(self, control: Control) -> None:
        try:
            await self._follow(control)
        except Exception as error:  # a defect must not leave a client waiting
            failure = SamplingWorkerError(f"{self.name} (pid {self.pid}): {type(error).__name__}: {error}")
            failure.__cause__ = error
            self._fail(failure)

    async def _follow(self, control: Control) -> None:
        """Follows the worker until its socket closes."""
        while True:
            message = await receive_message(control)
            if message is NOTIFICATION:
                await self._drain()
            elif isinstance(message, WorkerFailure):
                self._fail(failure_error(message))
            elif message is None:
                break
        await self._drain()
        if self._failure is None and self._process is not None:
            code = await asyncio.get_running_loop().run_in_executor(None, self._process.wait)
            self._fail(SamplingWorkerError(f"{self.name} (pid {self.pid}) ended: {describe_exit(code)}"))

    async def _drain(self) -> None:
        while (message := self._ring.try_recv()) is not None:
            view = memoryview(message)
            header = ItemHeader.unpack(view)
            if header.kind is ItemKind.READY:
                self._on_ready(decode_blob(bytearray(view[ITEM_HEADER_BYTES:])))
                del view
                message.release()
            elif header.run != self._run:  # left over from an older run
                del view
                message.release()
                if header.offset:
                    await self._send_release(header.offset)
            else:
                self._deliver(header, self._encoded(header, view), message)
                del view

    def _encoded(self, header: ItemHeader, view: memoryview) -> Encoded:
        """The item as it can be sent on, without decoding it."""
        if not header.offset:
            return Encoded.from_blob(view[ITEM_HEADER_BYTES:])  # gives its room back when the last view of it dies
        head = bytes(view[ITEM_HEADER_BYTES : ITEM_HEADER_BYTES + header.head_len])
        assert self._region is not None  # READY comes before any batch
        payload = memoryview(self._region)[header.offset : header.offset + header.nbytes]
        view.release()
        loop = asyncio.get_running_loop()
        offset = header.offset

        def on_released() -> None:
            sending = loop.create_task(self._send_release(offset))
            self._sending.add(sending)
            sending.add_done_callback(self._sending.discard)

        place = None if self._lendable is None else (self._lendable, offset)
        return Encoded(head, (payload,), header.nbytes, on_released, place)

    def _deliver(self, header: ItemHeader, encoded: Encoded, message: Any) -> None:
        key = header.run, header.index
        waiting = self._waiting.get(key)
        if waiting is not None and not waiting.done():
            if header.offset:
                message.release()
            waiting.set_result(encoded)
        else:
            self._items[key] = encoded
            if header.offset:
                self._announcements[key] = message

    def _drop_items(self) -> None:
        for announcement in self._announcements.values():
            announcement.release()
        self._announcements.clear()
        for encoded in self._items.values():
            _release(encoded)
        self._items.clear()

    async def _send_release(self, offset: int) -> None:
        await self._send(ReleaseSlots((offset,)))

    async def _send(self, message: Any) -> None:
        if self._failure is None and self._control is not None:
            with contextlib.suppress(ConnectionError):  # the worker has died: the listener says so to all who wait
                await send_message(self._control, message)

    def _on_ready(self, ready: WorkerReady) -> None:
        descriptor = os.open(ready.region_path, os.O_RDWR | os.O_CLOEXEC)
        try:
            self._region = mmap.mmap(descriptor, ready.region_bytes)
        finally:
            os.close(descriptor)
        self._lendable = SharedRegion(ready.region_path, ready.region_bytes, ready.region_nonce)
        if self._ready is not None and not self._ready.done():
            self._ready.set_result(None)

    def _fail(self, error: SamplingWorkerError) -> None:
        if self._failure is None:
            self._failure = error
        if self._ready is not None and not self._ready.done():
            self._ready.set_exception(error)
        self._fail_waiting(self._failure)

    def _fail_waiting(self, error: SamplingWorkerError) -> None:
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(error)

    async def close(self) -> None:
        """Ends the process: asks, then kills. Idempotent."""
        if self._failure is None:
            self._failure = SamplingWorkerError(f"{self.name} was shut down")
        self._fail_waiting(self._failure)
        self._ring.close()
        if self._lendable is not None:
            self._lendable.close()
        loop = asyncio.get_running_loop()
        if self._control is not None:
            await self._say_stop(self._control)
            self._control.close()
        if self._process is not None:
            await loop.run_in_executor(None, _end, self._process)
        if self._listener is not None:
            self._listener.cancel()
            await asyncio.gather(self._listener, return_exceptions=True)
        self._drop_items()

    @staticmethod
    async def _say_stop(control: Control) -> None:
        with contextlib.suppress(ConnectionError):  # it is gone already
            await send_message(control, StopWorker())


def _release(encoded: Encoded) -> None:
    if encoded.on_released is not None:
        encoded.on_released()


def _spawn(descriptor: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "graphlearn_dist.distributed.sampling_worker", str(descriptor)]
    return subprocess.Popen(command, pass_fds=[descriptor], stdin=subprocess.DEVNULL)


def _end(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(_STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def describe_exit(code: int) -> str:
    """An exit status in words."""
    return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
