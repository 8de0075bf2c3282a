"""Actors of Ray. The only module that imports it; imported when Ray is asked for."""

from __future__ import annotations

import concurrent.futures
import contextlib
import math
import os
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import ray
import ray.exceptions
from ray.actor import ActorHandle
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

from ...errors import DeadlineExceededError, InvalidArgumentError, WorkerLateError, WorkerNameTakenError
from ...utils.system.ports import free_port
from .base import (
    Actor,
    ActorBackend,
    ActorProfile,
    ActorSpec,
    GroupWorkerHandle,
    MethodProfile,
    NodePort,
    NodeResources,
    Promise,
    Ref,
    Reservation,
    ReservationRequest,
    ports_given,
)
from .shell import Shell, ShellSetup
from .wire import dump_error

_KILL_WAIT_S, _HAND_OVER_WAIT_S = 10.0, 10.0
_LOOK_AGAIN_S = 0.2
_NAME_TIMEOUT_S, _NAME_WAIT_S = 30.0, 0.05
# Older versions of Ray have no class of its own for this.
_NAME_TAKEN: type[Exception] = getattr(ray.exceptions, "ActorAlreadyExistsError", ValueError)
_DEATHS = (ray.exceptions.ActorDiedError, ray.exceptions.WorkerCrashedError, WorkerLateError)


def init_ray(log_dir: str | None = None, *, address: str | None = None, **options: Any) -> None:
    """Connects to Ray; does nothing where this process is connected.

    To the cluster at ``address`` or in ``RAY_ADDRESS``, or to the one of this machine (``ray start``), or to a new one
    of this process.

    Args:
        log_dir: where a new Ray keeps its logs and sockets, with a short path; None leaves it to Ray.
        address: such as ``10.0.0.1:6379``, or ``local`` for a new one in any case; None as above.
        **options: for ``ray.init``. The dashboard stays off unless asked for: it needs ``ray[default]``.
    """
    if ray.is_initialized():
        return
    if address is None and "RAY_ADDRESS" not in os.environ:
        try:
            ray.init(address="auto", **{"logging_level": "warning", **options})
            return
        except ConnectionError:  # none runs here
            address = "local"
    if address == "local":
        own = {} if log_dir is None else {"_temp_dir": os.path.abspath(log_dir)}
        options = {"include_dashboard": False, **own, **options}
    ray.init(address=address, **options)


@contextlib.contextmanager
def connected(**options: Any) -> Iterator[RayActors]:
    """Ray for a scope: connects as ``init_ray`` does where this process is not connected, and disconnects again."""
    was_connected = ray.is_initialized()
    init_ray(**options)
    try:
        yield RayActors()
    finally:
        if not was_connected:
            ray.shutdown()


class RayShell:
    """The shell as an actor of Ray: calls run one after the other, ``gld_control`` and ``gld_live`` beside them.

    Its own methods' names leave those of the workers' classes free, see ``shell_class``.
    """

    def __init__(self, setup: ShellSetup, name: str) -> None:
        self._name = name
        context = ray.get_runtime_context()
        node = context.get_node_id()
        self._shell = Shell(
            ShellSetup(setup.target, setup.args, setup.kwargs, setup.env, setup.memory_limit_bytes, node)
        )

    def gld_profile(self) -> ActorProfile:
        """Answers as soon as the object is constructed."""
        return self._shell.profile

    def gld_live(self) -> None:
        """Never returns: the call fails when the process ends, which is how the driver hears of it at once."""
        threading.Event().wait()

    def gld_call(self, gld_method: str, /, *args: Any, **kwargs: Any) -> Any:
        """See ``Shell.call``. Ray puts values in the place of references only where they are arguments themselves."""
        return self._shell.call(gld_method, args, kwargs)

    def gld_stream(self, gld_method: str, /, *args: Any, **kwargs: Any) -> Iterator[Any]:
        """See ``Shell.stream``."""
        yield from self._shell.stream(gld_method, args, kwargs)

    def gld_control(self, operation: str) -> Any:
        """See ``Shell.control``."""
        return self._shell.control(operation)

    def __repr__(self) -> str:
        return self._name  # stands before each line of its log


def shell_class(methods: Mapping[str, MethodProfile]) -> type[RayShell]:
    """The shell of a class with these methods, which whoever gets Ray's handle of a worker may call by their names."""
    members = {
        name: _forward(name, profile.streams)
        for name, profile in methods.items()
        if not name.startswith("_") and not hasattr(RayShell, name)
    }
    return type("WorkerShell", (RayShell,), members)


def _forward(name: str, streams: bool) -> Callable[..., Any]:
    def call(self: RayShell, *args: Any, **kwargs: Any) -> Any:
        return self.gld_call(name, *args, **kwargs)

    def stream(self: RayShell, *args: Any, **kwargs: Any) -> Iterator[Any]:
        yield from self.gld_stream(name, *args, **kwargs)

    return stream if streams else call


class RayActor(Actor):
    """A named actor of Ray."""

    def __init__(self, spec: ActorSpec, handle: Any) -> None:
        self.spec = spec
        self.handle = handle
        self._ready: concurrent.futures.Future[ActorProfile] = concurrent.futures.Future()
        self._ended: concurrent.futures.Future[None] = concurrent.futures.Future()
        self._lock = threading.Lock()  # between the profile and its deadline: one of them counts
        self._is_settled = False
        self._late: WorkerLateError | None = None
        self._deadline = threading.Timer(spec.start_timeout_s, self._give_up)
        self._deadline.daemon = True
        self._deadline.start()
        handle.gld_profile.remote().future().add_done_callback(self._on_profile)
        self._watch()

    def _settle(self) -> bool:
        """Whether the caller is the first one to say whether it was constructed."""
        with self._lock:
            was_settled, self._is_settled = self._is_settled, True
        return not was_settled

    def _on_profile(self, answer: concurrent.futures.Future[ActorProfile]) -> None:
        if not self._settle():
            return
        self._deadline.cancel()
        if error := answer.exception():
            self._ready.set_exception(error)
        else:
            self._ready.set_result(answer.result())

    def _give_up(self) -> None:
        """It is not constructed in time: ends it, and says so to who waits."""
        if not self._settle():
            return
        self._late = self.spec.late("unknown")
        try:
            self._late = self.spec.late(_node_of(self.spec))
            end(self)
        except Exception as error:  # whatever Ray raises where its head is gone: who waits is told all the same
            self._late.__cause__ = error
        self._ready.set_exception(self._late)

    def _watch(self) -> None:
        """Has ``ended`` fail when the process is gone; a connection that breaks is no end, and is made again."""
        self.handle.gld_live.options(concurrency_group="live").remote().future().add_done_callback(self._on_watched)

    def _on_watched(self, watched: concurrent.futures.Future[None]) -> None:
        error = watched.exception()
        if isinstance(error, ray.exceptions.ActorUnavailableError) and ray.is_initialized():
            # Ray has no event for the moment when it knows more: a lost machine takes seconds to be noticed.
            timer = threading.Timer(_LOOK_AGAIN_S, self._watch)
            timer.daemon = True
            timer.start()
        elif not self._ended.done():
            self._ended.set_exception(self._late or error)

    @property
    def ready(self) -> concurrent.futures.Future[ActorProfile]:
        return self._ready

    @property
    def ended(self) -> concurrent.futures.Future[None]:
        return self._ended

    def call(self, method: str, *args: Any, **kwargs: Any) -> Ref:
        return self.handle.gld_call.remote(method, *args, **kwargs)

    def stream(self, method: str, *args: Any, **kwargs: Any) -> Any:
        return self.handle.gld_stream.options(num_returns="streaming").remote(method, *args, **kwargs)

    def control(self, operation: str) -> Ref:
        return self.handle.gld_control.options(concurrency_group="control").remote(operation)


class RayWorkerHandle(GroupWorkerHandle, ActorHandle):  # type: ignore[misc]  # Ray's class is not known to mypy
    """A worker of Ray, for ``ray.kill`` too. What it is sent to gets Ray's own handle, which has the same methods."""

    _ray_weak_ref = True  # what it stands for is counted where that is held

    def _ray_handle(self) -> Any:
        actor = self.actor
        if not isinstance(actor, RayActor):
            raise InvalidArgumentError(f"actor: expected one of Ray, got {actor!r}")
        actor.ready.result()  # Ray's handle would wait without a deadline
        return actor.handle

    @property
    def _ray_actor_id(self) -> Any:
        return self._ray_handle()._ray_actor_id

    def _serialization_helper(self) -> Any:
        return self._ray_handle()._serialization_helper()

    def __reduce__(self) -> Any:
        return _same, (self._ray_handle(),)

    def __dir__(self) -> list[str]:
        return sorted(self.actor.ready.result().methods)


def _same(handle: Any) -> Any:
    return handle


class RayPromise(Promise):
    """A reference to what an actor will be told: Ray has none that could be resolved by hand."""

    def __init__(self, keeper: RayActor) -> None:
        self._keeper = keeper
        self.ref = keeper.call("wait_for_worker")

    def keep(self, worker: Actor) -> None:
        self._hand_over(RayWorkerHandle(lambda: worker), [])

    def fail(self, error: BaseException) -> None:
        cause = error.cause if isinstance(error, ray.exceptions.RayTaskError) else error
        self._hand_over(None, [dump_error(cause)[0]])  # in a list: Ray does not call a method with an error of its own

    def _hand_over(self, worker: RayWorkerHandle | None, errors: Sequence[BaseException]) -> None:
        self._keeper.call("hand_over", worker, errors)
        # The keeper is killed after that: with it a reference is lost that has not been answered.
        concurrent.futures.wait([self.ref.future()], _HAND_OVER_WAIT_S)


def end(actor: RayActor) -> None:
    """See ``ActorBackend.kill``."""
    if not ray.is_initialized():
        return
    ray.kill(actor.handle)
    if not concurrent.futures.wait([actor.ended], _KILL_WAIT_S).done:
        raise DeadlineExceededError(f"{actor.spec.name}: expected to end within {_KILL_WAIT_S:g} s of being killed")


class RayActors(ActorBackend):
    """Ray, which must be connected already; see ``init_ray``."""

    name = "ray"

    def address(self) -> str:
        """This process's machine, as the others of the cluster reach it."""
        return str(ray.util.get_node_ip_address())

    def __init__(self) -> None:
        if not ray.is_initialized():
            raise InvalidArgumentError("backend: expected a connection to Ray; call init_ray() or ray.init() first")
        self._shells: dict[tuple[tuple[str, bool], ...], Any] = {}  # by names of methods, and whether they stream
        self._find_port = ray.remote(num_cpus=0)(_find_port)

    def nodes(self) -> list[NodeResources]:
        found = []
        for node in ray.nodes():
            if node["Alive"]:
                resources = dict(node["Resources"])
                cpus, gpus = resources.pop("CPU", 0.0), resources.pop("GPU", 0.0)
                found.append(NodeResources(node["NodeID"], node["NodeManagerAddress"], cpus, gpus, resources))
        return found

    def reserve(self, requests: Sequence[ReservationRequest], timeout_s: float) -> list[Reservation]:
        with self._asked_for(requests) as held:
            if waiting := _wait_placed(held, timeout_s):
                raise DeadlineExceededError(
                    f"placement groups {waiting} were not placed within {timeout_s:g} s\n"
                    f"  asked for: {[one.bundle_specs for one in held]}\n  free: {ray.available_resources()}"
                )
            return [held.pop(0) for _ in requests]

    def wait_for_room(self, requests: Sequence[ReservationRequest], timeout_s: float) -> None:
        # Ray tells nobody that a machine has joined, but places what waits for one; and an autoscaler sees it wait.
        with self._asked_for(requests) as held:
            _wait_placed(held, timeout_s)

    @contextlib.contextmanager
    def _asked_for(self, requests: Sequence[ReservationRequest]) -> Iterator[list[Reservation]]:
        """What Ray was asked for; what is left in the list at the end is given back, however the block ends."""
        held: list[Reservation] = []
        try:
            for request in requests:
                held.append(Reservation(request, self, _ask_for(request)))
            yield held
        finally:
            for one in held:
                self.release(one)

    def adopt(self, native: PlacementGroup) -> Reservation:
        """A placement group that somebody else holds."""
        table = ray.util.placement_group_table(native)
        request = ReservationRequest(str(table["name"]), native.bundle_specs, str(table["strategy"]))
        return Reservation(request, self, native)

    def release(self, reservation: Reservation) -> None:
        if ray.is_initialized():
            remove_placement_group(reservation.native)

    def create(self, spec: ActorSpec) -> RayActor:
        setup = ShellSetup(spec.target, spec.args, spec.kwargs, spec.env, spec.memory_limit_bytes, "")
        options = {"num_cpus": 0, "max_concurrency": 1, **spec.options, "num_gpus": spec.num_gpus}
        if spec.memory_limit_bytes is not None and spec.reservation is None:
            options["memory"] = spec.memory_limit_bytes
        if spec.name:
            options["name"] = spec.name
        if spec.reservation is not None:
            options["scheduling_strategy"] = PlacementGroupSchedulingStrategy(
                spec.reservation.native, spec.bundle_index, placement_group_capture_child_tasks=True
            )
        elif spec.node_id is not None:
            options["scheduling_strategy"] = NodeAffinitySchedulingStrategy(spec.node_id, soft=False)
        shell = self._shell_of(spec.methods).options(**options)
        try:
            return RayActor(spec, shell.remote(setup, spec.name or "worker"))
        except _NAME_TAKEN as error:
            raise WorkerNameTakenError(f"name: expected one that no live worker has, got {spec.name!r}") from error

    def _shell_of(self, methods: Mapping[str, MethodProfile]) -> Any:
        """Ray sends each class that it is given to every worker: one for all workers of a kind, not one for each."""
        key = tuple((name, profile.streams) for name, profile in sorted(methods.items()))
        if key not in self._shells:
            self._shells[key] = ray.remote(concurrency_groups={"control": 1, "live": 1})(shell_class(methods))
        return self._shells[key]

    def create_when_free(self, spec: ActorSpec) -> RayActor:
        deadline = time.monotonic() + _NAME_TIMEOUT_S
        while True:
            try:
                return self.create(spec)
            except WorkerNameTakenError:
                if time.monotonic() > deadline:
                    raise
                # Ray frees the name of a dead actor a moment after it tells of the death, and tells nobody.
                time.sleep(_NAME_WAIT_S)

    def bundle_nodes(self, reservation: Reservation) -> list[str]:
        nodes = ray.util.placement_group_table(reservation.native)["bundles_to_node_id"]
        return [str(nodes[bundle]) for bundle in range(reservation.bundle_count)]

    def find_port(
        self,
        reservation: Reservation,
        bundle_index: int,
        low: int,
        high: int,
        given: Collection[tuple[str, int]] = (),
    ) -> Ref:
        strategy = PlacementGroupSchedulingStrategy(reservation.native, bundle_index)
        return self._find_port.options(scheduling_strategy=strategy).remote(low, high, list(given))

    def get(self, refs: Sequence[Ref], timeout_s: float | None = None) -> list[Any]:
        try:
            results: list[Any] = ray.get(list(refs), timeout=timeout_s)
        except ray.exceptions.GetTimeoutError as error:
            raise DeadlineExceededError(f"expected {len(refs)} results within {timeout_s} s") from error
        return results

    def kill(self, actor: Actor) -> None:
        if not isinstance(actor, RayActor):
            raise InvalidArgumentError(f"actor: expected one of Ray, got {actor!r}")
        end(actor)

    def handle(self, actor: Callable[[], Actor]) -> GroupWorkerHandle:
        return RayWorkerHandle(actor)

    def promise(self, keeper: Actor) -> Promise:
        if not isinstance(keeper, RayActor):
            raise InvalidArgumentError(f"keeper: expected an actor of Ray, got {keeper!r}")
        return RayPromise(keeper)

    def put(self, value: Any) -> Ref:
        return ray.put(value)

    def is_stream(self, value: Any) -> bool:
        return isinstance(value, ray.ObjectRefGenerator)

    def is_death(self, error: BaseException) -> bool:
        return isinstance(error, _DEATHS)

    def is_lost(self, error: BaseException) -> bool:
        return isinstance(error, (*_DEATHS, ray.exceptions.ActorUnavailableError))


def _ask_for(request: ReservationRequest) -> PlacementGroup:
    """A placement group that may not have its place yet.

    Raises:
        InvalidArgumentError: there is one of that name.
    """
    try:
        return placement_group(
            [dict(bundle) for bundle in request.bundles],
            strategy=request.strategy,
            name=request.name,
            # A wish: where that node is lost, Ray may place the bundles elsewhere.
            _soft_target_node_id=request.node_id if request.strategy == "STRICT_PACK" else None,
        )
    except ray.exceptions.RaySystemError as error:
        if "already exists" not in str(error):
            raise
        raise InvalidArgumentError(
            f"name: expected one that no placement group of this Ray has, got {request.name!r}"
        ) from error


def _wait_placed(held: Sequence[Reservation], timeout_s: float) -> list[str]:
    """Names of those that were not placed in time: an impossible placement group waits for ever, without an error."""
    deadline = time.monotonic() + timeout_s
    # Ray drops what is left of a second, and 0.99 of one would be no time at all.
    return [one.request.name for one in held if not one.native.wait(math.ceil(max(0.0, deadline - time.monotonic())))]


def _node_of(spec: ActorSpec) -> str:
    """The machine where an actor was to be constructed."""
    if spec.reservation is None or not ray.is_initialized():
        return spec.node_id or "unknown"
    nodes = ray.util.placement_group_table(spec.reservation.native)["bundles_to_node_id"]
    return str(nodes.get(spec.bundle_index) or "unknown")


def _find_port(low: int, high: int, given: Collection[tuple[str, int]]) -> NodePort:
    address = ray.util.get_node_ip_address()
    port = free_port("", low, high, ports_given(given, address))
    return NodePort(ray.get_runtime_context().get_node_id(), address, port)
