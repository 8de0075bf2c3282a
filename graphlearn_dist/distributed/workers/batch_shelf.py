"""Finished batches of one producer, until somebody takes them (``csrc/serving/batch_shelf.h``)."""

from __future__ import annotations

import asyncio

from ... import _C
from ..._C import unpack
from ...errors import GraphLearnError
from ...messages import EndOfEpoch
from ...rpc.wire.codec import encode
from ...rpc.wire.encoded import Encoded, SharedRegion, release
from ...rpc.wire.failures import pack_failure, read_failure
from ...sampler.epochs.schedule import BatchShare


class BatchShelf:
    """Where workers put what they have made, without the interpreter, and where it is asked for.

    Clients between hosts ask ``native``, through the server's engine; this process, by ``fetch``. On one asyncio loop.

    Args:
        name: of the producer, for errors.
        num_workers: how many put something here, by number.

    Attributes:
        native: the core's.
        regions: by number, those of workers that are up.
    """

    def __init__(self, name: str, num_workers: int) -> None:
        self.native = _C.BatchShelf(name, num_workers)
        self.regions: dict[int, SharedRegion] = {}
        self._name = name
        self._fetches = _C.LocalFetches(self.native)
        self._waiting: dict[int, asyncio.Future[Encoded]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None

    def open(self) -> None:
        """Takes the running loop for its own."""
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._fetches.fileno(), self._take)

    def begin_run(self, share: BatchShare, end: EndOfEpoch, credit_bytes: int | None) -> None:
        """A run begins, of these batches: what an older one left is dropped, and who waits for it fails.

        ``end`` is given beyond the last batch. The reader takes at most ``credit_bytes`` ahead of what it reads; None
        leaves that open.
        """
        indices = share.indices
        cut = share.size, share.first, share.step, share.begin
        shown = (list(indices.single), indices.start, indices.stop, indices.step, *cut, str(share))
        self.native.begin_run(end.run, end.num_batches, shown, credit_bytes, encode(end).head)

    def fail(self, worker: int, error: GraphLearnError) -> None:
        """A worker will make nothing more: who waits for its batches, now or later, gets the error."""
        self.native.fail(worker, _C.pack(pack_failure(error)))

    def end(self, error: GraphLearnError) -> None:
        """Nothing is given any more: who asks gets the error, the first of those that were told. Idempotent."""
        self.native.end(_C.pack(pack_failure(error)))

    async def fetch(self, run: int, index: int, oldest: int | None = None) -> Encoded:
        """Batch ``index`` of the run, as encoded by its worker, and those of its group behind it, as far as they
        travel with it (``SampledBatches``); ``EndOfEpoch`` past the last. Waits for it.

        A reader that says which batch is the ``oldest`` that it has not read gets no more than its credit.

        Raises:
            InvalidArgumentError: the run is over, or did not ask for this batch; or it is asked for again meanwhile.
            SamplingWorkerError: the worker that should have made it failed, or died too often.
        """
        number, fetch = self._fetches.fetch(run, index, oldest)
        future: asyncio.Future[Encoded] = asyncio.get_running_loop().create_future()
        self._waiting[number] = future
        self._take()  # it may be there
        try:
            return await future
        except asyncio.CancelledError:
            self.native.forget(fetch)
            if future.done() and not future.cancelled() and future.exception() is None:
                release(future.result())  # it came at the moment when nobody wanted it any more
            raise
        finally:
            self._waiting.pop(number, None)
            del future  # its error's traceback leads here: a worker's memory must not wait for a garbage collection

    def _take(self) -> None:
        for number, batch, failure in self._fetches.poll():
            future = self._waiting.get(number)
            if future is None or future.done():
                continue
            if batch is not None:
                future.set_result(self._encoded(batch))
                continue
            error = read_failure(self._name, unpack(failure))
            error.__cause__ = None  # it was raised in this process
            future.set_exception(error)

    def _encoded(self, batch: _C.FinishedBatch) -> Encoded:
        """A batch as it can be sent on, without decoding it; good also when the process has died that made it."""
        payload = memoryview(batch)
        number, offset = batch.place
        region = self.regions.get(number)
        place = None if region is None else (region, offset)
        # Without a slot, its place in the ring is given back when the last view of it dies.
        return Encoded(
            batch.head, (payload,) if payload.nbytes else (), payload.nbytes, batch.release if offset else None, place
        )

    def close(self) -> None:
        """Leaves the loop. Idempotent."""
        if self._loop is not None:
            self._loop.remove_reader(self._fetches.fileno())
            self._loop = None
