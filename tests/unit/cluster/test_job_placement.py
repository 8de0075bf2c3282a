"""Where the processes of a job go, without any process."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphlearn_dist.cluster.actors.base import NodeResources, order_nodes
from graphlearn_dist.cluster.jobs.job_placement import place_servers, place_trainers
from graphlearn_dist.errors import InvalidArgumentError, ResourceInsufficientError


def nodes(*cpus: float, gpus: float = 0) -> list[NodeResources]:
    return [NodeResources(f"n{i}", "127.0.0.1", count, gpus) for i, count in enumerate(cpus)]


def test_the_largest_machines_come_first_and_those_without_processors_not_at_all() -> None:
    assert [node.node_id for node in order_nodes(nodes(2, 8, 0, 8))] == ["n1", "n3", "n0"]
    assert [node.node_id for node in order_nodes(nodes(0, 0))] == ["n0", "n1"]


@given(st.data(), st.integers(1, 6), st.integers(1, 5))
def test_servers_are_where_their_partition_is_and_spread(data: st.DataObject, servers: int, machines: int) -> None:
    names = [f"n{i}" for i in range(machines)]
    owners = [data.draw(st.sets(st.sampled_from(names), min_size=1)) for _ in range(servers)]
    holders = {name: {rank for rank, own in enumerate(owners) if name in own} for name in names}
    placed = place_servers(servers, holders)
    assert len(placed) == servers
    assert all(rank in holders[host] for rank, host in enumerate(placed))
    everywhere = place_servers(servers, {name: set(range(servers)) for name in names})
    loads = Counter(everywhere)
    assert max(loads.values()) - min(loads[name] for name in names) <= 1


def test_a_partition_that_is_nowhere_is_named() -> None:
    with pytest.raises(InvalidArgumentError, match=r"none for \[1, 2\] on \['a', 'b'\]"):
        place_servers(3, {"a": {0}, "b": {0}})


@pytest.mark.parametrize(
    ("num_trainers", "gpus", "each", "servers", "placed"),
    [
        (2, 0, 0.0, ["n0", "n1"], ["n0", "n2"]),
        (3, 0, 0.0, ["n0", "n0"], ["n1", "n1", "n2"]),
        (4, 2, 1.0, [], ["n0", "n0", "n1", "n2"]),
        (6, 2, 1.0, ["n0"], ["n0", "n0", "n1", "n1", "n2", "n2"]),
        (6, 1, 0.5, [], ["n0", "n0", "n1", "n1", "n2", "n2"]),
    ],
)
def test_trainers_go_where_least_is(
    num_trainers: int, gpus: float, each: float, servers: list[str], placed: list[str]
) -> None:
    assert place_trainers(num_trainers, nodes(4, 4, 4, gpus=gpus), each, servers) == placed


def test_trainers_that_do_not_fit() -> None:
    with pytest.raises(ResourceInsufficientError, match=r"room for 3 trainers with 1 GPUs each, there are {'n0': 2"):
        place_trainers(3, nodes(4, gpus=2), 1.0, [])
