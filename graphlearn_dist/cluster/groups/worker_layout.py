"""Which workers a group has, and what each is told by its environment: plain values, nothing runs here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

from ...errors import InvalidArgumentError
from ..actors.base import NodePort

TiedGroups = Sequence[tuple[int, Sequence[int]]]


class WorkerMetadata(TypedDict):
    """One worker of a group.

    ``node_idx`` and ``bundle_idx`` say where it is placed; ``local_rank`` counts within its tied group,
    ``dp_shard_idx`` counts the tied groups; ``bundle_indices`` is the tied group's for its first worker,
    else None.
    """

    node_idx: int
    bundle_idx: int
    local_rank: int
    global_rank: int
    name: str
    bundle_indices: tuple[int, list[int]] | None
    dp_shard_idx: int


def plan_groups(
    bundles_in_order: Sequence[Sequence[int]], workers_per_node: int | Sequence[int] | None
) -> list[tuple[int, list[int]]]:
    """Groups of one worker each: the first bundles of every placement group.

    Args:
        bundles_in_order: bundles of each placement group, in the order of the ranks.
        workers_per_node: workers in each, or by placement group; None means one for each bundle.

    Raises:
        InvalidArgumentError: that many do not fit.
    """
    bundle_counts = [len(bundles) for bundles in bundles_in_order]
    if workers_per_node is None:
        counts = list(bundle_counts)
    elif isinstance(workers_per_node, int) and not isinstance(workers_per_node, bool):
        counts = [workers_per_node] * len(bundle_counts)
    elif isinstance(workers_per_node, (list, tuple)):
        counts = list(workers_per_node)
    else:
        raise InvalidArgumentError(f"workers_per_node: expected a number, a list or None, got {workers_per_node!r}")
    if len(counts) != len(bundle_counts):
        raise InvalidArgumentError(
            f"workers_per_node: expected {len(bundle_counts)} counts, one for each placement group, got {counts}"
        )
    for index, (bundles, workers) in enumerate(zip(bundle_counts, counts, strict=True)):
        if not 0 <= workers <= bundles:
            raise InvalidArgumentError(
                f"workers_per_node: Placement group {index} has {bundles} bundles, but {workers} workers were requested"
            )
    return [(index, [bundle]) for index, workers in enumerate(counts) for bundle in bundles_in_order[index][:workers]]


def plan_workers(bundle_counts: Sequence[int], groups: TiedGroups, name_prefix: str) -> list[WorkerMetadata]:
    """Every worker, by rank; each tuple of ``groups`` is one tied group.

    Raises:
        InvalidArgumentError: a group is empty, or names a bundle that is not there.
    """
    workers: list[WorkerMetadata] = []
    for shard, (node, bundles) in enumerate(groups):
        count = bundle_counts[node] if 0 <= node < len(bundle_counts) else 0
        if not bundles or not all(0 <= bundle < count for bundle in bundles):
            raise InvalidArgumentError(
                f"bundle_indices_list: expected bundles of placement groups with {list(bundle_counts)} of them, "
                f"got {(node, list(bundles))}"
            )
        for local_rank, bundle in enumerate(bundles):
            tied = f"grp{shard}-{local_rank}"
            workers.append(
                {
                    "node_idx": node,
                    "bundle_idx": bundle,
                    "local_rank": local_rank,
                    "global_rank": len(workers),
                    "name": f"{name_prefix}-{tied if len(bundles) > 1 else f'{node}-{bundle}'}",
                    "bundle_indices": None if local_rank else (node, list(bundles)),
                    "dp_shard_idx": shard,
                }
            )
    if not workers:
        raise InvalidArgumentError("workers: expected at least one, got none")
    return workers


def rank_environs(
    workers: Sequence[WorkerMetadata], ports: Sequence[NodePort], master: tuple[str, int], *, unified: bool = False
) -> list[dict[str, str]]:
    """What each worker is told of its place, under the names that torch and torchrun use.

    ``NODE_RANK`` and ``LOCAL_RANK`` are the virtual node and the bundle's index there, as NeMo RL has
    it. A placement group over all machines has no such nodes: there they are the machine and the worker's number on
    it, as ``GROUP_RANK`` and ``GLD_LOCAL_RANK`` always are.

    Args:
        workers: of one group, by rank.
        ports: machine of each, with a port of its own.
        master: address and port of rank 0.
        unified: they are on one placement group over all machines.
    """
    own = [port.node_id for port in ports]
    machines = list(dict.fromkeys(own))
    places = [(machines.index(node), own[:rank].count(node)) for rank, node in enumerate(own)]
    shared = {
        "WORLD_SIZE": str(len(workers)),
        "MASTER_ADDR": master[0],
        "MASTER_PORT": str(master[1]),
        "AVAILABLE_ADDR_LIST": str([port.address for port in ports]),
        "AVAILABLE_PORT_LIST": str([port.port for port in ports]),
    }
    return [
        {
            **shared,
            "RANK": str(rank),
            "LOCAL_RANK": str(place if unified else worker["bundle_idx"]),
            "NODE_RANK": str(machine if unified else worker["node_idx"]),
            "LOCAL_WORLD_SIZE": str(own.count(own[rank])),
            "GROUP_RANK": str(machine),
            "GLD_LOCAL_RANK": str(place),
            "GLD_WORKER_NAME": worker["name"],
        }
        for rank, (worker, (machine, place)) in enumerate(zip(workers, places, strict=True))
    ]
