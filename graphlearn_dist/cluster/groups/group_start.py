"""From what a user asks of a group to the processes that are started for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ...config import CommunicationSettings
from ...errors import InvalidArgumentError
from ..actors.base import ActorSpec, Reservation
from ..actors.environ import forwarded_environ
from ..actors.shell import load_class
from ..machines.ray_actor_environment_registry import make_actor_runtime_env
from .group_settings import GroupSettings
from .worker_builder import (
    ClassDescription,
    ClassTarget,
    ConfigurationRequest,
    RayWorkerBuilder,
    describe_class,
    describe_in,
    make_spec,
)
from .worker_layout import WorkerMetadata, rank_environs

if TYPE_CHECKING:
    from ..machines.virtual_cluster import RayVirtualCluster


def worker_source(
    worker: RayWorkerBuilder | type[Any] | str | None, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> RayWorkerBuilder | ClassTarget:
    """What the workers are made of.

    Raises:
        InvalidArgumentError: it is neither a builder nor a class nor a dotted name, or a builder with arguments.
    """
    if isinstance(worker, RayWorkerBuilder):
        if args or kwargs:
            raise InvalidArgumentError("worker_args, worker_kwargs: expected none, the builder has its own")
        return worker
    if isinstance(worker, str):
        return RayWorkerBuilder(worker, *args, **kwargs)
    if isinstance(worker, type) or hasattr(worker, "__ray_metadata__"):
        return ClassTarget(worker, args, kwargs)  # type: ignore[arg-type]  # Ray's wrapping of a class is no type
    raise InvalidArgumentError(f"worker_class: expected a RayWorkerBuilder, a class or its dotted name, got {worker!r}")


def source_name(source: RayWorkerBuilder | ClassTarget) -> str:
    """What the workers' class is called, without its module."""
    if isinstance(source, RayWorkerBuilder):
        return source.ray_actor_class_fqn.rpartition(".")[2]
    return load_class(source.cls).__name__


def plan_processes(
    cluster: RayVirtualCluster,
    source: RayWorkerBuilder | ClassTarget,
    workers: Sequence[WorkerMetadata],
    env_vars: Mapping[str, str],
    settings: GroupSettings,
) -> tuple[list[ActorSpec], tuple[str, int]]:
    """The process of each worker, by rank, and the address of rank 0."""
    reservations = cluster.reservations()
    runtime_env: dict[str, Any] = {}
    if isinstance(source, RayWorkerBuilder):
        runtime_env = make_actor_runtime_env(source.ray_actor_class_fqn, cluster.backend)
    given = {name: str(value) for name, value in env_vars.items()}
    base = {**forwarded_environ(), **runtime_env.pop("env_vars", {}), **given}
    options = {"runtime_env": runtime_env} if runtime_env else {}
    start = InitializerStart(reservations[0], options, base, settings.start_timeout_s)
    description = _describe(cluster, source, workers, start)
    ports = cluster.find_ports([(worker["node_idx"], worker["bundle_idx"]) for worker in workers])
    master = cluster.find_ports([(workers[0]["node_idx"], workers[0]["bundle_idx"])])[0]
    address = (master.address, master.port)
    compression = settings.gradient_compression if settings.enable_gradient_compression else None
    base |= CommunicationSettings(cluster.communication_backend, compression).to_environ()
    environs = rank_environs(workers, ports, address, unified=cluster.shape.unified)
    specs = []
    for worker, ranks, configuration in zip(workers, environs, description.configurations, strict=True):
        gpu = cluster.gpu_of(worker["node_idx"], worker["bundle_idx"])
        gpus = {} if gpu is None else {"CUDA_VISIBLE_DEVICES": str(gpu)}
        env = {**base, **gpus, **ranks}
        spec = make_spec(
            source, description, configuration, num_gpus=cluster.shape.gpus_per_worker, env=env, options=options
        )
        specs.append(
            replace(
                spec,
                name=worker["name"],
                reservation=reservations[worker["node_idx"]],
                bundle_index=worker["bundle_idx"],
                memory_limit_bytes=settings.memory_limit_bytes,
                start_timeout_s=settings.start_timeout_s,
            )
        )
    return specs, address


@dataclass(frozen=True)
class InitializerStart:
    """Where and how a class is looked at in a process of its own."""

    reservation: Reservation
    options: Mapping[str, Any]
    env: Mapping[str, str]
    timeout_s: float


def _describe(
    cluster: RayVirtualCluster,
    source: RayWorkerBuilder | ClassTarget,
    workers: Sequence[WorkerMetadata],
    start: InitializerStart,
) -> ClassDescription:
    """Looks at the class: here where it is here, else in a process of the workers' kind."""
    requests = [ConfigurationRequest(cluster.shape.gpus_per_worker, worker["bundle_indices"]) for worker in workers]
    if isinstance(source, ClassTarget):
        return describe_class(source.cls, requests, cluster.num_gpus_per_node)
    initializer = source.start_initializer(start.reservation, start.options, start.env)
    try:
        return describe_in(initializer, cluster.backend, requests, cluster.num_gpus_per_node, start.timeout_s)
    finally:
        cluster.backend.kill(initializer)
