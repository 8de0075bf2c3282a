"""The order of a data set: what it says, what it refuses, and how it gets to another process."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
import torch

from graphlearn_dist.data import Dataset, ZoneOrder
from graphlearn_dist.distributed import DistDataset
from graphlearn_dist.errors import InvalidArgumentError, UnknownIdError

PLACE = torch.tensor([4, 0, 3, 1, 2, 5], dtype=torch.int32)
BOUNDS = torch.tensor([0, 1, 1, 4, 6])


def dataset() -> Dataset:
    data = Dataset(edge_dir="out")
    data.init_graph(torch.stack([torch.arange(6), (torch.arange(6) + 1) % 6]))
    return data


def test_places_and_zones() -> None:
    order = ZoneOrder(PLACE, BOUNDS, 2)
    ids = torch.tensor([1, 3, 2, 0, 5, 1])
    assert order.places_of(ids).tolist() == [0, 1, 3, 4, 5, 0]
    assert order.zone_of(ids).tolist() == [0, 2, 2, 3, 3, 0]
    assert order.num_zones == 4
    assert order.places_of(torch.empty(0, dtype=torch.int64)).tolist() == []
    with pytest.raises(UnknownIdError, match="ids: expected 0 to 5, got 0 to 6"):
        order.places_of(torch.tensor([0, 6]))


def test_an_order_of_zones() -> None:
    order = ZoneOrder.of_zones(torch.tensor([2, 0, 3, 0, 2, 0]), 2)
    assert order.place.tolist() == [3, 0, 5, 1, 4, 2]
    assert order.bounds.tolist() == [0, 3, 3, 5, 6]
    assert (order.place.dtype, order.num_groups) == (torch.int32, 2)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((PLACE.float(), BOUNDS), "place: expected int32 or int64"),
        ((PLACE[None], BOUNDS), "place: expected int32 or int64"),
        ((PLACE, BOUNDS.int()), "bounds: expected int64"),
        ((PLACE, BOUNDS[:1]), "bounds: expected int64"),
        ((PLACE, BOUNDS[:-1]), "bounds: expected to ascend from 0 to 6"),
        ((PLACE, BOUNDS[[0, 3, 2, 4]]), "bounds: expected to ascend from 0 to 6"),
        ((PLACE, BOUNDS, 3), "num_groups: expected a divisor of the 4 zones, got 3"),
        ((PLACE, BOUNDS, 0), "num_groups: expected a divisor"),
        ((PLACE, BOUNDS, 2.0), "num_groups: expected a divisor"),
        ((PLACE.tolist(), BOUNDS), "place: expected a torch.Tensor, got list"),
        ((PLACE, BOUNDS.numpy()), "bounds: expected a torch.Tensor, got ndarray"),
    ],
)
def test_parts_that_do_not_fit(arguments: tuple[Any, ...], said: str) -> None:
    with pytest.raises(InvalidArgumentError, match=said):
        ZoneOrder(*arguments)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((torch.tensor([0, -1]),), "zones: expected 0 to 1,048,575, got -1"),
        ((torch.tensor([0, 1 << 40]),), "zones: expected 0 to 1,048,575, got 1,099,511,627,776"),
        ((torch.tensor([0, 5]), 1, 5), "zones: expected 0 to 4, got 5"),
        ((torch.tensor([0.5]),), "zones: expected dtype int64 or int32"),
        ((torch.tensor([[1]]),), "zones: expected a one-dimensional tensor"),
        ((torch.tensor([1]), 1, -1), "num_zones: expected 0 to"),
    ],
)
def test_zones_that_are_none(arguments: tuple[Any, ...], said: str) -> None:
    with pytest.raises(InvalidArgumentError, match=said):
        ZoneOrder.of_zones(*arguments)


@pytest.mark.parametrize(
    "place", [[0, 0, 1, 2, 3, 4], [0, 1, 2, 3, 4, 6], [-1, 1, 2, 3, 4, 5], [1 << 60, 1, 2, 3, 4, 5]]
)
def test_places_that_are_no_permutation(place: list[int]) -> None:
    order = ZoneOrder(torch.tensor(place), BOUNDS)
    assert not order.is_permutation
    with pytest.raises(InvalidArgumentError, match="order: expected each place from 0 to 5 once, got others"):
        dataset().init_order(order)


def test_orders_of_other_data_sets_are_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="order: expected a ZoneOrder, got Tensor"):
        dataset().init_order(PLACE)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="order: expected places of 6 nodes, got 5"):
        dataset().init_order(ZoneOrder(torch.arange(5), torch.tensor([0, 5])))
    with pytest.raises(InvalidArgumentError, match="order"):
        dataset().init_order({"user": ZoneOrder(PLACE, BOUNDS)})


@pytest.mark.parametrize("cls", [Dataset, DistDataset])
def test_ways_to_another_process(cls: type[Dataset]) -> None:
    data = dataset()
    data.init_order(ZoneOrder(PLACE, BOUNDS, 2))
    if cls is DistDataset:
        data = DistDataset.from_dataset(data)
    for other in (cls.from_ipc_handle(data.share_ipc()), pickle.loads(pickle.dumps(data))):
        found = other.node_orders[None]
        assert torch.equal(found.place, PLACE)
        assert torch.equal(found.bounds, BOUNDS)
        assert found.num_groups == 2
