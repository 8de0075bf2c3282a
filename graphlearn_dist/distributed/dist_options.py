"""How and where a distributed loader samples."""

from __future__ import annotations

import numbers
import threading
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from ..data.schema import GraphSchema
from ..errors import InvalidArgumentError
from ..sampler.epochs.fingerprint import Settings
from ..utils.device import can_pin, parse_device
from ..utils.message_types import register_message
from ..utils.no_effect import warn_no_effect
from ..utils.shown import shown
from ..utils.system.ports import to_port
from ..utils.units import parse_share_or_size, parse_size

_MAX_CONCURRENCY = 32
_MAX_TOGETHER = 64  # all of them are in a worker's memory before the first can be handed on
_MAX_RPC_THREADS = 16
_MOST_AHEAD = 64  # requests of a loader at a server, which refuses what waits for it by the thousand
DEFAULT_BUFFER_BYTES = 1 << 30  # for finished batches
_SHARE_OF_RECENT_ROWS = 8  # of that memory, the part that rows which were answered lately have
_MOST_OF_RECENT_ROWS = 2  # likewise, at most
_LEAST_MESSAGES = 32  # of each worker in an epoch: then all have about as many batches
_START_TIMEOUT_S = 300.0  # workers take a second or two; more on a machine that is busy, or short of memory


def _check_seconds(name: str, value: Any, *, positive: bool = True) -> None:
    """InvalidArgumentError unless it is a number of seconds, and more than 0 where it has to be."""
    is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if not is_number or not (value > 0 if positive else value >= 0):
        expected = "a positive number of seconds" if positive else "at least 0 seconds"
        raise InvalidArgumentError(f"{name}: expected {expected}, got {shown(value)}")


def _check_row_cache(value: Any) -> None:
    if value is not None:
        parse_share_or_size(value, name="row_cache")


class _BasicDistSamplingWorkerOptions:
    """What all modes have; the fields are in the subclasses, whose positional orders differ."""

    master_addr: str | None
    master_port: str | int | None
    num_rpc_threads: int | None
    rpc_timeout: float
    num_threads: int
    batches_per_message: int | None
    recent_rows: int | str | None
    use_all2all: bool

    def _check(self, **at_least: int) -> None:
        """Refuses what no mode can do; ``at_least`` are the smallest values of fields that count something."""
        if self.num_rpc_threads is not None:
            at_least["num_rpc_threads"] = 1
        if self.batches_per_message is not None:
            at_least["batches_per_message"] = 1
        for name, smallest in {"num_threads": 1, **at_least}.items():
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < smallest:
                raise InvalidArgumentError(f"{name}: expected at least {smallest}, got {shown(value)}")
        if self.master_port is not None:
            to_port("master_port", self.master_port)
        _check_seconds("rpc_timeout", self.rpc_timeout)
        if self.rpc_timeout > threading.TIMEOUT_MAX:
            raise InvalidArgumentError(
                f"rpc_timeout: expected at most {threading.TIMEOUT_MAX:g} seconds, got {self.rpc_timeout}"
            )
        if self.batches_per_message is not None and self.batches_per_message > _MAX_TOGETHER:
            raise InvalidArgumentError(
                f"batches_per_message: expected at most {_MAX_TOGETHER}, got {self.batches_per_message}"
            )
        recent = self.recent_bytes
        if recent is not None and recent > self.buffer_bytes // _MOST_OF_RECENT_ROWS:
            raise InvalidArgumentError(
                f"recent_rows: expected at most half of the {self.buffer_bytes} bytes for batches, got {recent}"
            )
        if self.use_all2all:
            warn_no_effect("use_all2all", "the rows of a batch come in one request a partition already")

    @property
    def buffer_bytes(self) -> int:
        """Memory for batches, in one place."""
        return DEFAULT_BUFFER_BYTES

    @property
    def recent_bytes(self) -> int | None:
        """``recent_rows`` in bytes."""
        return None if self.recent_rows is None else parse_size(self.recent_rows, name="recent_rows", least=0)

    @property
    def rpc_threads(self) -> int:
        """Threads that answer other processes' requests."""
        return 1 if self.num_rpc_threads is None else self.num_rpc_threads

    @property
    def _num_makers(self) -> int:
        """Processes that make batches, in one place."""
        return 1

    def group_of(self, most: int, num_batches: int, num_servers: int = 1) -> int:
        """How many of a run's batches travel together, at ``most`` so many as whoever makes them said.

        All workers shall have about as many batches.
        """
        even = num_batches // (_LEAST_MESSAGES * self._num_makers * num_servers)
        return most if self.batches_per_message is not None else max(1, min(most, even))


def recent_rows_bytes(wish: int | None, memory_bytes: int) -> int:
    """What rows that were answered lately may have of who makes batches, of the memory that it has for these."""
    return memory_bytes // _SHARE_OF_RECENT_ROWS if wish is None else min(wish, memory_bytes // _MOST_OF_RECENT_ROWS)


def _messages_ahead(batches: int, group: int) -> int:
    """Messages of ``group`` batches each that are under way for so many batches: one is read while another is made."""
    return max(min(2, batches), -(-batches // group))


class _WorkerProcessOptions(_BasicDistSamplingWorkerOptions):
    """What the modes have that sample in processes of their own."""

    num_workers: int
    worker_devices: torch.device | list[torch.device] | None
    worker_concurrency: int
    max_restarts: int
    start_timeout: float

    def _check(self, **at_least: int) -> None:
        super()._check(num_workers=1, worker_concurrency=1, max_restarts=0, **at_least)
        _check_seconds("start_timeout", self.start_timeout)
        if self.worker_concurrency > _MAX_CONCURRENCY:
            raise InvalidArgumentError(
                f"worker_concurrency: expected at most {_MAX_CONCURRENCY}, got {self.worker_concurrency}"
            )
        given: Any = self.worker_devices
        if given is not None and not isinstance(given, (list, tuple)):
            given = [given]
        devices = [parse_device(device, "worker_devices", must_be_there=False) for device in given or ()]
        if any(device.type != "cpu" for device in devices):
            raise InvalidArgumentError(f"worker_devices: expected CPUs, got {self.worker_devices}")
        if len(devices) not in (0, 1, self.num_workers):
            raise InvalidArgumentError(
                f"worker_devices: expected one for each of {self.num_workers} workers, got {self.worker_devices}"
            )

    @property
    def _num_makers(self) -> int:
        return self.num_workers

    @property
    def rpc_threads(self) -> int:
        return min(self.num_workers, _MAX_RPC_THREADS) if self.num_rpc_threads is None else self.num_rpc_threads


@dataclass(frozen=True)
class CollocatedDistSamplingWorkerOptions(_BasicDistSamplingWorkerOptions):
    """Sampling in the training process.

    Attributes:
        master_addr: host of the group's registry, where ``init_rpc`` was not called; from ``MASTER_ADDR`` if None.
        master_port: its port; the one after ``MASTER_PORT`` if None.
        num_rpc_threads: threads that answer other workers' requests.
        rpc_timeout: deadline of each request, and of each batch, in seconds.
        prefetch_size: batches sampled, in a thread, ahead of the one that is asked for; 0 samples when asked. Where
            several are made together (``batches_per_message``), so many in whole groups, and two groups at least (one
            where it is 1).
        num_threads: threads of one batch; never changes it.
        batches_per_message: most batches that are made together where other workers are asked for what they have, as
            each costs less then; never changes them. At most 64. None has it follow from batch size and fan-outs, up
            to 16 of batches of some ten thousand edges and one of some million (two where they reach much of the
            graph, and rows of other workers that both want are asked for once), and from how many batches there are.
        recent_rows: memory, of a gigabyte beside the batches, for rows that other workers answered lately: those that
            following batches want again are not asked for again. Bytes, or text such as ``"64MB"``; at most half of
            it, 0 keeps none, None an eighth. Used only where a quarter of all rows that may be asked for find room,
            so not of graphs that are large beside it, whose batches have little in common (see ``row_cache``); never
            changes a batch.
        row_cache: copies of the rows of other partitions that batches are likeliest to need, fetched in the background
            from the workers that hold them, so that fewer travel: a share of all rows (float, from 0 to 1),
            bytes, or text such as ``"4GB"``; None and 0 keep none. They lie in shared memory of this process, beside
            the batches, and never change one; ``loader.row_cache_stats()`` says what they are good for.
        use_all2all: without effect, a warning says so once: features come in one request a partition already.
    """

    master_addr: str | None = None
    master_port: str | int | None = None
    num_rpc_threads: int | None = None
    rpc_timeout: float = 180
    prefetch_size: int = 2
    num_threads: int = 1
    batches_per_message: int | None = field(default=None, kw_only=True)
    recent_rows: int | str | None = field(default=None, kw_only=True)
    row_cache: float | str | None = field(default=None, kw_only=True)
    use_all2all: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        self._check(prefetch_size=0)
        _check_row_cache(self.row_cache)

    def groups_ahead(self, group: int) -> int:
        """Groups of so many batches that are under way ahead of the reader."""
        return _messages_ahead(self.prefetch_size, group)


@dataclass(frozen=True)
class MpDistSamplingWorkerOptions(_WorkerProcessOptions):
    """Sampling in subprocesses of the training process.

    Attributes:
        num_workers: sampling processes.
        worker_devices: must be None or CPUs: one for all workers, or a list with one for each.
        worker_concurrency: batches under way at once in each process (at most 32).
        master_addr: host of the group's registry, where ``init_rpc`` was not called; from ``MASTER_ADDR`` if None.
        master_port: its port; the one after ``MASTER_PORT`` if None.
        num_rpc_threads: threads that answer other workers' requests.
        rpc_timeout: deadline of each request, and of each batch, in seconds.
        channel_size: shared memory for finished batches of all workers, as bytes or as text such as ``"64MB"``;
            committed as it is used. It bounds how many batches a training loop can hold without copies.
        pin_memory: batches come in page-locked memory, which copies to the GPU without waiting. Without a GPU a
            warning says once that nothing changes.
        num_threads: threads of one batch; never changes it.
        max_restarts: how often each sampling process that dies (killed, out of memory) may be started again within an
            hour. Its batches are made again, the same. What sampling itself raises is never tried again.
        start_timeout: how long its sampling processes may take to start, in seconds, when the loader is made.
        batches_per_message: most batches that a sampling process hands on together, as it does with small ones, since
            that costs less for each; never changes them. At most 64. None has it follow from batch size and fan-outs,
            up to 16 of batches of some ten thousand edges and one of some million (two where they reach much of the
            graph, and rows of other processes that both want are asked for once), and from how many batches there are
            to share out.
        recent_rows: memory, of ``channel_size``, for rows that other workers answered lately: those that following
            batches want again are not asked for again. Bytes, or text such as ``"64MB"``; at most half of it, 0 keeps
            none, None an eighth. Used only where a quarter of all rows that may be asked for find room, so not of
            graphs that are large beside it, whose batches have little in common (see ``row_cache``); never changes a
            batch.
        row_cache: copies of the rows of other partitions that batches are likeliest to need, fetched in the background
            from the workers that hold them, so that fewer travel: a share of all rows (float, from 0 to 1),
            bytes, or text such as ``"4GB"``; None and 0 keep none. They lie in shared memory of this process, beside
            the batches, and never change one; ``loader.row_cache_stats()`` says what they are good for.
        use_all2all: without effect, as of ``CollocatedDistSamplingWorkerOptions``.
    """

    num_workers: int = 1
    worker_devices: torch.device | list[torch.device] | None = None
    worker_concurrency: int = 4
    master_addr: str | None = None
    master_port: str | int | None = None
    num_rpc_threads: int | None = None
    rpc_timeout: float = 180
    channel_size: int | str | None = None
    pin_memory: bool = False
    num_threads: int = 1
    max_restarts: int = 3
    start_timeout: float = _START_TIMEOUT_S
    batches_per_message: int | None = field(default=None, kw_only=True)
    recent_rows: int | str | None = field(default=None, kw_only=True)
    row_cache: float | str | None = field(default=None, kw_only=True)
    use_all2all: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        if self.channel_size is not None:
            parse_size(self.channel_size, name="channel_size")
        self._check()
        _check_row_cache(self.row_cache)
        if self.pin_memory:
            can_pin()  # warns where nothing is to be gained

    @property
    def buffer_bytes(self) -> int:
        """Shared memory for batches of all workers."""
        return DEFAULT_BUFFER_BYTES if self.channel_size is None else parse_size(self.channel_size)


@register_message
@dataclass(frozen=True)
class RemoteDistSamplingWorkerOptions(_WorkerProcessOptions):
    """Sampling on servers.

    Attributes:
        server_rank: ranks of the servers to use; None shares them out evenly among the clients. Where it is given, a
            ``Split`` names the seeds that these servers own; the whole data set's otherwise.
        num_workers: sampling processes on each of them.
        worker_devices: must be None or CPUs: one for all workers, or a list with one for each.
        worker_concurrency: batches under way at once in each process (at most 32).
        master_addr: not used; clients know the registry from ``init_client``.
        master_port: likewise.
        num_rpc_threads: not used; the RPC needs no threads of its own here.
        rpc_timeout: deadline of each request, and of each batch from when it is waited for, in seconds.
        buffer_size: shared memory for finished batches on each server, as bytes or as text such as ``"64MB"``;
            committed as it is used, and no more than the server's ``memory_budget`` leaves. Batches that find no room
            there travel by copies instead.
        prefetch_size: batches under way ahead of the trainer, on each server. Where several travel together
            (``batches_per_message``), so many in whole messages, and two messages at least (one where it is 1); 64
            messages at most.
        prefetch_bytes: most bytes of batches from each server that are on their way to the trainer or wait for it, as
            bytes or as text; ``buffer_size`` if None. One message comes whatever its size.
        worker_key: not used; every loader has sampling processes of its own.
        glt_graph: not used.
        workload_type: not used.
        num_threads: threads of one batch; never changes it.
        max_restarts: how often each sampling process that dies (killed, out of memory) may be started again within an
            hour. Its batches are made again, the same. What sampling itself raises is never tried again.
        reconnect_timeout: how long a server that is gone may take to come back, in seconds; 0 waits for none.
        start_timeout: how long the sampling processes may take to start, in seconds, when the loader is made.
        batches_per_message: most batches that a sampling process hands on together, as it does with small ones, since
            that costs less for each; never changes them. At most 64. None has it follow from batch size and fan-outs,
            up to 16 of batches of some ten thousand edges and one of some million (two where they reach much of the
            graph, and rows of other processes that both want are asked for once), and from how many batches there are
            to share out.
        recent_rows: memory, of ``buffer_size``, for rows that other servers answered lately: those that following
            batches want again are not asked for again. Bytes, or text such as ``"64MB"``; at most half of it, 0 keeps
            none, None an eighth. Used only where a quarter of all rows that may be asked for find room, so not of
            graphs that are large beside it, whose batches have little in common (see ``init_server(row_cache=)``);
            never changes a batch.
        use_all2all: without effect, as of ``CollocatedDistSamplingWorkerOptions``.
    """

    server_rank: int | list[int] | None = None
    num_workers: int = 1
    worker_devices: torch.device | list[torch.device] | None = None
    worker_concurrency: int = 4
    master_addr: str | None = None
    master_port: str | int | None = None
    num_rpc_threads: int | None = None
    rpc_timeout: float = 180
    buffer_size: int | str | None = None
    prefetch_size: int = 4
    worker_key: str | None = None
    glt_graph: Any = None
    workload_type: Literal["train", "validate", "test"] | None = None
    num_threads: int = 1
    max_restarts: int = 3
    reconnect_timeout: float = 60
    prefetch_bytes: int | str | None = None
    start_timeout: float = _START_TIMEOUT_S
    batches_per_message: int | None = field(default=None, kw_only=True)
    recent_rows: int | str | None = field(default=None, kw_only=True)
    use_all2all: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        for name in ("buffer_size", "prefetch_bytes"):
            if (size := getattr(self, name)) is not None:
                parse_size(size, name=name)
        self._check(prefetch_size=1)
        _check_seconds("reconnect_timeout", self.reconnect_timeout, positive=False)

    @property
    def buffer_bytes(self) -> int:
        """Shared memory for batches on each server."""
        return DEFAULT_BUFFER_BYTES if self.buffer_size is None else parse_size(self.buffer_size)

    @property
    def credit_bytes(self) -> int:
        """Bytes of batches that the trainer takes ahead from each server."""
        return self.buffer_bytes if self.prefetch_bytes is None else parse_size(self.prefetch_bytes)

    def requests_ahead(self, group: int) -> int:
        """Requests under way at each server, for ``group`` batches each."""
        return min(_MOST_AHEAD, _messages_ahead(self.prefetch_size, group))

    @property
    def request(self) -> ProducerRequest:
        """What a server is told of them."""
        return ProducerRequest(
            num_workers=self.num_workers,
            concurrency=self.worker_concurrency,
            num_threads=self.num_threads,
            buffer_bytes=self.buffer_bytes,
            request_timeout_s=self.rpc_timeout,
            max_restarts=self.max_restarts,
            reconnect_timeout_s=self.reconnect_timeout,
            start_timeout_s=self.start_timeout,
            batches_per_message=self.batches_per_message,
            recent_bytes=self.recent_bytes,
        )


AllDistSamplingWorkerOptions = (
    CollocatedDistSamplingWorkerOptions | MpDistSamplingWorkerOptions | RemoteDistSamplingWorkerOptions
)


@register_message
@dataclass(frozen=True)
class ProducerRequest:
    """How a client wants a server to produce, besides input nodes and config.

    Attributes:
        num_workers: sampling processes.
        concurrency: batches under way at once in each.
        num_threads: threads of one batch.
        buffer_bytes: shared memory for batches.
        request_timeout_s: deadline of requests between partitions.
        max_restarts: restarts of each sampling process that dies, within an hour.
        reconnect_timeout_s: how long another server that is gone may take to come back.
        key: chosen by the client, which closes by it whatever became of its request. Who asks with the same one again
            did not get the answer, and wants one producer in all; 0: each is another.
        start_timeout_s: how long the sampling processes may take to start.
        batches_per_message: most batches that travel together; None has it follow from their size.
        recent_bytes: of ``buffer_bytes``, for rows that others answered lately; None has it follow from these.
    """

    num_workers: int
    concurrency: int
    num_threads: int
    buffer_bytes: int
    request_timeout_s: float
    max_restarts: int = 3
    reconnect_timeout_s: float = 0.0
    key: int = 0
    start_timeout_s: float = _START_TIMEOUT_S
    batches_per_message: int | None = None
    recent_bytes: int | None = None

    def __post_init__(self) -> None:
        if not self.reconnect_timeout_s >= 0:
            raise InvalidArgumentError(
                f"reconnect_timeout_s: expected at least 0 seconds, got {self.reconnect_timeout_s}"
            )
        if self.max_restarts < 0:
            raise InvalidArgumentError(f"max_restarts: expected at least 0, got {self.max_restarts}")
        for name in ("num_workers", "concurrency", "num_threads", "buffer_bytes", "batches_per_message"):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise InvalidArgumentError(f"{name}: expected at least 1, got {getattr(self, name)}")
        if self.recent_bytes is not None and self.recent_bytes < 0:
            raise InvalidArgumentError(f"recent_bytes: expected at least 0, got {self.recent_bytes}")
        for name in ("request_timeout_s", "start_timeout_s"):
            if not getattr(self, name) > 0:
                raise InvalidArgumentError(f"{name}: expected a positive number of seconds, got {getattr(self, name)}")


@register_message
@dataclass(frozen=True)
class ProducerInfo:
    """What a client needs to know of a producer.

    Attributes:
        producer_id: names it in requests.
        num_batches: batches of an epoch.
        schema: types of the data set.
        input_settings: its input, to recognize it in a saved state.
        constants: attributes of the data set that have no rows, see ``Dataset.init_attrs``.
        owners: of batches of near seeds, by turn, the partition that owns the most of their seeds; see
            ``SeedSchedule.owners``. Empty where batches are of any seeds.
        together: how many of its batches may travel together, see ``batches_together``.
        answers_queries: whether its batches can be asked for without the server's interpreter.
    """

    producer_id: int
    num_batches: int
    schema: GraphSchema
    input_settings: Settings
    constants: dict[Any, dict[str, Any]] = field(default_factory=dict)
    owners: tuple[int, ...] = ()
    together: int = 1
    answers_queries: bool = False
