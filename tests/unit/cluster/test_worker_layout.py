"""Which workers there are, where they go, and what they are told."""

from __future__ import annotations

from typing import Any

import pytest

from graphlearn_dist.cluster.actors.base import NodePort, NodeResources
from graphlearn_dist.cluster.actors.environ import forwarded_environ
from graphlearn_dist.cluster.groups.worker_layout import plan_groups, plan_workers, rank_environs
from graphlearn_dist.cluster.machines.bundle_placement import (
    ClusterShape,
    bundles_by_machine,
    gpu_of_unified,
    parse_gpu_ids,
    place,
)
from graphlearn_dist.errors import InvalidArgumentError, ResourceInsufficientError


@pytest.mark.parametrize(
    ("wanted", "groups"),
    [
        (None, [(0, [0]), (0, [1]), (1, [0])]),
        (1, [(0, [0]), (1, [0])]),
        ([2, 0], [(0, [0]), (0, [1])]),
        ((0, 1), [(1, [0])]),
    ],
)
def test_one_worker_groups(wanted: Any, groups: list[tuple[int, list[int]]]) -> None:
    assert plan_groups([[0, 1], [0]], wanted) == groups


def test_one_worker_groups_in_the_order_of_the_bundles() -> None:
    assert plan_groups([[0, 2, 1, 3]], 3) == [(0, [0]), (0, [2]), (0, [1])]


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        (2, "Placement group 1 has 1 bundles, but 2 workers were requested"),
        ([1], "expected 2 counts"),
        ("all", "a number, a list or None"),
        (True, "a number, a list or None"),
        ([-1, 1], "-1 workers"),
    ],
)
def test_workers_that_do_not_fit(wanted: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        plan_groups([[0, 1], [0]], wanted)


def test_tied_groups() -> None:
    workers = plan_workers([2, 2], [(0, [0, 1]), (1, [1])], "server")
    assert [w["name"] for w in workers] == ["server-grp0-0", "server-grp0-1", "server-1-1"]
    assert [w["global_rank"] for w in workers] == [0, 1, 2]
    assert [w["local_rank"] for w in workers] == [0, 1, 0]
    assert [w["dp_shard_idx"] for w in workers] == [0, 0, 1]
    assert [w["bundle_indices"] for w in workers] == [(0, [0, 1]), None, (1, [1])]
    assert [(w["node_idx"], w["bundle_idx"]) for w in workers] == [(0, 0), (0, 1), (1, 1)]
    for groups in ([], [(0, [])], [(0, [2])], [(2, [0])], [(-1, [0])]):
        with pytest.raises(InvalidArgumentError):
            plan_workers([2, 2], groups, "")


@pytest.mark.parametrize("unified", [False, True])
def test_environment_of_ranks(unified: bool) -> None:
    workers = plan_workers([3], [(0, [0]), (0, [1]), (0, [2])], "w")
    ports = [NodePort("A", "a", 1), NodePort("B", "b", 2), NodePort("A", "a", 3)]
    environs = rank_environs(workers, ports, ("a", 9), unified=unified)
    assert [e["RANK"] for e in environs] == ["0", "1", "2"]
    assert [e["LOCAL_RANK"] for e in environs] == (["0", "0", "1"] if unified else ["0", "1", "2"])
    assert [e["NODE_RANK"] for e in environs] == (["0", "1", "0"] if unified else ["0", "0", "0"])
    assert [e["GLD_LOCAL_RANK"] for e in environs] == ["0", "0", "1"]
    assert [e["LOCAL_WORLD_SIZE"] for e in environs] == ["2", "1", "2"]
    assert [e["GROUP_RANK"] for e in environs] == ["0", "1", "0"]
    for environ in environs:
        assert (environ["MASTER_ADDR"], environ["MASTER_PORT"], environ["WORLD_SIZE"]) == ("a", "9", "3")
        assert environ["AVAILABLE_ADDR_LIST"] == "['a', 'b', 'a']"
        assert environ["AVAILABLE_PORT_LIST"] == "[1, 2, 3]"


def test_secrets_and_schedulers_stay_with_the_driver() -> None:
    kept = {"HOME": "/h", "OMP_NUM_THREADS": "1", "GLD_DATA": "x"}
    dropped = ["RAY_JOB_ID", "SLURM_JOB_ID", "PMI_RANK", "GLD_TOKEN", "my_secret_key", "DB_PASSWORD"]
    assert forwarded_environ({**kept, **dict.fromkeys(dropped, "1")}) == kept


# --- placement --------------------------------------------------------------------------------------------------


def nodes(*cpus: float, gpus: float = 0) -> list[NodeResources]:
    return [NodeResources(f"n{i}", "127.0.0.1", count, gpus) for i, count in enumerate(cpus)]


def test_requests() -> None:
    shape = ClusterShape([2, 0, 1], True, 2, "c", constraints=[{}, {}, {"rack": 1.0}])
    assert shape.gpus_per_worker == 0.5
    first, second = shape.requests()
    assert (first.name, first.strategy, first.bundles) == ("c-node0", "STRICT_PACK", [{"CPU": 2, "GPU": 1}] * 2)
    assert (second.name, second.bundles) == ("c-node2", [{"CPU": 2, "GPU": 1, "rack": 1}])
    [unified] = ClusterShape([1, 1], False, name="c", unified=True, strategy="PACK").requests()
    assert (unified.name, unified.strategy, unified.bundles) == ("c-unified", "PACK", [{"CPU": 1}] * 2)


@pytest.mark.parametrize(
    ("bundles", "cpus", "chosen"),
    [
        ([1, 1, 1], (4, 4, 4), {"n0", "n1", "n2"}),
        ([2, 3], (2, 8), ["n0", "n1"]),
        ([1, 4], (4, 2), ["n1", "n0"]),
        ([2, 2], (4,), ["n0", "n0"]),
    ],
)
def test_machines_are_different_where_there_are_enough(bundles: list[int], cpus: tuple[int, ...], chosen: Any) -> None:
    placed = place(ClusterShape(bundles, False, name="c").requests(), nodes(*cpus))
    found = [request.node_id for request in placed]
    assert (set(found) if isinstance(chosen, set) else found) == chosen


@pytest.mark.parametrize(
    ("shape", "there"),
    [
        (ClusterShape([3], False, name="c"), nodes(2, 2)),
        (ClusterShape([1], True, name="c"), nodes(8)),
        (ClusterShape([2, 2], False, name="c", unified=True), nodes(2, 1)),
        (ClusterShape([1], False, name="c"), []),
    ],
)
def test_what_does_not_fit_says_what_there_is(shape: ClusterShape, there: list[NodeResources]) -> None:
    with pytest.raises(ResourceInsufficientError, match=r"(?s)asked for: c-.*'CPU'.*there is: (n0|no machine)"):
        place(shape.requests(), there)


@pytest.mark.parametrize(
    ("given", "parsed"),
    [("auto", None), ([4, 5], [[4, 5], [4, 5]]), ([[0, 1], [7]], [[0, 1], [7]])],
)
def test_gpu_ids(given: Any, parsed: Any) -> None:
    assert parse_gpu_ids(given, [2, 1]) == parsed


def test_bundles_of_one_machine_stand_together() -> None:
    assert bundles_by_machine(["b", "a", "b", "a", "c"]) == [0, 2, 1, 3, 4]
    assert bundles_by_machine([]) == []


@pytest.mark.parametrize(
    ("gpu_ids", "machines", "gpus"),
    [
        ([[4, 5], [4, 5]], "abab", [4, 4, 5, 5]),
        ([[0, 1], [6, 7]], "abab", [0, 6, 1, 7]),
        ([[0, 1], [6, 7]], "aaaa", [0, 1, 6, 7]),
        ([[0, 1, 2]], "aba", [0, 0, 1]),
    ],
)
def test_gpus_of_bundles_that_lie_anywhere(gpu_ids: list[list[int]], machines: str, gpus: list[int]) -> None:
    assert [gpu_of_unified(gpu_ids, list(machines), bundle) for bundle in range(len(machines))] == gpus


def test_a_machine_with_more_bundles_than_ids() -> None:
    with pytest.raises(InvalidArgumentError, match="gpu_ids: expected 3 ids, one for each bundle of machine a"):
        gpu_of_unified([[0, 1], [6]], list("aaab"), 2)


@pytest.mark.parametrize("given", ["all", [0], [0, 0], [[0, 1]], [[0], [1]], [-1, 0], [[0, 1], 2]])
def test_bad_gpu_ids(given: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="gpu_ids"):
        parse_gpu_ids(given, [2, 1])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"bundle_counts": []}, "bundle_ct_per_node_list"),
        ({"bundle_counts": [0]}, "bundle_ct_per_node_list"),
        ({"bundle_counts": [1, -1]}, "bundle_ct_per_node_list"),
        ({"bundle_counts": [1.5]}, r"bundle_ct_per_node_list: expected a whole number for each node, got \[1.5\]"),
        ({"bundle_counts": ["x"]}, "bundle_ct_per_node_list"),
        ({"bundle_counts": 3}, "bundle_ct_per_node_list: expected a whole number for each node, got 3"),
        ({"bundle_counts": [1], "max_colocated_worker_groups": 0}, "max_colocated_worker_groups"),
        ({"bundle_counts": [1], "strategy": "TIGHT"}, "placement_group_strategy"),
        ({"bundle_counts": [1], "constraints": [{}, {}]}, "node_resource_constraints"),
    ],
)
def test_bad_shapes(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidArgumentError, match=said):
        ClusterShape(**arguments)
