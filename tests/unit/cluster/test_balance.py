"""Which worker is chosen, given how the workers are."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from graphlearn_dist.cluster.data.named_sharding import NamedSharding
from graphlearn_dist.cluster.groups.balance import Balancer, Load, LoadMeter, SeedOwners
from graphlearn_dist.cluster.groups.group_settings import GroupSettings
from graphlearn_dist.errors import InvalidArgumentError
from graphlearn_dist.partition import RangePartitionBook


def loads(**in_flight: int) -> dict[int, Load]:
    return {int(rank[1:]): Load(calls) for rank, calls in in_flight.items()}


def test_in_turn_at_random_and_by_load() -> None:
    some = loads(r0=2, r2=1, r3=1)
    turn = Balancer("round_robin")
    assert [turn.pick(some) for _ in range(4)] == [0, 2, 3, 0]
    assert turn.pick(loads(r0=0, r3=0)) == 3
    assert Balancer("least_loaded").pick(some) == 2
    assert {Balancer("random", seed).pick(some) for seed in range(50)} == {0, 2, 3}
    with pytest.raises(InvalidArgumentError, match="load_balancing_strategy"):
        Balancer("clever")
    with pytest.raises(InvalidArgumentError, match="ready"):
        turn.pick({})


def test_by_rate() -> None:
    """Rates of 3, 1 and one that is not known, which counts as the mean of 2: 3, 1 and 2 of each six calls."""
    balancer = Balancer("weighted")
    some = {0: Load(9, 3.0), 1: Load(0, 1.0), 2: Load(0)}
    chosen = [balancer.pick(some) for _ in range(60)]
    for start in range(0, 60, 6):
        assert Counter(chosen[start : start + 6]) == {0: 3, 2: 2, 1: 1}
    assert Counter(balancer.pick({1: Load(0), 2: Load(0)}) for _ in range(10)) == {1: 5, 2: 5}


def test_rates_are_those_of_the_worker_and_not_of_its_queue() -> None:
    now = 0.0
    meter = LoadMeter(lambda: now)
    assert meter.load == Load(0, None)
    meter.sent()
    meter.sent()  # waits for the first
    now = 2.0
    meter.answered(is_result=True)
    assert meter.load == Load(1, 0.5)
    now = 4.0
    meter.answered(is_result=True)
    assert meter.load == Load(0, 0.5)
    now = 100.0  # idle
    meter.sent()
    now = 112.0
    meter.answered(is_result=True)
    assert meter.load == Load(0, 0.25)  # 2 s and a fifth of the way to 12 s
    meter.sent()
    meter.answered(is_result=False)
    assert meter.load == Load(0, 0.25)


def test_by_the_partition_of_the_seeds() -> None:
    """Two partitions of ten nodes with two replicas each; the less loaded replica of the owner of most seeds."""
    book = RangePartitionBook([(0, 10), (10, 20)], partition_idx=0)
    local = SeedOwners(book, NamedSharding([[0, 1], [2, 3]], ["partition", "replica"]))
    some = loads(r0=0, r1=0, r2=5, r3=4)
    balancer = Balancer("locality")
    for seeds, chosen in (([3, 11, 12], 3), ([1, 2, 19], 0), ([], 0)):
        assert balancer.pick(some, local({"seeds": torch.tensor(seeds, dtype=torch.int64), "other": 1})) == chosen
    assert balancer.pick(loads(r1=2, r0=3), local({"seeds": torch.tensor([11])})) == 1  # no owner is ready
    with pytest.raises(InvalidArgumentError, match=r"seeds: .*\['nodes'\]"):
        local({"nodes": torch.tensor([1])})
    with pytest.raises(ValueError, match="no_axis"):
        SeedOwners(book, NamedSharding([0, 1], ["partition"]), axis="no_axis")
    for wrong in (
        {"load_balancing_strategy": "locality"},
        {"load_balancing_strategy": "random", "local_workers": local},
    ):
        with pytest.raises(InvalidArgumentError, match="local_workers"):
            GroupSettings(**wrong)  # type: ignore[arg-type]
