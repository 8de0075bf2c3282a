"""What all loaders do, wherever they sample: they go through epochs, and can go on from where they were."""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import replace
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, NoReturn

from ..config import trace_setting
from ..errors import GraphLearnError, InvalidArgumentError
from ..rpc.peers.identity import boot_id
from ..sampler.epochs.fingerprint import Settings
from ..sampler.epochs.schedule import BatchIndices
from ..telemetry import DeviceCacheCounts, LoaderStats, MadeStats, Metric, register_source
from ..telemetry.loader_stats import LoopTimes, made_metrics
from ..telemetry.process_status import LoaderStatus
from ..telemetry.trace import start_tracing, tracer
from ..utils.shown import shown
from ..utils.system.lifetime import Home, threads
from ..utils.values import check_seed
from .resume import EpochPass, EpochPlace, Shard, to_place, to_state

if TYPE_CHECKING:
    from torch_geometric.data import Data, HeteroData


_numbers = itertools.count()

_UNBOUNDED = 1 << 62


class EpochLoader(ABC):
    """An iterable over the batches of one epoch after the other.

    An epoch begins with the first ``next()`` of an iteration; ``iter()`` alone begins nothing. An iteration that is
    left half-way carries nothing over: the next one is the next epoch. ``next(loader)`` goes on in the iteration that
    ``iter()`` gave last, where that is still held; else in a new one.

    A loader is used in the process that made it: in a fork of that process iterating is a ``ForkedProcessError``, and
    shutting it down there does nothing.

    Attributes:
        epoch: the epoch that began last; -1 before the first.
    """

    def __init__(self, shard: Shard) -> None:
        self.home = Home(type(self).__name__)
        self.epoch = -1
        self.turn = threading.RLock()  # of the threads that begin iterations
        self._run = 0  # iterations that have begun
        self._shard = shard
        self._next = EpochPlace()  # where the next iteration begins
        self._pass: EpochPass | None = None  # the one that began last, unless a state was loaded since
        self._latest: weakref.ref[LoaderIterator] | None = None  # weak: a loop that is left ends its threads
        self._own: LoaderIterator | None = None
        self.times = LoopTimes()
        self._number = next(_numbers)
        start_tracing(trace_setting(), f"process {os.getpid()}", boot_id())

    @property
    def _trace_key(self) -> int:
        """What tells its batches from those of other loaders in a trace."""
        return os.getpid() << 20 | self._number

    def __repr__(self) -> str:
        """Where its batches are made, how many an epoch has, and how many are to come."""
        name = type(self).__name__
        return f"{name}({self._where}, {len(self)} batches an epoch, {self.num_remaining} to come)"

    @property
    def _where(self) -> str:
        """Who makes its batches, for people: as ``MadeStats.where``."""
        return "this process"

    def _made(self) -> MadeStats:
        """What makes its batches, and what it has made; a class that does not count says where alone."""
        return MadeStats(self._where)

    def _made_here(self) -> MadeStats | None:
        """The same where nobody need be asked; else None."""
        return self._made()

    def _device_cache(self) -> DeviceCacheCounts | None:
        """See ``MadeStats``. Apart from it, as it waits for a GPU: metrics are asked for at any moment."""
        return None

    @property
    def _num_ready(self) -> int | None:
        """Finished batches that the loop has not asked for; None where nobody counts them. From any thread."""
        return None

    def stats(self) -> LoaderStats:
        """Batches so far, how long the loop waited for them, and where the time of making them goes.

        Where servers make them, they are asked; ``str()`` of the result is a table.

        Raises:
            PeerLostError: a server is gone.
            ChannelClosedError: the loader was shut down.
        """
        times = self.times
        return LoaderStats(
            self._label,
            times.batches,
            self.num_remaining,
            times.wait_ns / 1e9,
            times.compute_ns / 1e9,
            replace(self._made(), device_cache=self._device_cache()),
            times.start_ns / 1e9,
            times.convert_ns / 1e9,
        )

    def status(self) -> Iterator[LoaderStatus]:
        """See ``telemetry.MetricSource``."""
        times = self.times
        yield LoaderStatus(
            self._label,
            self.epoch,
            times.batches,
            self.num_remaining,
            times.wait_ns / 1e9,
            times.compute_ns / 1e9,
            self._made_here(),
        )

    @property
    def _label(self) -> str:
        return f"{type(self).__name__} {self._number}"

    def metrics(self) -> Iterator[Metric]:
        """See ``telemetry.MetricSource``."""
        labels = {"loader": self._label}
        yield from self.times.metrics(labels)
        if (ready := self._num_ready) is not None:
            yield Metric("loader_ready_batches", "Finished batches that wait for the loop.", ready, labels)
        if (made := self._made_here()) is not None:
            yield from made_metrics(made, labels)

    @property
    @abstractmethod
    def _num_batches(self) -> int:
        """Batches of one epoch, those of other shards too."""

    @property
    def _is_open_ended(self) -> bool:
        """Whether how many batches an epoch has is known when it is over."""
        return False

    @abstractmethod
    def _settings(self) -> Settings:
        """What the batches are a function of, besides epoch and index."""

    @abstractmethod
    def _start(self, run: int, epoch: int, indices: BatchIndices) -> Iterator[tuple[int, Any]]:
        """Begins to make these batches of an epoch: (index, batch) of each, in their order."""

    def check_process(self) -> None:
        """Raises ``ForkedProcessError`` in a fork of the loader's process."""
        self.home.check()

    def __reduce__(self) -> NoReturn:
        self.home.refuse_pickling()

    def __len__(self) -> int:
        """Batches of one whole epoch in this shard, also where a loaded state is in the middle of one."""
        return len(self._shard.of(BatchIndices(0, self._num_batches)))

    @property
    def num_remaining(self) -> int:
        """Batches that this shard still gets from where ``state_dict()`` says it is.

        In a loop, those that are left of it; before one, those that it will have: an epoch's, or after
        ``load_state_dict`` in the middle of one, the rest of it.
        """
        left = None if self._pass is None else self._pass.num_left
        return len(self._shard.of(self._next.rest(self._num_batches))) if left is None else left

    def __iter__(self) -> LoaderIterator:
        self.check_process()
        iterator = LoaderIterator(self)
        self._latest, self._own = weakref.ref(iterator), None
        return iterator

    def __next__(self) -> Data | HeteroData:
        latest = self._latest() if self._latest is not None else None
        if latest is None:
            latest = iter(self)
            self._own = latest
        return next(latest)

    def _begin(self) -> tuple[EpochPass, Iterator[tuple[int, Any]]]:
        """Begins the next epoch, or the rest of the one in which a loaded state is."""
        register_source(self)  # not before all of it is there: whoever looks may come at any moment
        begun = EpochPass(self._next, _UNBOUNDED if self._is_open_ended else self._num_batches, self._shard)
        self._run += 1
        batches = self._start(self._run, begun.epoch, begun.indices)
        self.epoch, self._pass, self._next = begun.epoch, begun, EpochPlace(begun.epoch + 1)
        return begun, batches

    def set_epoch(self, epoch: int) -> None:
        """The next iteration is this epoch: all of it, or what is left of it where a loaded state is in it.

        Without this, epochs follow each other. It is for frameworks that count epochs themselves.

        Raises:
            InvalidArgumentError: a negative epoch, or one of more than 64 bits.
        """
        if not isinstance(epoch, int) or epoch < 0:
            raise InvalidArgumentError(f"epoch: expected an integer of at least 0, got {shown(epoch)}")
        check_seed("epoch", epoch)
        if self._next.epoch != epoch:
            self._next, self._pass = EpochPlace(epoch), None

    def state_dict(self) -> dict[str, Any]:
        """Where this loader is: after the last batch that it gave, whatever it has made ahead.

        The state is a few integers and strings, less than 1 KB. It speaks of the epoch as all shards see it: any
        shard's state is that of a job whose shards have taken as many steps as this one, and ``merge_states`` makes one
        of those of all shards where they have not.
        """
        place = self._next if self._pass is None else self._pass.place
        return to_state(place, self._shard, self._settings())

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """The next iteration that begins goes on from this state; one that has begun is not touched.

        The state may come from a loader in another mode, with other numbers of servers, workers, threads and shards.

        Raises:
            InvalidArgumentError: it is no state of a loader, or one of a loader that gives other batches; the error
                names what differs.
        """
        self._next, self._pass = to_place(state_dict, self._settings()), None


class LoaderIterator(Iterator[Any]):
    """One iteration over a loader; unlike the loader, iterating over it goes on instead of beginning again."""

    def __init__(self, loader: EpochLoader) -> None:
        self._loader = loader
        self._turn = threading.RLock()  # threads may share an iterator: each batch goes to one of them
        self._begun: tuple[EpochPass, Iterator[tuple[int, Any]]] | None = None
        self._has_failed = False

    def __reduce__(self) -> NoReturn:
        self._loader.home.refuse_pickling()

    def __next__(self) -> Data | HeteroData:
        self._loader.check_process()
        with self._turn, threads.calls:
            if self._begun is None:
                self._loader.times.begin()
                with self._loader.turn:
                    self._begun = self._loader._begin()
            progress, batches = self._begun
            asked_at = perf_counter_ns()
            try:
                index, batch = next(batches)
            except StopIteration:
                progress.end(is_all=self._loader._is_open_ended and not self._has_failed)
                raise
            except BaseException:
                self._has_failed = True
                raise
            progress.deliver(index)
        times = self._loader.times
        if (traced := tracer()) is not None:
            name = (self._loader._trace_key, progress.epoch, index)
            traced.loop(times.given_at, asked_at, self._loader._label, name)
        if times.gave(asked_at, perf_counter_ns()):
            with contextlib.suppress(GraphLearnError):  # a server is gone: that is told where its batch is missing
                times.advise(self._loader.stats())
        return batch
