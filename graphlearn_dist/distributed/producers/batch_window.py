"""Batches asked for ahead of their reader, and given in order: the same for every mode."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from ...errors import ChannelClosedError, DeadlineExceededError, GraphLearnError, PeerLostError, ProducerGoneError
from ...messages import EndOfEpoch, SampledBatch
from ...utils.lifetime import Home
from ..session.launcher_messages import result_or_alarm
from ..workers.worker_failure import failure_error


@dataclass(frozen=True)
class BatchRequest:
    """One batch that is wanted.

    Attributes:
        run: the iteration that wants it.
        epoch: whose draws.
        index: which batch of the epoch's global list.
        position: how many of this loader's batches come before it.
    """

    run: int
    epoch: int
    index: int
    position: int


class BatchWindow:
    """Keeps requests under way, so that a batch is ready when its reader comes; at most ``limit`` at a time.

    Args:
        ask: sends a request; a future of a ``SampledBatch``, ``EndOfEpoch`` or ``WorkerFailure``.
        limit: most batches under way before the reader wants the first of them; 0 asks only when it comes.
        timeout_s: how long the reader waits for one.
        place_of: where a request went, for errors.
        recover: called when that place was lost, with the first request that it lacks an answer to and the error; makes
            it ready to be asked again, or raises.
        alarm: fails when it is no use to wait any more.

    Attributes:
        num_read: how many of the run's batches the reader has had.
    """

    def __init__(
        self,
        ask: Callable[[BatchRequest], Future[Any]],
        limit: int,
        timeout_s: float,
        place_of: Callable[[BatchRequest], str],
        *,
        recover: Callable[[BatchRequest, GraphLearnError], None] | None = None,
        alarm: Future[None] | None = None,
    ) -> None:
        self._home = Home("the loader's batches")
        self._ask_for = ask
        self._limit = limit
        self._timeout_s = timeout_s
        self._place_of = place_of
        self._recover = recover
        self._alarm = alarm
        self._indices: Sequence[int] = ()
        self._num_asked = 0  # of these
        self._under_way: deque[tuple[BatchRequest, Future[Any]]] = deque()  # at most ``limit``
        self._end = EndOfEpoch(0, 0, 0)
        self._closed = False
        self.num_read = 0

    def start(self, run: int, epoch: int, indices: Sequence[int]) -> None:
        """Begins a run over these batch indices; whatever was under way is off."""
        self.check_open()
        self.reset()
        self._indices = indices
        self._end = EndOfEpoch(run, epoch, len(indices))
        self._ask(self._limit)

    def reset(self) -> None:
        """Calls off everything under way; in a fork that is not this process's, and is left alone."""
        if not self._home.is_here:
            return
        self.num_read = self._num_asked = 0
        self._indices = ()
        for _, future in self._under_way:
            future.cancel()
        self._under_way.clear()

    def close(self) -> None:
        """Calls off everything under way; ``recv`` fails from now on. Idempotent."""
        self.reset()
        self._closed = True

    def recv(self) -> SampledBatch | EndOfEpoch:
        """The next batch; ``EndOfEpoch`` after the last.

        Raises:
            SamplingWorkerError: a worker failed at it, or died.
            PeerLostError: whoever should have made it, or a part of it, is gone.
            DeadlineExceededError: it did not come in time.
            ChannelClosedError: the window was closed.
        """
        self.check_open()
        if not self._under_way:
            self._ask(max(1, self._limit))  # after an error, too, there may be more: that must not look like the end
        if not self._under_way:
            return self._end
        request, future = self._under_way.popleft()
        try:
            item = self._result(request, future)
        except TimeoutError as error:
            if isinstance(error, DeadlineExceededError):
                raise
            future.cancel()
            raise DeadlineExceededError(
                f"batch {request.index}: nothing from {self._place_of(request)} within {self._timeout_s:g} s"
            ) from error
        finally:
            self.num_read = request.position + 1
        self._ask(self._limit)
        if isinstance(item, SampledBatch):
            return item
        if isinstance(item, EndOfEpoch):
            raise ChannelClosedError(
                f"batch {request.index}: {self._place_of(request)} has only {item.num_batches} batches"
            )
        raise failure_error(item)

    def is_ready(self) -> bool:
        """Whether ``recv`` would give something at once; not where that may be an error."""
        if not self._under_way:
            return self._num_asked == len(self._indices) and not self._closed
        future = self._under_way[0][1]
        return future.done() and not future.cancelled() and future.exception() is None

    def _result(self, request: BatchRequest, future: Future[Any]) -> Any:
        while True:
            try:
                return result_or_alarm(future, self._alarm, self._timeout_s)
            except (PeerLostError, ProducerGoneError) as error:
                future = self._ask_again(request, error)

    def _ask_again(self, request: BatchRequest, error: PeerLostError | ProducerGoneError) -> Future[Any]:
        """Asks a place that was lost again for this batch and all that were under way from there."""
        try:
            if self._recover is None or (self._alarm is not None and self._alarm.done()):
                raise error
            self._recover(request, error)
        except PeerLostError as lost:
            awaited = f"batch {request.index} of epoch {request.epoch} was awaited"
            raise PeerLostError(lost.peer, f"{lost.why} (stage fetch: {awaited})") from error
        place, future = self._place_of(request), self._ask_for(request)
        for at, (other, asked) in enumerate(self._under_way):
            if self._place_of(other) == place:
                asked.cancel()
                self._under_way[at] = other, self._ask_for(other)
        return future

    def check_open(self) -> None:
        """Raises ``ChannelClosedError`` after ``close``, and ``ForkedProcessError`` in a fork."""
        self._home.check()
        if self._closed:
            raise ChannelClosedError("the loader was shut down")

    def _ask(self, limit: int) -> None:
        while self._num_asked < len(self._indices) and len(self._under_way) < limit:
            index = self._indices[self._num_asked]
            request = BatchRequest(self._end.run, self._end.epoch, index, self._num_asked)
            self._num_asked += 1
            self._under_way.append((request, self._ask_for(request)))
