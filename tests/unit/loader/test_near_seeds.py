"""``locality`` of the loaders of a data set in this process: near seeds, each once; what it is refused with."""

from __future__ import annotations

import itertools
import warnings
from typing import Any

import pytest
import torch

from graphlearn_dist.data import Dataset, ZoneOrder
from graphlearn_dist.errors import InvalidArgumentError
from graphlearn_dist.loader import LinkNeighborLoader, NeighborLoader, SubGraphLoader
from graphlearn_dist.sampler.device import static_batches
from graphlearn_dist.sampler.epochs import locality
from tests.support.graphs import make_dataset, random_graph, typed_graph
from tests.support.oracle import assert_same, pyg_tensors

NUM_NODES = 96
PLACE = torch.randperm(NUM_NODES, generator=torch.Generator().manual_seed(3))
SEEDS = torch.cat([torch.arange(NUM_NODES), torch.tensor([7, 7])])  # some come twice


def ordered(place: torch.Tensor = PLACE) -> Dataset:
    data = make_dataset(random_graph(NUM_NODES, 700, 1), "in")
    data.init_order(ZoneOrder(place, torch.tensor([0, 30, NUM_NODES])))
    return data


def open_loader(kind: str, **changes: Any) -> Any:
    options: dict[str, Any] = {"batch_size": 10, "shuffle": True, "locality": 4, "seed": 1, **changes}
    if kind == "link":
        links = torch.stack([SEEDS, SEEDS.flip(0)])
        return LinkNeighborLoader(ordered(), [3, 2], edge_label_index=links, neg_sampling="binary", **options)
    loader = SubGraphLoader if kind == "subgraph" else NeighborLoader
    return loader(ordered(), input_nodes=SEEDS, num_neighbors=[3, 2], **options)


@pytest.mark.parametrize("kind", ["node", "link", "subgraph"])
def test_seeds_are_near_and_come_once(kind: str) -> None:
    loader = open_loader(kind)
    batches = list(loader)
    positions = [batch.input_id for batch in batches]
    assert sorted(itertools.chain(*(ids.tolist() for ids in positions))) == list(range(len(SEEDS)))
    for turn in range(4):  # a quarter of the seeds lies in a quarter of the places
        places = PLACE[SEEDS[torch.cat(positions[turn::4])]]
        assert int(places.max() - places.min()) < NUM_NODES // 4 + 10
    assert [batch.input_id.tolist() for batch in loader] != [ids.tolist() for ids in positions]
    assert_same(pyg_tensors(loader.batch(0, 3)), pyg_tensors(batches[3]))


def test_the_order_decides_and_nothing_else() -> None:
    """Another permutation is another epoch; bounds and groups say nothing about batches."""
    first = next(iter(open_loader("node")))
    data = ordered()
    data.init_order(ZoneOrder(PLACE, torch.tensor([0, 1, 2, 3, NUM_NODES]), 2))
    same = NeighborLoader(data, [3, 2], SEEDS, batch_size=10, shuffle=True, locality=4, seed=1)
    assert_same(pyg_tensors(next(iter(same))), pyg_tensors(first))
    other = NeighborLoader(ordered(PLACE.flip(0)), [3, 2], SEEDS, batch_size=10, shuffle=True, locality=4, seed=1)
    assert next(iter(other)).input_id.tolist() != first.input_id.tolist()
    with pytest.raises(InvalidArgumentError, match="seed_order was"):
        other.load_state_dict(same.state_dict())


def test_going_on_in_the_middle() -> None:
    loader = open_loader("node")
    batches = iter(loader)
    for _ in range(3):
        next(batches)
    state = loader.state_dict()
    assert state["locality"] == 4
    again = open_loader("node")
    again.load_state_dict(state)
    for one, other in itertools.zip_longest(again, batches):
        assert_same(pyg_tensors(one), pyg_tensors(other))
    for changed in ({"locality": 8}, {"locality": None}):
        with pytest.raises(InvalidArgumentError, match="locality was 4 and is"):
            open_loader("node", **changed).load_state_dict(state)


def test_typed_seeds_and_links_follow_the_order_of_their_type() -> None:
    data = make_dataset(typed_graph(60, 30, 300, 2), "in")
    data.init_order({"user": ZoneOrder(torch.arange(60).flip(0), torch.tensor([0, 60]))})
    options: dict[str, Any] = {"batch_size": 10, "locality": 2}
    users = NeighborLoader(data, [2], ("user", None), **options)
    assert next(iter(users))["user"].input_id.tolist() == list(range(59, 49, -1))
    links = ("user", "buys", "item"), torch.stack([torch.arange(60), torch.arange(60) % 30])
    by_source = LinkNeighborLoader(data, [2], edge_label_index=links, **options)
    assert next(iter(by_source))["user", "buys", "item"].input_id.tolist() == list(range(59, 49, -1))
    with pytest.raises(InvalidArgumentError, match="locality: expected a data set with an order of its nodes of type"):
        NeighborLoader(data, [2], ("item", None), **options)


def test_refusals() -> None:
    data = make_dataset(random_graph(NUM_NODES, 700, 1), "in")
    with pytest.raises(
        InvalidArgumentError, match=r"locality: expected a data set .* got one without; Dataset\.init_o"
    ):
        NeighborLoader(data, [2], SEEDS, locality=8)
    for wrong in (0, -1, True, 2.0, 1 << 20):
        with pytest.raises(InvalidArgumentError, match="locality: expected a number of stretches from 1 to"):
            NeighborLoader(ordered(), [2], SEEDS, locality=wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="locality: expected None beside an own sampler"):
        NeighborLoader(ordered(), [2], SEEDS, locality=8, sampler=range(5))


def test_what_hurts_is_said_once() -> None:
    locality._say_once.cache_clear()
    with pytest.warns(UserWarning, match="locality: batches of one of 64 stretches are known to cost accuracy"):
        open_loader("node", locality=64)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        open_loader("node", locality=64)
        open_loader("node", locality=32, shuffle=False)  # nothing is trained
        open_loader("node", locality=16)


def test_static_shapes_on_the_host() -> None:
    loader = open_loader("node", static_shapes=True)
    plain = open_loader("node")
    for index, batch in enumerate(loader):
        expected = plain.batch(0, index).n_id
        assert batch.n_id[: len(expected)].tolist() == expected.tolist()


def test_a_gpu_that_finds_the_seeds_itself_refuses_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Static shapes on the host have it."""
    normal, padded = open_loader("node"), open_loader("node", static_shapes=True)
    assert [b.input_id[b.seed_mask].tolist() for b in padded] == [b.input_id.tolist() for b in normal]
    monkeypatch.setattr(static_batches, "device_of", lambda dataset: torch.device("cpu"))
    with pytest.raises(InvalidArgumentError, match="locality: expected None with static_shapes on a GPU"):
        open_loader("node", static_shapes=True)
