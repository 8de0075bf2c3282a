"""What a virtual cluster asks for, and where that can go: plain values, nothing runs here."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...errors import InvalidArgumentError, ResourceInsufficientError
from ..actors.base import NodeResources, ReservationRequest

STRATEGIES = ("PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD")
GpuIds = str | Sequence[int] | Sequence[Sequence[int]]


@dataclass(frozen=True)
class ClusterShape:
    """Bundles by node.

    Attributes:
        bundle_counts: bundles on each node; a node with none takes no part.
        use_gpus: whether each bundle has a GPU.
        max_colocated_worker_groups: groups that may share the bundles; each bundle has as many processors.
        name: of the cluster; its placement groups are called after it.
        strategy: how a unified placement group is spread.
        unified: one placement group over all nodes instead of one on each.
        constraints: further resources of each bundle: the same for all nodes, or one mapping for each.
    """

    bundle_counts: Sequence[int]
    use_gpus: bool = True
    max_colocated_worker_groups: int = 1
    name: str = ""
    strategy: str = "SPREAD"
    unified: bool = False
    constraints: Mapping[str, float] | Sequence[Mapping[str, float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "bundle_counts", _whole_numbers(self.bundle_counts))
        if not self.bundle_counts or min(self.bundle_counts) < 0 or not sum(self.bundle_counts):
            raise InvalidArgumentError(
                f"bundle_ct_per_node_list: expected counts of at least 0, one of them positive, got "
                f"{list(self.bundle_counts)}"
            )
        if self.max_colocated_worker_groups < 1:
            raise InvalidArgumentError(
                f"max_colocated_worker_groups: expected at least 1, got {self.max_colocated_worker_groups}"
            )
        if self.strategy not in STRATEGIES:
            raise InvalidArgumentError(f"placement_group_strategy: expected one of {STRATEGIES}, got {self.strategy!r}")
        if not isinstance(self.constraints, Mapping) and len(self.constraints) != len(self.bundle_counts):
            raise InvalidArgumentError(
                f"node_resource_constraints: expected a mapping or {len(self.bundle_counts)} of them, "
                f"got {len(self.constraints)}"
            )

    @property
    def gpus_per_worker(self) -> float:
        """Share of a GPU that a worker of one group gets."""
        return 1 / self.max_colocated_worker_groups if self.use_gpus else 0.0

    def bundle(self, node: int) -> dict[str, float]:
        """One bundle of a node, under Ray's resource names."""
        extra = self.constraints if isinstance(self.constraints, Mapping) else self.constraints[node]
        gpus = {"GPU": 1.0} if self.use_gpus else {}
        return {"CPU": float(self.max_colocated_worker_groups), **gpus, **extra}

    def requests(self) -> list[ReservationRequest]:
        """One request for each node that has bundles, all of it on one machine; or one for all of them."""
        bundles = [[self.bundle(node)] * count for node, count in enumerate(self.bundle_counts)]
        if self.unified:
            flat = [bundle for own in bundles for bundle in own]
            return [ReservationRequest(f"{self.name}-unified", flat, self.strategy)]
        return [
            ReservationRequest(f"{self.name}-node{node}", own, "STRICT_PACK") for node, own in enumerate(bundles) if own
        ]


def place(requests: Sequence[ReservationRequest], nodes: Sequence[NodeResources]) -> list[ReservationRequest]:
    """The requests with a machine for each that must be on one: different machines as far as there are enough.

    Counts what the machines have in all, not what is free now.

    Raises:
        ResourceInsufficientError: they do not fit; lists what was asked for and what is there.
    """
    left = {node.node_id: node.as_bundle() for node in nodes}
    taken: set[str] = set()
    placed: dict[int, ReservationRequest] = {}
    # The largest first, and each where it leaves most: the classic order for bins that must not be split.
    for index in sorted(range(len(requests)), key=lambda i: -len(requests[i].bundles)):
        request = requests[index]
        if request.strategy != "STRICT_PACK":
            placed[index] = request
            continue
        need = _sum(request.bundles)
        fitting = [node for node, has in left.items() if _fits(need, has)]
        if not fitting:
            raise ResourceInsufficientError(_shortage(request, requests, nodes))
        best = max(fitting, key=lambda node: (node not in taken, left[node]["CPU"]))
        taken.add(best)
        left[best] = {name: amount - need.get(name, 0.0) for name, amount in left[best].items()}
        placed[index] = ReservationRequest(request.name, request.bundles, request.strategy, best)
    spread = [request for request in requests if request.strategy != "STRICT_PACK"]
    for request in spread:
        if not _fits(_sum(request.bundles), _sum(list(left.values()))):
            raise ResourceInsufficientError(_shortage(request, requests, nodes))
    return [placed[index] for index in range(len(requests))]


def bundles_by_machine(machines: Sequence[str]) -> list[int]:
    """Bundles ordered by machine, and by index on each; machines in the order of their first bundles.

    Args:
        machines: of each bundle.
    """
    first = {machine: bundle for bundle, machine in reversed(list(enumerate(machines)))}
    return sorted(range(len(machines)), key=lambda bundle: (first[machines[bundle]], bundle))


def gpu_of_unified(gpu_ids: Sequence[Sequence[int]], machines: Sequence[str], bundle: int) -> int:
    """The GPU of a bundle where it is not the nodes that say on which machine it lies.

    Args:
        gpu_ids: by node: of each machine where there are as many, else all of them are of every machine.
        machines: of each bundle.
        bundle: which one.

    Raises:
        InvalidArgumentError: more bundles lie on its machine than there are ids.
    """
    different = list(dict.fromkeys(machines))
    machine = machines[bundle]
    if len(different) == len(gpu_ids):
        ids = list(gpu_ids[different.index(machine)])
    else:
        ids = list(dict.fromkeys(gpu for own in gpu_ids for gpu in own))
    place = machines[:bundle].count(machine)
    if place >= len(ids):
        raise InvalidArgumentError(
            f"gpu_ids: expected {machines.count(machine)} ids, one for each bundle of machine {machine[:12]}, got {ids}"
        )
    return ids[place]


def _whole_numbers(given: Any) -> tuple[int, ...]:
    try:
        return tuple(operator.index(count) for count in given)
    except TypeError:
        raise InvalidArgumentError(
            f"bundle_ct_per_node_list: expected a whole number for each node, got {given!r}"
        ) from None


def parse_gpu_ids(gpu_ids: GpuIds, bundle_counts: Sequence[int]) -> list[list[int]] | None:
    """GPUs by node, one for each bundle; None for ``"auto"``, where the engine chooses.

    Args:
        gpu_ids: ``"auto"``, ids that hold for every node, or ids for each node.
        bundle_counts: bundles of each node.

    Raises:
        InvalidArgumentError: too few, an id twice, or not ids at all.
    """
    if isinstance(gpu_ids, str):
        if gpu_ids != "auto":
            raise InvalidArgumentError(f"gpu_ids: expected 'auto' or a list of ids, got {gpu_ids!r}")
        return None
    per_node: list[list[int]] = []
    for own in gpu_ids:
        if not isinstance(own, int):
            per_node.append(list(own))
    if not per_node:
        per_node = [[own for own in gpu_ids if isinstance(own, int)] for _ in bundle_counts]
    elif len(per_node) != len(bundle_counts) or len(per_node) != len(gpu_ids):
        raise InvalidArgumentError(f"gpu_ids: expected a list for each of {len(bundle_counts)} nodes, got {gpu_ids}")
    for node, (ids, count) in enumerate(zip(per_node, bundle_counts, strict=True)):
        if len(ids) < count or len(set(ids)) != len(ids) or any(gpu < 0 for gpu in ids):
            raise InvalidArgumentError(f"gpu_ids: expected {count} different ids for node {node}, got {ids}")
    return per_node


def _sum(bundles: Sequence[Mapping[str, float]]) -> dict[str, float]:
    total: dict[str, float] = {}
    for bundle in bundles:
        for name, amount in bundle.items():
            total[name] = total.get(name, 0.0) + amount
    return total


def _fits(need: Mapping[str, float], has: Mapping[str, float]) -> bool:
    return all(has.get(name, 0.0) >= amount for name, amount in need.items())


def _shortage(
    request: ReservationRequest, requests: Sequence[ReservationRequest], nodes: Sequence[NodeResources]
) -> str:
    asked = "; ".join(f"{one.name}: {_sum(one.bundles)} ({one.strategy})" for one in requests)
    there = "; ".join(f"{node.node_id[:12]}: {node.as_bundle()}" for node in nodes) or "no machine"
    return f"{request.name} does not fit\n  asked for: {asked}\n  there is: {there}"
