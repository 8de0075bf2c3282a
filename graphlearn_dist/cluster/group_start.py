"""From what a user asks of a group to the processes that are started for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..config import CommunicationSettings
from ..errors import InvalidArgumentError
from .actors.base import ActorSpec, Reservation
from .group_settings import GroupSettings
from .worker_builder import (
    ClassDescription,
    ClassTarget,
    ConfigurationRequest,
    RayWorkerBuilder,
    describe_class,
    make_spec,
)
from .worker_layout import WorkerMetadata, forwarded_environ, rank_environs

if TYPE_CHECKING:
    from .virtual_cluster import RayVirtualCluster


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


def plan_processes(
    cluster: RayVirtualCluster,
    source: RayWorkerBuilder | ClassTarget,
    workers: Sequence[WorkerMetadata],
    env_vars: Mapping[str, str],
    settings: GroupSettings,
) -> tuple[list[ActorSpec], tuple[str, int]]:
    """The process of each worker, by rank, and the address of rank 0."""
    reservations = cluster.get_placement_groups()
    base = {**forwarded_environ(), **{name: str(value) for name, value in env_vars.items()}}
    description = _describe(cluster, source, workers, base, reservations[0], settings.start_timeout_s)
    ports = cluster.find_ports([(worker["node_idx"], worker["bundle_idx"]) for worker in workers])
    master = cluster.find_ports([(workers[0]["node_idx"], workers[0]["bundle_idx"])])[0]
    address = (master.address, master.port)
    compression = settings.gradient_compression if settings.enable_gradient_compression else None
    base |= CommunicationSettings(cluster.communication_backend, compression).to_environ()
    specs = []
    for worker, ranks, configuration in zip(
        workers, rank_environs(workers, ports, address), description.configurations, strict=True
    ):
        gpu = cluster.gpu_of(worker["node_idx"], worker["bundle_idx"])
        gpus = {} if gpu is None else {"CUDA_VISIBLE_DEVICES": str(gpu)}
        env = {**base, **gpus, **ranks}
        spec = make_spec(
            source, description, configuration, num_gpus=cluster.shape.gpus_per_worker, env=env, options={}
        )
        specs.append(
            replace(
                spec,
                name=worker["name"],
                reservation=reservations[worker["node_idx"]],
                bundle_index=worker["bundle_idx"],
                memory_limit_bytes=settings.memory_limit_bytes,
            )
        )
    return specs, address


def _describe(
    cluster: RayVirtualCluster,
    source: RayWorkerBuilder | ClassTarget,
    workers: Sequence[WorkerMetadata],
    env: Mapping[str, str],
    reservation: Reservation,
    timeout_s: float,
) -> ClassDescription:
    """Looks at the class: here where it is here, else in a process of the workers' kind."""
    requests = [ConfigurationRequest(cluster.shape.gpus_per_worker, worker["bundle_indices"]) for worker in workers]
    if isinstance(source, ClassTarget):
        return describe_class(source.cls, requests, cluster.num_gpus_per_node)
    engine = cluster.backend
    initializer = source.start_initializer(reservation, {}, env)
    try:
        found: ClassDescription
        [found] = engine.get([initializer.call("describe", requests, cluster.num_gpus_per_node)], timeout_s)
    finally:
        engine.kill(initializer)
    return found
