"""What a loader iterates over, whatever the mode: batches asked for ahead of their reader, and given in order."""

from __future__ import annotations

import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from concurrent.futures import CancelledError, Future
from concurrent.futures import TimeoutError as FutureTimeoutError  # another one before Python 3.11
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from ...data.schema import GraphSchema
from ...errors import ChannelClosedError, DeadlineExceededError, PeerLostError, ProducerGoneError
from ...messages import EndOfEpoch, SampledBatch, SampledBatches
from ...sampler.epochs.fingerprint import Settings
from ...sampler.epochs.schedule import BatchIndices
from ...telemetry import DeviceCacheCounts, MadeStats
from ...utils.system.lifetime import Home
from ..copies.host_row_cache import RowCacheStats
from ..session.launcher_messages import raise_alarm
from ..workers.worker_failure import failure_error


@dataclass(frozen=True)
class BatchRequest:
    """Batches that are wanted, and may travel together.

    Attributes:
        run: the iteration that wants them.
        epoch: whose draws.
        index: which batch of the epoch's global list is the first.
        positions: of each, how many of this loader's batches come before it; ascending. An answer may have fewer, of
            which the first is the first of these.
    """

    run: int
    epoch: int
    index: int
    positions: Sequence[int]

    @property
    def position(self) -> int:
        """Of the first."""
        return self.positions[0]


class Pending(Protocol):
    """A future, or what stands for one, of a ``ChannelItem``: as ``concurrent.futures.Future``."""

    def cancel(self) -> bool: ...
    def cancelled(self) -> bool: ...
    def done(self) -> bool: ...
    def exception(self, timeout: float | None = None) -> BaseException | None: ...
    def result(self, timeout: float | None = None) -> Any: ...


class BatchProducer(ABC):
    """Makes the batches of one loader. Opened when it is constructed; ``close`` ends it.

    It keeps a window of requests under way, so that a batch is ready when its reader comes. A mode says how a run
    begins, how one batch is asked for, and what is done where whoever makes it was lost.

    Args:
        limit: most requests under way before the reader wants the first of them; 0 asks only when it comes.
        timeout_s: how long the reader waits for one.
        alarm: fails when it is no use to wait any more.

    Attributes:
        schema: the types of the data set.
        constants: attributes of the data set that have no rows, by type and name.
        num_batches: batches in the global list of an epoch, those of other shards too.
        device: the GPU that batches lie on; None in host memory.
    """

    device: torch.device | None = None
    schema: GraphSchema
    constants: Mapping[Any, Mapping[str, Any]]
    num_batches: int

    def __init__(self, limit: int, timeout_s: float, alarm: Future[None] | None = None) -> None:
        self._home = Home("the loader's batches")
        self._limit = limit
        self._timeout_s = timeout_s
        self._alarm = alarm
        self._indices = BatchIndices(0, 0)
        self._num_wanted = self._num_asked = self._num_read = 0  # of these; asked: in a row, from the first on
        self._asked_ahead: set[int] = set()  # positions behind one that was not asked for
        self._under_way: dict[int, tuple[BatchRequest, Pending]] = {}  # at most ``limit``, by first position
        self._arrived: dict[int, SampledBatch] = {}  # by position, with one that was read
        self._end = EndOfEpoch(0, 0, 0)
        self._closed = self._ended = False  # ended: all that was started for it
        self._closing = threading.RLock()  # a handler of signals may close what its thread is closing
        self._awaited: Pending | None = None
        self._failed: int | None = None  # position of the batch that there was an error instead of, if just now
        if alarm is not None:
            give_up = weakref.WeakMethod(self._give_up)  # the alarm outlives the loader
            alarm.add_done_callback(lambda _: (method := give_up()) and method())

    # --- what a mode says ----------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def input_settings(self) -> Settings:
        """The input of the loader as ``sampler.epochs.fingerprint.input_settings`` gives it."""

    @property
    @abstractmethod
    def where(self) -> str:
        """Where batches are made, for people."""

    @abstractmethod
    def made(self) -> MadeStats:
        """What has made its batches until now; servers are asked.

        Raises:
            PeerLostError: a server is gone.
        """

    @property
    def device_cache(self) -> DeviceCacheCounts | None:
        """Of rows that a GPU gathers for its batches; None without such caches. Waits for the GPU."""
        return None

    @property
    def row_cache_stats(self) -> RowCacheStats | None:
        """Of copies that it keeps of other partitions' rows; None without, or where servers keep them."""
        return None

    @property
    def trace_key(self) -> int:
        """What tells its batches from those of other loaders in a trace; 0: the loader's own will do."""
        return 0

    @property
    def made_here(self) -> MadeStats | None:
        """The same where nobody need be asked; None where servers make the batches."""
        return self.made()

    @abstractmethod
    def _begin(self, run: int, epoch: int, indices: BatchIndices) -> None:
        """Begins to make these batches; nothing is under way."""

    @abstractmethod
    def _ask(self, request: BatchRequest) -> Pending:
        """Asks for batches."""

    def _group_of(self, position: int, /) -> Sequence[int]:
        """Positions of batches of the run that may travel together: this one, and some behind it."""
        return (position,)

    def _recover(self, request: BatchRequest, lost: PeerLostError | ProducerGoneError) -> Any:
        """What the future of the first request under way gives once its place is back; raises where it is not."""
        raise lost

    def _note_read(self, position: int) -> None:  # noqa: B027  # only servers need to know
        """The batch at this position has come, or will not, as all have that whoever makes it makes before it."""

    def _grant(self, position: int) -> None:  # noqa: B027  # likewise
        """Tells whoever makes the batch at this position what was read, unless a request has told it."""

    @abstractmethod
    def _place_of(self, request: BatchRequest) -> str:
        """Where a request goes, for errors."""

    @abstractmethod
    def _release(self) -> None:
        """Ends whatever was started. Idempotent."""

    # --- the window ----------------------------------------------------------------------------------------------

    def start(self, run: int, epoch: int, indices: BatchIndices) -> None:
        """Begins to make these batches of an epoch; what an older run asked for is off.

        Args:
            run: greater than that of any start before.
            epoch: whose draws.
            indices: positions in the epoch's global list.
        """
        self._check_open()
        self._call_off()
        self._begin(run, epoch, indices)
        self._indices, self._num_wanted = indices, len(indices)
        self._end = EndOfEpoch(run, epoch, len(indices))
        self._ask_ahead(self._limit)

    def recv(self) -> SampledBatch | EndOfEpoch:
        """The next batch; ``EndOfEpoch`` after the last.

        Raises:
            SamplingWorkerError: a worker failed at it, or died.
            PeerLostError: whoever should have made it, or a part of it, is gone.
            DeadlineExceededError: it did not come in time. The next call waits for it again.
            ChannelClosedError: the producer was closed, by another thread meanwhile too.
        """
        try:
            return self._next()
        except Exception:
            self._check_open()  # else that is why
            raise

    def _next(self) -> SampledBatch | EndOfEpoch:
        if (arrived := self._arrived.pop(self._num_read, None)) is not None:
            self._num_read += 1
            return arrived
        self._check_open()
        if self._failed is not None:
            self._grant(self._failed)  # whoever was to make it may have no request that says so
        if self._num_read == self._num_wanted:
            self._failed = None
            return self._end
        if self._num_read == self._num_asked:
            self._ask_ahead(len(self._under_way) + 1)
        position = self._failed = self._num_read
        request, future = self._under_way.pop(position)
        item: Any = None
        try:
            item = self._wait_for(request, future)
        except (PeerLostError, ProducerGoneError) as lost:
            item = self._wait_again(request, lost)
        finally:
            if position not in self._under_way:
                num_came = len(item.batches) if isinstance(item, SampledBatches) else 1
                self._num_read += 1
                self._note_read(request.positions[num_came - 1])
                if (rest := request.positions[num_came:]) and not self._closed:
                    self._ask_for(rest)
        self._ask_ahead(self._limit)
        if isinstance(item, (SampledBatch, SampledBatches)):
            first, *others = item.batches if isinstance(item, SampledBatches) else (item,)
            self._arrived.update(zip(request.positions[1:], others, strict=False))
            self._grant(position)
            self._failed = None
            given = [first]
            del item, first, others  # this frame stays as long as the traceback of a loss does
            return given.pop()
        if isinstance(item, EndOfEpoch):
            raise ChannelClosedError(
                f"batch {request.index}: {self._place_of(request)} has only {item.num_batches} batches"
            )
        raise failure_error(item)

    @property
    def num_ready(self) -> int:
        """Finished batches, or answers with some, that wait for the reader. From any thread."""
        return len(self._arrived) + sum(future.done() for _, future in [*self._under_way.values()])

    def is_ready(self) -> bool:
        """Whether ``recv`` would give something at once; not where that may be an error."""
        if self._num_read in self._arrived:
            return not self._closed
        if self._num_read == self._num_wanted:
            return not self._closed
        _, future = self._under_way.get(self._num_read, (None, None))
        return future is not None and future.done() and not future.cancelled() and future.exception() is None

    @property
    def is_open(self) -> bool:
        """Whether there is anything to close here."""
        return not self._ended and self._home.is_here

    def close(self) -> None:
        """Ends it, and whatever was started for it. Idempotent; without effect in a fork.

        From any thread: all wait until it has ended. What an interrupt leaves of it the next call ends.
        """
        if not self._home.is_here:
            return
        with self._closing:
            self._closed = True
            self._call_off()
            self._release()
            self._ended = True

    def _check_open(self) -> None:
        self._home.check()
        if self._closed:
            raise ChannelClosedError("the loader was shut down")

    def _call_off(self) -> None:
        self._num_wanted = self._num_asked = self._num_read = 0
        for _, future in [*self._under_way.values()]:  # another thread may be reading
            future.cancel()
        self._under_way.clear()
        self._asked_ahead.clear()
        self._arrived.clear()
        self._failed = None

    def _ask_ahead(self, limit: int) -> None:
        """Asks for the first batch that was not asked for, and for its group, until so many requests are under way."""
        while self._num_asked < self._num_wanted and len(self._under_way) < limit:
            group = [position for position in self._group_of(self._num_asked) if position < self._num_wanted]
            self._asked_ahead.update(group)
            while self._num_asked in self._asked_ahead:
                self._asked_ahead.remove(self._num_asked)
                self._num_asked += 1
            self._ask_for(group)

    def _ask_for(self, positions: Sequence[int]) -> None:
        """Asks for the batches at these positions of the run."""
        request = BatchRequest(self._end.run, self._end.epoch, self._indices[positions[0]], positions)
        self._under_way[positions[0]] = request, self._ask(request)

    def _ask_again(self, request: BatchRequest) -> Pending:
        """Asks the place of a request again for this batch and all that were under way from there."""
        place, future = self._place_of(request), self._ask(request)
        for position in sorted(self._under_way):
            other, asked = self._under_way[position]
            if self._place_of(other) == place:
                asked.cancel()
                self._under_way[position] = other, self._ask(other)
        return future

    def _wait_for(self, request: BatchRequest, future: Pending) -> Any:
        self._awaited = future  # from now on the alarm ends the wait
        try:
            raise_alarm(self._alarm)
            return future.result(self._timeout_s)
        except CancelledError:
            raise_alarm(self._alarm)
            raise
        except (TimeoutError, FutureTimeoutError) as error:
            failed = future.done() and not future.cancelled() and future.exception() is error
            if failed or isinstance(error, DeadlineExceededError):
                raise
            self._under_way[request.position] = request, future  # it may still come, and is given to the reader then
            raise DeadlineExceededError(
                f"batch {request.index}: nothing from {self._place_of(request)} within {self._timeout_s:g} s"
            ) from error
        finally:
            self._awaited = None

    def _give_up(self) -> None:
        """The alarm went off. On any thread."""
        if (awaited := self._awaited) is not None:
            awaited.cancel()

    def _wait_again(self, request: BatchRequest, lost: PeerLostError | ProducerGoneError) -> Any:
        try:
            return self._recover(request, lost)
        except PeerLostError as error:
            awaited = f"batch {request.index} of epoch {request.epoch} was awaited"
            raise PeerLostError(error.peer, f"{error.why} (stage fetch: {awaited})") from lost
