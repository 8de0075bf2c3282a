"""Objects that live in processes of their own: what a group of workers asks of the engine that runs them."""

from __future__ import annotations

import concurrent.futures
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...errors import InvalidArgumentError, WorkerLateError

START_TIMEOUT_S = 300.0
"""How long a constructor may take, unless something else is asked for."""

Ref = Any
"""A result that may not be there yet: Ray's ``ObjectRef`` or a ``LocalRef``. Can be awaited, and has ``future()``."""


@dataclass(frozen=True)
class NodeResources:
    """A machine of the cluster.

    Attributes:
        node_id: the engine's name for it.
        address: how others reach it.
        cpus: processors in all, in use or not; infinite where the engine does not count them.
        gpus: GPUs in all.
        custom: other resources by name.
    """

    node_id: str
    address: str
    cpus: float
    gpus: float
    custom: Mapping[str, float] = field(default_factory=dict)

    def as_bundle(self) -> dict[str, float]:
        """The resources under Ray's names."""
        return {**self.custom, "CPU": self.cpus, "GPU": self.gpus}


def order_nodes(nodes: Iterable[NodeResources]) -> list[NodeResources]:
    """Machines that take work, the largest first; one without processors, as a cluster's head often is, takes none."""
    found = sorted(nodes, key=lambda node: (-node.cpus, node.node_id))
    return [node for node in found if node.cpus] or found


@dataclass(frozen=True)
class NodePort:
    """A machine as others reach it, and a port of it that was free just now."""

    node_id: str
    address: str
    port: int


@dataclass(frozen=True)
class ReservationRequest:
    """Bundles to be held for workers.

    Attributes:
        name: readable, unique within the engine.
        bundles: resources of each bundle, under Ray's names.
        strategy: ``STRICT_PACK`` for one machine, ``SPREAD`` or another of Ray's.
        node_id: machine to prefer, or None.
    """

    name: str
    bundles: Sequence[Mapping[str, float]]
    strategy: str
    node_id: str | None = None


def ports_given(given: Collection[tuple[str, int]], address: str) -> set[int]:
    """Those of one machine's address among the ports that were given out before."""
    return {port for given_address, port in given if given_address == address}


@dataclass(frozen=True)
class Reservation:
    """Bundles that are held.

    Attributes:
        request: what was asked for.
        engine: what holds them.
        native: Ray's placement group; None for local processes.
    """

    request: ReservationRequest
    engine: ActorBackend
    native: Any = None

    @property
    def bundle_specs(self) -> list[dict[str, float]]:
        """Resources of each bundle."""
        return [dict(bundle) for bundle in self.request.bundles]

    @property
    def bundle_count(self) -> int:
        """Number of bundles."""
        return len(self.request.bundles)


@dataclass(frozen=True)
class MethodProfile:
    """What a caller has to know of a method.

    Attributes:
        parameters: names of those that may be given by position, without ``self``.
        streams: whether it is a generator.
        idempotent: whether it may be repeated after its worker died.
    """

    parameters: tuple[str, ...]
    streams: bool
    idempotent: bool


@dataclass(frozen=True)
class ActorSpec:
    """A process to be started, and the object in it.

    Attributes:
        name: unique among the live actors of the engine; empty for none.
        target: the class, or its dotted name, which is imported in that process only.
        args: for its constructor.
        kwargs: for its constructor.
        reservation: where it runs; None for anywhere.
        bundle_index: which bundle.
        node_id: the machine it runs on, for one without a reservation; None for any.
        num_gpus: GPUs it gets, or a fraction of one.
        env: variables that are set before the class is imported.
        memory_limit_bytes: bound of its private memory, or None.
        options: the engine's own options (Ray's ``.options``); ``max_concurrency`` counts on every engine.
        start_timeout_s: from ``create`` until the object is constructed; the process is killed then.
        methods: of the object, where they are known before it is there; what Ray's own handles offer.
    """

    name: str
    target: str | type[Any]
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    reservation: Reservation | None = None
    bundle_index: int = 0
    node_id: str | None = None
    num_gpus: float = 0.0
    env: Mapping[str, str] = field(default_factory=dict)
    memory_limit_bytes: int | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    start_timeout_s: float = START_TIMEOUT_S
    methods: Mapping[str, MethodProfile] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.start_timeout_s > 0:
            raise InvalidArgumentError(
                f"start_timeout_s: expected a positive number of seconds, got {self.start_timeout_s}"
            )

    def late(self, node: str) -> WorkerLateError:
        """What becomes of it when it is not constructed in time, on that machine."""
        rank = f"rank {self.env['RANK']}, " if "RANK" in self.env else ""
        return WorkerLateError(
            f"{self.name or 'worker'} ({rank}node {node}): expected to be constructed within "
            f"{self.start_timeout_s:g} s; it was killed"
        )


@dataclass(frozen=True)
class ActorProfile:
    """What an actor says of itself once it is constructed."""

    pid: int
    node: str
    methods: Mapping[str, MethodProfile]


@dataclass(frozen=True)
class RunningCall:
    """A method that runs now.

    Attributes:
        method: its name.
        age_s: since it began.
        silent_s: since it began or last called ``heartbeat()``.
    """

    method: str
    age_s: float
    silent_s: float


@dataclass(frozen=True)
class ResourceUsage:
    """What a worker's process uses. GPU memory is 0 where it has not touched a GPU.

    Attributes:
        cpu_percent: since the last time somebody asked; 100 is one core.
        rss_bytes: resident memory, shared pages included.
        uss_bytes: memory that only this process has.
        data_bytes: what ``memory_limit`` bounds.
        threads: number of threads.
        fds: open file descriptors.
        gpu_bytes: GPU memory that torch holds.
        machine_bytes: memory of its machine, or what control groups grant it of that.
    """

    cpu_percent: float
    rss_bytes: int
    uss_bytes: int
    data_bytes: int
    threads: int
    fds: int
    gpu_bytes: int
    machine_bytes: int


class Actor(ABC):
    """An object in a process of its own.

    Calls are asynchronous and run one after the other; control calls run beside them, also while a method is busy.
    """

    spec: ActorSpec

    @property
    @abstractmethod
    def ready(self) -> concurrent.futures.Future[ActorProfile]:
        """Done when the object is constructed; fails with what its constructor raised, or when the process dies.

        It is done in any case: who takes longer than ``spec.start_timeout_s`` is killed, a ``WorkerLateError``.
        """

    @property
    @abstractmethod
    def ended(self) -> concurrent.futures.Future[None]:
        """Fails, with how it ended, as soon as the process is gone; never has a result."""

    @abstractmethod
    def call(self, method: str, *args: Any, **kwargs: Any) -> Ref:
        """Calls a method that returns; the reference gives its result or raises what it raised."""

    @abstractmethod
    def stream(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Calls a generator; iterating over what comes back gives a reference for each item."""

    @abstractmethod
    def control(self, operation: str) -> Ref:
        """``ping`` (tuple of ``RunningCall``), ``stacks`` (text) or ``usage`` (``ResourceUsage``)."""


class Promise(ABC):
    """A reference that is made before the worker is there.

    Attributes:
        ref: the reference.
    """

    ref: Ref

    @abstractmethod
    def keep(self, worker: Actor) -> None:
        """The worker is there: the reference gives its handle, on Ray Ray's own."""

    @abstractmethod
    def fail(self, error: BaseException) -> None:
        """There will be none; the reference raises this."""


class ActorBackend(ABC):
    """An engine: local processes, or Ray."""

    name: str

    @abstractmethod
    def nodes(self) -> list[NodeResources]:
        """The machines that are there now."""

    @abstractmethod
    def reserve(self, requests: Sequence[ReservationRequest], timeout_s: float) -> list[Reservation]:
        """Holds all bundles of all requests, or none.

        Raises:
            DeadlineExceededError: they were not free within the time; lists what was asked for and what is free.
        """

    @abstractmethod
    def wait_for_room(self, requests: Sequence[ReservationRequest], timeout_s: float) -> None:
        """Returns when machines may have joined that have room for all requests, or after that time at the latest.

        Returns at once where no machine can join.
        """

    @abstractmethod
    def release(self, reservation: Reservation) -> None:
        """Gives bundles back; whatever runs in them ends. Idempotent."""

    @abstractmethod
    def create(self, spec: ActorSpec) -> Actor:
        """Starts an actor without waiting for it.

        Raises:
            WorkerNameTakenError: a live actor has that name.
        """

    def create_when_free(self, spec: ActorSpec) -> Actor:
        """``create``, for a name whose actor has just ended: where the engine frees it later, that is waited for."""
        return self.create(spec)

    @abstractmethod
    def bundle_nodes(self, reservation: Reservation) -> list[str]:
        """The machine of each bundle, as in ``NodeResources.node_id``."""

    @abstractmethod
    def find_port(
        self,
        reservation: Reservation,
        bundle_index: int,
        low: int,
        high: int,
        given: Collection[tuple[str, int]] = (),
    ) -> Ref:
        """A ``NodePort`` of a bundle's machine that is free there and not among those given out before.

        Args:
            reservation: holds the bundle.
            bundle_index: which one.
            low: the lowest port; 0 together with ``high`` for any.
            high: the highest port, inclusive.
            given: ``(address, port)`` of those given out before, on any machine.
        """

    @abstractmethod
    def get(self, refs: Sequence[Ref], timeout_s: float | None = None) -> list[Any]:
        """The results, in order; raises the first exception.

        Raises:
            DeadlineExceededError: they were not there in time.
        """

    @abstractmethod
    def kill(self, actor: Actor) -> None:
        """Ends the process at once and waits until its name is free. Idempotent."""

    @abstractmethod
    def handle(self, actor: Callable[[], Actor]) -> GroupWorkerHandle:
        """What callers get of an actor, or of whatever process serves a rank at the moment."""

    @abstractmethod
    def promise(self, keeper: Actor) -> Promise:
        """A reference to a worker that is not there yet.

        Args:
            keeper: a ``RayWorkerBuilder.IsolatedWorkerInitializer`` that has room for two calls beside its others. It
                must live until the promise is kept or has failed.
        """

    @abstractmethod
    def put(self, value: Any) -> Ref:
        """A reference to a value, to be passed to several calls without being copied for each."""

    @abstractmethod
    def is_stream(self, value: Any) -> bool:
        """Whether this came from ``Actor.stream``."""

    @abstractmethod
    def is_death(self, error: BaseException) -> bool:
        """Whether it says that an actor's process is gone, rather than that its code raised."""

    @abstractmethod
    def is_lost(self, error: BaseException) -> bool:
        """Whether a call has no answer because its process is gone or cannot be reached; ``Actor.ended`` says which."""


class GroupWorkerHandle:
    """A worker, as a caller holds it: ``handle.method.remote(…)`` gives a reference; stays good over restarts.

    What it is sent to gets Ray's own handle of the worker's process of then, which has the same methods.
    """

    def __init__(self, actor: Callable[[], Actor]) -> None:
        self._actor = actor

    @property
    def actor(self) -> Actor:
        """The process of now."""
        return self._actor()

    def __getattr__(self, name: str) -> RemoteMethod:
        if name.startswith("__"):
            raise AttributeError(name)
        return RemoteMethod(self._actor(), name)

    def __repr__(self) -> str:
        return f"GroupWorkerHandle({self._actor().spec.name or 'worker'})"

    def __reduce__(self) -> Any:
        raise InvalidArgumentError(
            f"{self!r}: expected the handle of a worker on Ray to be sent to another process; a local worker answers "
            "only the process that started it"
        )


class RemoteMethod:
    """A method of a worker; waits until that is constructed.

    Raises:
        AttributeError: it has none of that name.
        WorkerLateError: the worker was not constructed in time, and was killed.
    """

    def __init__(self, actor: Actor, name: str) -> None:
        self._actor = actor
        self._name = name
        self.profile = find_method(actor.spec.name, actor.ready.result(), name)

    def remote(self, *args: Any, **kwargs: Any) -> Ref:
        """Calls it without waiting; a generator gives a stream of references."""
        if self.profile.streams:
            return self._actor.stream(self._name, *args, **kwargs)
        return self._actor.call(self._name, *args, **kwargs)


def find_method(worker: str, profile: ActorProfile, name: str) -> MethodProfile:
    """What is known of a method; raises ``AttributeError``, which lists those that there are."""
    if name not in profile.methods:
        raise AttributeError(f"{worker or 'worker'} has no method {name!r}; it has {sorted(profile.methods)}")
    return profile.methods[name]
