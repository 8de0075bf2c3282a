"""What a worker is made of: its class by name, its constructor's arguments, and the options of its process."""

from __future__ import annotations

import copy
import fnmatch
import inspect
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ...config import nsight_worker_patterns
from ...errors import DeadlineExceededError, InvalidArgumentError, UnknownIdError
from ..actors.base import (
    START_TIMEOUT_S,
    Actor,
    ActorBackend,
    ActorSpec,
    GroupWorkerHandle,
    MethodProfile,
    Ref,
    Reservation,
)
from ..actors.choose import reservation_of
from ..actors.shell import import_name, load_class, profile_methods

# Options of a decorator that say how its own actors are restarted or called; a group has its own ways for that.
_NOT_TAKEN_OVER = frozenset({"max_restarts", "max_task_retries", "concurrency_groups", "name", "get_if_exists"})


@dataclass(frozen=True)
class ConfigurationRequest:
    """What ``configure_worker`` is asked: the worker's share of a GPU, and its tied group's bundles or None."""

    num_gpus: float
    bundle_indices: tuple[int, list[int]] | None


@dataclass(frozen=True)
class WorkerConfiguration:
    """What ``configure_worker`` answered; None where it leaves the number of GPUs alone."""

    num_gpus: float | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    init_kwargs: Mapping[str, Any] = field(default_factory=dict)
    runtime_env: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class ClassDescription:
    """What has to be known of a worker's class before a worker is started."""

    options: Mapping[str, Any]
    configurations: Sequence[WorkerConfiguration]
    methods: Mapping[str, MethodProfile] = field(default_factory=dict)


def recursive_merge_options(default_options: Mapping[str, Any], extra_options: Mapping[str, Any]) -> dict[str, Any]:
    """``extra_options`` over ``default_options``, dictionary into dictionary, anything else replaced; both stay as are.

    ``_nsight`` of a runtime environment becomes ``nsight``, unless that is there.
    """
    merged = _merge(default_options, extra_options)
    runtime_env = merged.get("runtime_env")
    if isinstance(runtime_env, dict) and "_nsight" in runtime_env:
        value = runtime_env.pop("_nsight")
        runtime_env.setdefault("nsight", value)
    return merged


def get_nsight_config_if_pattern_matches(worker_name: str) -> dict[str, Any]:
    """A runtime environment in which NVIDIA's profiler records a worker between ``cudaProfilerStart`` and ``…Stop``.

    Args:
        worker_name: name of the kind of worker; the recording is named after it.

    Returns:
        ``{"nsight": options}`` where a pattern in ``GLD_NSYS_WORKER_PATTERNS`` matches the name, else an empty
        dictionary: made for ``ray.remote(runtime_env={**get_nsight_config_if_pattern_matches("sampler")})``. Only Ray
        knows how to start a worker under the profiler; ``nsys`` must be installed on its machines.
    """
    if not any(fnmatch.fnmatchcase(worker_name, pattern) for pattern in nsight_worker_patterns()):
        return {}
    options = {
        "t": "cuda,cudnn,cublas,nvtx",
        "o": f"'{worker_name}_%p'",
        "stop-on-exit": "true",
        "capture-range": "cudaProfilerApi",
        "capture-range-end": "stop",
    }
    return {"nsight": options}


def _merge(default: Mapping[str, Any], extra: Mapping[str, Any]) -> dict[str, Any]:
    merged = copy.deepcopy(dict(default))
    for key, value in extra.items():
        below = merged.get(key)
        merged[key] = (
            _merge(below, value) if isinstance(below, dict) and isinstance(value, dict) else copy.deepcopy(value)
        )
    return merged


def describe_class(
    target: str | type[Any], requests: Sequence[ConfigurationRequest], num_gpus_per_node: int
) -> ClassDescription:
    """Imports the class and asks its ``configure_worker``, where it has one.

    Raises:
        InvalidArgumentError: there is no such class, or ``configure_worker`` does not return what it should.
    """
    decorated = import_name(target) if isinstance(target, str) else target
    options = {
        k: v for k, v in (getattr(decorated, "_default_options", None) or {}).items() if k not in _NOT_TAKEN_OVER
    }
    cls = load_class(decorated)
    configure = getattr(cls, "configure_worker", None)
    configurations = [
        WorkerConfiguration() if configure is None else _configure(configure, request, num_gpus_per_node)
        for request in requests
    ]
    return ClassDescription(options, configurations, profile_methods(cls))


def describe_in(
    initializer: Actor,
    engine: ActorBackend,
    requests: Sequence[ConfigurationRequest],
    num_gpus_per_node: int,
    timeout_s: float,
) -> ClassDescription:
    """``describe_class`` in a process of the workers' kind.

    Raises:
        DeadlineExceededError: that took longer; the caller kills the process.
    """
    found: ClassDescription
    try:
        [found] = engine.get([initializer.call("describe", requests, num_gpus_per_node)], timeout_s)
    except DeadlineExceededError as error:
        [name] = initializer.spec.args
        raise DeadlineExceededError(
            f"{name}: expected it to be imported and configured within {timeout_s:g} s"
        ) from error
    return found


def _configure(
    configure: Callable[..., Any], request: ConfigurationRequest, num_gpus_per_node: int
) -> WorkerConfiguration:
    offered = {
        "num_gpus": request.num_gpus,
        "bundle_indices": request.bundle_indices,
        "num_gpus_per_node": num_gpus_per_node,
    }
    parameters = inspect.signature(configure).parameters.values()
    if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        wanted = {parameter.name for parameter in parameters}
        offered = {name: value for name, value in offered.items() if name in wanted}
    answer = configure(**offered)
    if not isinstance(answer, tuple) or len(answer) not in (3, 4):
        raise InvalidArgumentError(
            f"configure_worker: expected (resources, env_vars, init_kwargs) or a fourth, runtime_env, got {answer!r}"
        )
    resources, env, init_kwargs, *rest = (value or {} for value in answer)
    env = {name: str(value) for name, value in env.items()}
    return WorkerConfiguration(resources.get("num_gpus"), env, init_kwargs, rest[0] if rest else {})


class RayWorkerBuilder:
    """Remembers a worker's class by its dotted name; the class is imported in the workers only.

    Args:
        ray_actor_class_fqn: such as ``package.module.Class``; the class may be decorated with ``ray.remote``.
        *args: for its constructor.
        **kwargs: for its constructor.
    """

    class IsolatedWorkerInitializer:
        """Runs in a process with the workers' environment, and looks at their class there.

        The workers of a builder or a group are not its children: they live on when it ends. One that it creates itself
        is.
        """

        def __init__(self, ray_actor_class_fqn: str, *init_args: Any, **init_kwargs: Any) -> None:
            self.ray_actor_class_fqn = ray_actor_class_fqn
            self.init_args = init_args
            self.init_kwargs = init_kwargs
            self._outcome: queue.SimpleQueue[tuple[GroupWorkerHandle | None, Sequence[BaseException]]] = (
                queue.SimpleQueue()
            )

        def describe(self, requests: Sequence[ConfigurationRequest], num_gpus_per_node: int) -> ClassDescription:
            """See ``describe_class``."""
            return describe_class(self.ray_actor_class_fqn, requests, num_gpus_per_node)

        def create_worker(
            self,
            placement_group: Any,
            placement_group_bundle_index: int,
            num_gpus: float,
            bundle_indices: tuple[int, list[int]] | None = None,
            *,
            start_timeout_s: float = START_TIMEOUT_S,
            **extra_options: Any,
        ) -> GroupWorkerHandle:
            """Starts one worker as a child of this process, and waits for it; arguments as of ``RayWorkerBuilder``."""
            builder = RayWorkerBuilder(self.ray_actor_class_fqn, *self.init_args, **self.init_kwargs)
            start = _WorkerStart.parse(
                placement_group, placement_group_bundle_index, num_gpus, bundle_indices, start_timeout_s, extra_options
            )
            actor = start.run(builder, self.describe([start.request], 0))
            return start.reservation.engine.handle(lambda: actor)

        def hand_over(self, worker: GroupWorkerHandle | None, errors: Sequence[BaseException]) -> None:
            """Tells who waits for a worker what has become of it: it is there, or one error says why not."""
            self._outcome.put((worker, errors))

        def wait_for_worker(self) -> GroupWorkerHandle | None:
            """The worker that is handed over; raises the error that is."""
            worker, errors = self._outcome.get()
            for error in errors:
                raise error
            return worker

    def __init__(self, ray_actor_class_fqn: str, *args: Any, **kwargs: Any) -> None:
        self.ray_actor_class_fqn = ray_actor_class_fqn
        self.args = args
        self.kwargs = kwargs

    def start_initializer(self, reservation: Reservation, options: Mapping[str, Any], env: Mapping[str, str]) -> Actor:
        """A process that describes the class; the caller kills it."""
        spec = ActorSpec(
            "",
            self.IsolatedWorkerInitializer,
            (self.ray_actor_class_fqn,),
            reservation=reservation,
            options={**options, "max_concurrency": 3},  # it describes, is waited for, and is told
            env=env,
        )
        return reservation.engine.create(spec)

    def create_worker_async(
        self,
        placement_group: Any,
        placement_group_bundle_index: int,
        num_gpus: float,
        bundle_indices: tuple[int, list[int]] | None = None,
        *,
        start_timeout_s: float = START_TIMEOUT_S,
        **extra_options: Any,
    ) -> tuple[Ref, GroupWorkerHandle]:
        """Starts one worker in a bundle.

        Args:
            placement_group: Ray's, or one of ``RayVirtualCluster.get_placement_groups``.
            placement_group_bundle_index: which bundle of it.
            num_gpus: GPUs, unless ``configure_worker`` says otherwise.
            bundle_indices: handed to ``configure_worker``.
            start_timeout_s: for the initializer, and then for the worker's constructor. Who takes longer is killed, and
                the reference raises ``DeadlineExceededError``, of a worker ``WorkerLateError``.
            **extra_options: of Ray, over those of the class's decorator.

        Returns:
            A reference to the worker's handle, on Ray to Ray's own, and the initializer, which ends by itself.

        Raises:
            InvalidArgumentError: it is no placement group.
            UnknownIdError: it has no such bundle (an ``IndexError``).
        """
        start = _WorkerStart.parse(
            placement_group, placement_group_bundle_index, num_gpus, bundle_indices, start_timeout_s, extra_options
        )
        engine = start.reservation.engine
        initializer = self.start_initializer(start.reservation, start.options, start.env)
        promise = engine.promise(initializer)

        def create() -> None:
            try:
                worker = start.run(self, start.describe(initializer))
            except BaseException as error:  # the caller waits for the reference, and nobody for this thread
                promise.fail(error)
            else:
                promise.keep(worker)
            finally:
                engine.kill(initializer)

        threading.Thread(target=create, name=f"create {self.ray_actor_class_fqn}", daemon=True).start()
        return promise.ref, engine.handle(lambda: initializer)

    def __call__(
        self,
        placement_group: Any,
        placement_group_bundle_index: int,
        num_gpus: float,
        bundle_indices: tuple[int, list[int]] | None = None,
        *,
        start_timeout_s: float = START_TIMEOUT_S,
        **extra_options: Any,
    ) -> GroupWorkerHandle:
        """The same, and waits for the worker; raises what the reference does."""
        start = _WorkerStart.parse(
            placement_group, placement_group_bundle_index, num_gpus, bundle_indices, start_timeout_s, extra_options
        )
        engine = start.reservation.engine
        initializer = self.start_initializer(start.reservation, start.options, start.env)
        try:
            actor = start.run(self, start.describe(initializer))
        finally:
            engine.kill(initializer)
        return engine.handle(lambda: actor)


@dataclass(frozen=True)
class _WorkerStart:
    """Where and how one worker is started.

    Attributes:
        reservation: where.
        bundle_index: in which bundle of it.
        request: what ``configure_worker`` is asked.
        timeout_s: for the initializer, and for the worker's constructor.
        name: of the worker, or empty.
        options: Ray's, without variables.
        env: variables of the initializer and the worker.
    """

    reservation: Reservation
    bundle_index: int
    request: ConfigurationRequest
    timeout_s: float
    name: str
    options: Mapping[str, Any]
    env: Mapping[str, str]

    @classmethod
    def parse(
        cls,
        placement_group: Any,
        bundle_index: int,
        num_gpus: float,
        bundle_indices: tuple[int, list[int]] | None,
        timeout_s: float,
        extra_options: Mapping[str, Any],
    ) -> _WorkerStart:
        """From the arguments of ``RayWorkerBuilder``; raises as ``create_worker_async``."""
        reservation = reservation_of(placement_group)
        if not 0 <= bundle_index < reservation.bundle_count:
            raise UnknownIdError(
                f"placement_group_bundle_index: expected 0 to {reservation.bundle_count - 1}, got {bundle_index}"
            )
        options = _without_env(extra_options)
        name = options.pop("name", "")
        env = dict(extra_options.get("runtime_env", {}).get("env_vars", {}))
        request = ConfigurationRequest(num_gpus, bundle_indices)
        return cls(reservation, bundle_index, request, timeout_s, name, options, env)

    def describe(self, initializer: Actor) -> ClassDescription:
        """See ``describe_in``."""
        return describe_in(initializer, self.reservation.engine, [self.request], 0, self.timeout_s)

    def run(self, builder: RayWorkerBuilder, found: ClassDescription) -> Actor:
        """Starts the worker and waits for it."""
        spec = make_spec(
            builder,
            found,
            found.configurations[0],
            num_gpus=self.request.num_gpus,
            env=self.env,
            options=self.options,
        )
        actor = self.reservation.engine.create(
            replace(
                spec,
                name=self.name,
                reservation=self.reservation,
                bundle_index=self.bundle_index,
                start_timeout_s=self.timeout_s,
            )
        )
        actor.ready.result()  # which has the deadline
        return actor


def make_spec(
    builder: RayWorkerBuilder | ClassTarget,
    description: ClassDescription,
    configuration: WorkerConfiguration,
    *,
    num_gpus: float,
    env: Mapping[str, str],
    options: Mapping[str, Any],
) -> ActorSpec:
    """A worker's process, by ascending precedence: the decorator, ``options`` and ``env``, ``configure_worker``."""
    merged = recursive_merge_options(description.options, options)
    merged = recursive_merge_options(merged, {"runtime_env": dict(configuration.runtime_env)})
    decorator_env = description.options.get("runtime_env", {}).get("env_vars", {})
    merged.pop("num_gpus", None)
    merged.pop("scheduling_strategy", None)
    return ActorSpec(
        name="",
        target=builder.ray_actor_class_fqn if isinstance(builder, RayWorkerBuilder) else builder.cls,
        args=builder.args,
        kwargs={**builder.kwargs, **configuration.init_kwargs},
        num_gpus=num_gpus if configuration.num_gpus is None else configuration.num_gpus,
        env={**decorator_env, **env, **configuration.env},
        options=_without_env(merged),
        methods=description.methods,
    )


@dataclass(frozen=True)
class ClassTarget:
    """A worker's class itself, with its constructor's arguments."""

    cls: type[Any]
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)


def _without_env(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options without variables: they are set in the process, which saves Ray the start of a fresh one."""
    kept = dict(options)
    runtime_env = {key: value for key, value in kept.pop("runtime_env", {}).items() if key != "env_vars"}
    return {**kept, "runtime_env": runtime_env} if runtime_env else kept


__all__ = [
    "GroupWorkerHandle",
    "RayWorkerBuilder",
    "get_nsight_config_if_pattern_matches",
    "recursive_merge_options",
]
