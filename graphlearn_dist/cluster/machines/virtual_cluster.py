"""Bundles of processors and GPUs on the machines of a cluster, held for groups of workers."""

from __future__ import annotations

import secrets
import threading
import weakref
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Protocol

from ...config import virtual_cluster_max_retries
from ...errors import InvalidArgumentError, ResourceInsufficientError, UnknownIdError
from ...utils.system.lifetime import Home
from ..actors.base import ActorBackend, GroupWorkerHandle, NodePort, Reservation, ResourceUsage
from ..actors.choose import choose_backend, require_ray
from .bundle_placement import ClusterShape, GpuIds, bundles_by_machine, gpu_of_unified, parse_gpu_ids, place
from .ray_actor_environment_registry import PY_EXECUTABLES

_PORT_TIMEOUT_S = 60.0
COMMUNICATION_BACKENDS = ("gloo", "nccl")


class AttachedGroup(Protocol):
    """A group of workers, as the cluster sees it that it runs on."""

    name_prefix: str

    @property
    def workers(self) -> Sequence[GroupWorkerHandle]:
        """Empty once it was shut down."""

    def get_resource_usage(self, timeout_s: float = ...) -> dict[int, ResourceUsage]:
        """What each process uses, by rank."""

    def shutdown(self, *, force: bool) -> bool:
        """Ends all of them."""


class RayVirtualCluster:
    """Virtual nodes with bundles, one placement group for each, on Ray or on local processes.

    Nothing is reserved before something is asked for. A context manager; what is held is also given back when the last
    reference to the cluster goes.

    Args:
        bundle_ct_per_node_list: bundles on each node; all bundles of a node lie on one machine, different nodes on
            different machines as far as there are enough.
        use_gpus: whether each bundle has a GPU.
        max_colocated_worker_groups: worker groups that may share the bundles at the same time.
        num_gpus_per_node: GPUs of a machine, told to ``configure_worker``.
        name: prefix of the placement groups' names, which no other ones of this Ray may have; empty for a unique one.
        placement_group_strategy: Ray's strategy of a unified placement group.
        port_range_low: lowest port to be given out; with ``port_range_high``.
        port_range_high: highest port to be given out, inclusive; None for any free port.
        node_resource_constraints: further resources of each bundle, for all nodes or a mapping for each.
        unified: one placement group over all nodes.
        enable_colocation: two groups may share the bundles, unless ``max_colocated_worker_groups`` says more.
        gpu_ids: ``"auto"``, or GPUs to use, for every node or by node.
        communication_backend: default of ``init_process_group`` in the workers; None chooses by ``use_gpus``.
        monitor_memory: groups watch their workers' memory and warn at 90 % of the limit or of the machine.
        backend: ``"auto"``, ``"local"`` or ``"ray"``.
        max_retries: how often to wait, for 1, 2, 4 … s at the most, for a cluster that is still growing; None for
            ``GLD_VIRTUAL_CLUSTER_MAX_RETRIES``, or 6.
        ready_timeout_s: for the placement groups, once there is enough.

    Raises:
        InvalidArgumentError: an argument is wrong.
        ImportError: Ray is asked for and not installed.
    """

    def __init__(
        self,
        bundle_ct_per_node_list: Sequence[int],
        use_gpus: bool = True,
        max_colocated_worker_groups: int = 1,
        num_gpus_per_node: int = 8,
        name: str = "",
        placement_group_strategy: str = "SPREAD",
        port_range_low: int | None = None,
        port_range_high: int | None = None,
        node_resource_constraints: Mapping[str, float] | Sequence[Mapping[str, float]] | None = None,
        *,
        unified: bool = False,
        enable_colocation: bool = False,
        gpu_ids: GpuIds = "auto",
        communication_backend: str | None = None,
        monitor_memory: bool = False,
        backend: str | ActorBackend = "auto",
        max_retries: int | None = None,
        ready_timeout_s: float = 180.0,
    ) -> None:
        self.shape = ClusterShape(
            bundle_ct_per_node_list,
            use_gpus,
            max(2, max_colocated_worker_groups) if enable_colocation else max_colocated_worker_groups,
            name or f"cluster-{secrets.token_hex(4)}",
            placement_group_strategy,
            unified,
            node_resource_constraints or {},
        )
        self.num_gpus_per_node = num_gpus_per_node
        self.monitor_memory = monitor_memory
        self.communication_backend = _check_communication(communication_backend, use_gpus)
        self._gpu_ids = parse_gpu_ids(gpu_ids, self.shape.bundle_counts)
        self._ports = _check_ports(port_range_low, port_range_high)
        if max_retries is not None and max_retries < 0:
            raise InvalidArgumentError(f"max_retries: expected at least 0, got {max_retries}")
        self._max_retries = virtual_cluster_max_retries() if max_retries is None else max_retries
        self._ready_timeout_s = ready_timeout_s
        self.backend = choose_backend(backend) if isinstance(backend, str) else backend
        self._given: set[tuple[str, int]] = set()
        self._ports_lock = threading.Lock()  # of the line above: two groups may start at the same time
        self._groups: weakref.WeakSet[AttachedGroup] = weakref.WeakSet()
        self._reserved: list[Reservation] = []
        self._is_shut_down = False
        self._home = Home("the cluster")
        self._finalizer = weakref.finalize(self, _release, self._home, self.backend, self._reserved)

    # --- what it consists of ------------------------------------------------------------------------------------

    def world_size(self) -> int:
        """Number of bundles."""
        return sum(self.shape.bundle_counts)

    def node_count(self) -> int:
        """Number of nodes that have bundles."""
        return sum(count > 0 for count in self.shape.bundle_counts)

    def get_placement_groups(self) -> list[Any]:
        """What is held, one for each node that has bundles (or one in all), reserved at the first call.

        On Ray its placement groups themselves, on local processes a ``Reservation`` each; both have ``bundle_specs``
        and ``bundle_count``.

        Raises:
            ResourceInsufficientError: as of ``reservations``.
            DeadlineExceededError: likewise.
        """
        return [held if held.native is None else held.native for held in self.reservations()]

    def reservations(self) -> list[Reservation]:
        """The same, as the engine's own records.

        Raises:
            ResourceInsufficientError: the cluster has too little, also after all retries; the message lists what was
                asked for and what is there.
            DeadlineExceededError: it has enough, but not free within ``ready_timeout_s`` (a ``TimeoutError``).
        """
        self._home.check_own()
        if self._is_shut_down:
            raise InvalidArgumentError("cluster: expected one that is not shut down")
        if not self._reserved:
            self._reserved.extend(self._reserve())
        return list(self._reserved)

    def _reserve(self) -> list[Reservation]:
        requests = self.shape.requests()
        for attempt in range(self._max_retries):
            try:
                return self.backend.reserve(place(requests, self.backend.nodes()), self._ready_timeout_s)
            except ResourceInsufficientError:
                self.backend.wait_for_room(requests, 2.0**attempt)
        return self.backend.reserve(place(requests, self.backend.nodes()), self._ready_timeout_s)

    def gpu_of(self, group_index: int, bundle_index: int) -> int | None:
        """The physical GPU of a bundle, where ``gpu_ids`` names it or local processes share this machine's."""
        if not self.shape.use_gpus:
            return None
        counts = [count for count in self.shape.bundle_counts if count]
        flat_index = bundle_index + (0 if self.shape.unified else sum(counts[:group_index]))
        if self._gpu_ids is None:
            return flat_index if self.backend.name == "local" else None
        if self.shape.unified:
            return gpu_of_unified(self._gpu_ids, self.backend.bundle_nodes(self.reservations()[0]), bundle_index)
        ids = [gpu for own, count in zip(self._gpu_ids, self.shape.bundle_counts, strict=True) for gpu in own[:count]]
        return ids[flat_index]

    def bundles_in_order(self) -> list[list[int]]:
        """The bundles of each placement group, in the order of the ranks: machine by machine.

        Within one machine, and where a placement group has but one, by their index.
        """
        held = self.reservations()
        if not self.shape.unified:
            return [list(range(one.bundle_count)) for one in held]
        return [bundles_by_machine(self.backend.bundle_nodes(one)) for one in held]

    # --- addresses ----------------------------------------------------------------------------------------------

    def find_ports(self, pairs: Sequence[tuple[int, int]], batch_size: int = 256) -> list[NodePort]:
        """A free port on the machine of each (placement group, bundle), in this order, none ever given before.

        Raises:
            UnknownIdError: there is no such placement group or bundle (an ``IndexError``).
            ResourceInsufficientError: no port is left that is free and was not given before.
        """
        if batch_size < 1:
            raise InvalidArgumentError(f"batch_size: expected at least 1, got {batch_size}")
        groups = self.reservations()
        for pair in pairs:
            _check_bundle(groups, *pair)
        with self._ports_lock:
            given = set(self._given)
            found = [
                one
                for start in range(0, len(pairs), batch_size)
                for one in self._find_different(groups, pairs[start : start + batch_size], given)
            ]
            self._given = given  # all of them, or none: where some have no port, the caller gets no port at all
        return found

    def _find_different(
        self, groups: Sequence[Reservation], pairs: Sequence[tuple[int, int]], given: set[tuple[str, int]]
    ) -> list[NodePort]:
        """A port for each pair, added to those given; a machine that is asked twice at a time may tell one twice."""
        found: dict[int, NodePort] = {}
        while left := [number for number in range(len(pairs)) if number not in found]:
            refs = [
                self.backend.find_port(groups[group], bundle, *self._ports, given)
                for group, bundle in (pairs[number] for number in left)
            ]
            for number, answer in zip(left, self.backend.get(refs, _PORT_TIMEOUT_S), strict=True):
                if (answer.address, answer.port) not in given:
                    given.add((answer.address, answer.port))
                    found[number] = answer
        return [found[number] for number in range(len(pairs))]

    def get_available_address_and_port(self, pg_idx: int, bundle_idx: int) -> tuple[str, int]:
        """Address of the machine of a bundle and a free port there; raises what ``find_ports`` does."""
        [found] = self.find_ports([(pg_idx, bundle_idx)])
        return found.address, found.port

    def get_available_addresses_and_ports_batch(
        self, pairs: Sequence[tuple[int, int]], batch_size: int = 256
    ) -> list[tuple[str, int]]:
        """The same for many bundles, in the order of the pairs."""
        return [(found.address, found.port) for found in self.find_ports(pairs, batch_size)]

    def get_master_address_and_port(self) -> tuple[str, int]:
        """Where rank 0 may listen: the first bundle's machine, with a port not given before."""
        return self.get_available_address_and_port(0, 0)

    # --- groups on it -------------------------------------------------------------------------------------------

    def attach(self, group: AttachedGroup) -> None:
        """Counts a group that is to run here.

        Raises:
            ResourceInsufficientError: as many as may share the bundles run already.
        """
        running = [other.name_prefix for other in self._groups if other.workers]
        if len(running) >= self.shape.max_colocated_worker_groups:
            raise ResourceInsufficientError(
                f"max_colocated_worker_groups: expected room for another group, got "
                f"{self.shape.max_colocated_worker_groups}, and {running} run"
            )
        self._groups.add(group)

    def memory_usage(self, timeout_s: float = 10.0) -> dict[str, dict[int, int]]:
        """Memory that only each worker has, in bytes: by group's name prefix and rank."""
        return {
            group.name_prefix: {rank: usage.uss_bytes for rank, usage in group.get_resource_usage(timeout_s).items()}
            for group in self._groups
            if group.workers
        }

    def shutdown(self) -> bool:
        """Ends every worker on it and gives the bundles back. Idempotent; without effect in a fork."""
        if not self._home.is_own:
            return True
        for group in list(self._groups):
            group.shutdown(force=True)
        self._is_shut_down = True
        self._finalizer()
        return True

    def __enter__(self) -> RayVirtualCluster:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.shutdown()


VirtualCluster = RayVirtualCluster


def init_ray(log_dir: str | None = None, *, address: str | None = None, **options: Any) -> None:
    """Connects this process to Ray, see ``actors.ray_engine.init_ray``.

    Raises:
        ImportError: Ray is not installed.
    """
    require_ray()
    from ..actors.ray_engine import init_ray as connect

    connect(log_dir, address=address, **options)


def _release(home: Home, backend: ActorBackend, reserved: list[Reservation]) -> None:
    if not home.is_own:
        return
    while reserved:
        backend.release(reserved.pop())


def _check_bundle(groups: Sequence[Reservation], group: int, bundle: int) -> None:
    if not 0 <= group < len(groups):
        raise UnknownIdError(f"pg_idx: expected 0 to {len(groups) - 1}, got {group}")
    if not 0 <= bundle < groups[group].bundle_count:
        raise UnknownIdError(
            f"bundle_idx: expected 0 to {groups[group].bundle_count - 1} in placement group {group}, got {bundle}"
        )


def _check_communication(name: str | None, use_gpus: bool) -> str:
    if name is None:
        return "nccl" if use_gpus else "gloo"
    if name not in COMMUNICATION_BACKENDS:
        raise InvalidArgumentError(f"communication_backend: expected one of {COMMUNICATION_BACKENDS}, got {name!r}")
    if name == "nccl" and not use_gpus:
        raise InvalidArgumentError("communication_backend: expected gloo for workers without GPUs, got 'nccl'")
    return name


def _check_ports(low: int | None, high: int | None) -> tuple[int, int]:
    if low is None and high is None:
        return 0, 0
    if low is None or high is None or not 0 < low <= high <= 65535:
        raise InvalidArgumentError(f"port_range_low, port_range_high: expected 0 < low <= high, got {low} and {high}")
    return low, high


__all__ = [
    "PY_EXECUTABLES",
    "RayVirtualCluster",
    "ResourceInsufficientError",
    "VirtualCluster",
    "init_ray",
]
