"""Where the processes of a job go on the machines of an engine: plain values, nothing runs here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from ...errors import InvalidArgumentError, ResourceInsufficientError
from ..actors.base import NodeResources


def place_servers(num_servers: int, holders: Mapping[str, Collection[int]]) -> list[str]:
    """A machine for each server that has its partition, spread as evenly as that allows.

    Args:
        num_servers: servers, one for each partition.
        holders: the partitions that each machine has, the preferred machine first.

    Raises:
        InvalidArgumentError: no machine has a partition.
    """
    choices = {rank: [host for host, own in holders.items() if rank in own] for rank in range(num_servers)}
    if missing := [rank for rank, hosts in choices.items() if not hosts]:
        raise InvalidArgumentError(
            f"data: expected each partition on some machine, got none for {missing} on {list(holders)}"
        )
    load: Counter[str] = Counter()
    placed: dict[int, str] = {}
    for rank in sorted(choices, key=lambda rank: len(choices[rank])):  # those with little choice choose first
        placed[rank] = min(choices[rank], key=lambda host: load[host])
        load[placed[rank]] += 1
    return [placed[rank] for rank in range(num_servers)]


def place_trainers(
    num_trainers: int, nodes: Sequence[NodeResources], gpus_each: float, server_hosts: Sequence[str]
) -> list[str]:
    """A machine for each trainer, where fewest processes are; the ranks of a machine follow each other.

    Args:
        num_trainers: trainers.
        nodes: the machines, the preferred first.
        gpus_each: GPUs that each trainer needs; 0 for none.
        server_hosts: where the servers are.

    Raises:
        ResourceInsufficientError: the machines have too few GPUs.
    """
    room = {node.node_id: int(node.gpus / gpus_each) if gpus_each else num_trainers for node in nodes}
    if sum(room.values()) < num_trainers:
        there = {node.node_id[:12]: node.gpus for node in nodes}
        raise ResourceInsufficientError(
            f"trainer_gpus: expected room for {num_trainers} trainers with {gpus_each:g} GPUs each, there are {there}"
        )
    load, placed = Counter(server_hosts), Counter[str]()
    for _ in range(num_trainers):
        host = min((host for host in room if placed[host] < room[host]), key=lambda host: load[host])
        load[host] += 1
        placed[host] += 1
    return [host for host in room for _ in range(placed[host])]
