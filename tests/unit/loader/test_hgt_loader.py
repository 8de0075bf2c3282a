"""HGTLoader over PyG's data, with PyG's arguments, and over data sets; DistHGTLoader in this process."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest
import torch
from torch_geometric.data import Data, HeteroData
from torch_geometric.loader import HGTLoader as PygHGTLoader
from torch_geometric.loader import NodeLoader as PygNodeLoader
from torch_geometric.testing import MyFeatureStore, MyGraphStore

from graphlearn_dist.distributed import DistDataset, DistHGTLoader
from graphlearn_dist.distributed.pyg_sampler import PyGSampler
from graphlearn_dist.errors import InvalidArgumentError
from graphlearn_dist.loader import HGTLoader, NodeLoader
from graphlearn_dist.partition import partition_pyg
from tests.support.graphs import Direction, make_dataset, random_edges, random_graph, typed_graph
from tests.support.hgt_reference import hgt_batch
from tests.support.oracle import assert_same, pyg_tensors

PAPER, AUTHOR, LONELY = "paper", "author", "lonely"
CITES, WRITES, REV = (PAPER, "cites", PAPER), (AUTHOR, "writes", PAPER), (PAPER, "rev_writes", AUTHOR)
SAMPLES = {PAPER: [5, 3], AUTHOR: [2, 0], LONELY: [2, 2]}


def typed() -> HeteroData:
    data = HeteroData()
    data[PAPER].x, data[PAPER].y = torch.rand(40, 3), torch.arange(40)
    data[PAPER].train_mask = torch.arange(40) % 2 == 0
    data[AUTHOR].num_nodes, data[LONELY].x = 25, torch.rand(3, 2)
    data[CITES].edge_index, data[WRITES].edge_index = random_edges(40, 40, 600, 1), random_edges(25, 40, 180, 2)
    data[REV].edge_index = data[WRITES].edge_index.flip(0)
    data[WRITES].edge_attr = torch.rand(180, 2)
    data.title = "library"
    return data


def stores_of(data: HeteroData) -> tuple[MyFeatureStore, MyGraphStore]:
    features, graph = MyFeatureStore(), MyGraphStore()
    for key in (PAPER, LONELY):
        features.put_tensor(data[key].x, group_name=key, attr_name="x", index=None)
    features.put_tensor(torch.rand(25, 1), group_name=AUTHOR, attr_name="x", index=None)
    for key in data.edge_types:
        size = (data[key[0]].num_nodes, data[key[2]].num_nodes)
        graph.put_edge_index(data[key].edge_index, edge_type=key, layout="coo", size=size)
    return features, graph


def ids_of(batch: Any) -> dict[Any, Any]:
    """Ids of nodes and edges, and edges, by type."""
    nodes = {key: batch[key].n_id.tolist() for key in batch.node_types}
    return nodes | {key: (batch[key].edge_index.tolist(), batch[key].e_id.tolist()) for key in batch.edge_types}


def test_signature_is_that_of_pyg() -> None:
    theirs = [*inspect.signature(PygHGTLoader.__init__).parameters.values()]
    ours = [*inspect.signature(HGTLoader._open_pyg_samples).parameters.values()]
    names = [each.name for each in theirs if each.kind is each.POSITIONAL_OR_KEYWORD]
    assert [each.name for each in ours if each.kind is each.POSITIONAL_OR_KEYWORD] == names
    assert {each.name: each.default for each in ours if each.name in names} == {
        each.name: each.default for each in theirs if each.name in names
    }


def test_batches_of_typed_data() -> None:
    data = typed()
    given = (PAPER, torch.tensor([7, 3, 7, 12, 30, 3]))
    loader = HGTLoader(data, SAMPLES, given, True, batch_size=4)
    assert str(loader) == "HGTLoader()"
    assert isinstance(loader, NodeLoader)
    for number, batch in enumerate(loader):
        positions = list(range(6))[4 * number : 4 * number + 4]
        seeds, store = given[1][positions], batch[PAPER]
        assert type(batch) is HeteroData
        assert (batch.title, store.batch_size, store.input_id.tolist()) == ("library", len(seeds), positions)
        assert torch.equal(store.n_id[: len(seeds)], seeds)
        distinct = len({*seeds.tolist()})
        assert len({*store.n_id.tolist()}) == len(store.n_id) - len(seeds) + distinct
        assert len(store.n_id) == len(seeds) + 5 + 3
        assert (batch[AUTHOR].num_nodes, batch[LONELY].num_nodes) == (2, 0)
        assert torch.equal(store.x, data[PAPER].x[store.n_id])
        assert torch.equal(store.y, data[PAPER].y[store.n_id])
        assert torch.equal(batch[WRITES].edge_attr, data[WRITES].edge_attr[batch[WRITES].e_id])
        for key in data.edge_types:
            edges = batch[key]
            sources = batch[key[0]].n_id[edges.edge_index[0]]
            targets = batch[key[2]].n_id[edges.edge_index[1]]
            assert torch.equal(torch.stack([sources, targets]), data[key].edge_index[:, edges.e_id])
            source_in = torch.isin(data[key].edge_index[0], batch[key[0]].n_id)
            both_in = source_in & torch.isin(data[key].edge_index[1], batch[key[2]].n_id)
            assert {*edges.e_id.tolist()} == {*both_in.nonzero().view(-1).tolist()}
            assert "num_sampled_edges" not in edges
        assert "num_sampled_nodes" not in store
        assert "mapping" not in store


def test_what_pyg_samples_has_the_same_attributes() -> None:
    """A batch that PyG's own loader cuts from the output of our sampler is the batch of our loader."""
    data = typed()
    sampler = PyGSampler(data, num_samples=SAMPLES, seed=5)
    theirs = PygNodeLoader(data, sampler, (PAPER, data[PAPER].train_mask), batch_size=8)
    ours = NodeLoader(
        data, PyGSampler(data, num_samples=SAMPLES, seed=5), (PAPER, data[PAPER].train_mask), batch_size=8
    )
    loader = HGTLoader(data, SAMPLES, (PAPER, data[PAPER].train_mask), batch_size=8, seed=5)
    for batch, mine, other in zip(theirs, ours, loader, strict=True):
        # PyG's loader does not say which batch of an epoch it wants.
        assert {key: {*store} for key, store in batch.to_dict().items() if isinstance(store, dict)} == {
            key: {*store} for key, store in other.to_dict().items() if isinstance(store, dict)
        }
        assert ids_of(mine) == ids_of(other)


def test_homogeneous_data() -> None:
    data = Data(x=torch.rand(60, 2), edge_index=random_edges(60, 60, 500, 3), edge_attr=torch.arange(500))
    graph = random_graph(60, 500, 3)
    for index, batch in enumerate(HGTLoader(data, [6, 6], torch.arange(9), batch_size=5, seed=2)):
        expected = hgt_batch(graph, "in", [6, 6], None, range(9)[5 * index :][:5], seed=2, index=index)
        assert batch.n_id.tolist() == expected.nodes[None]
        edges = zip(*batch.edge_index.tolist(), batch.e_id.tolist(), strict=True)
        assert list(edges) == expected.edges[None]
        assert torch.equal(batch.edge_attr, batch.e_id)


def test_stores_and_partition_directories_give_the_same_batches(tmp_path: Path) -> None:
    data = typed()
    arguments: dict[str, Any] = {"batch_size": 6, "shuffle": True, "seed": 9}
    expected = [ids_of(batch) for batch in HGTLoader(data, SAMPLES, PAPER, **arguments)]
    partition_pyg(data, tmp_path, num_parts=2, edge_dir="in")
    for other in (stores_of(data), tmp_path):
        assert [ids_of(batch) for batch in HGTLoader(other, SAMPLES, PAPER, **arguments)] == expected


def test_the_programs_seed_governs() -> None:
    data = typed()

    def epochs(seed: int, **changes: Any) -> list[Any]:
        torch.manual_seed(seed)
        loader = HGTLoader(data, SAMPLES, PAPER, batch_size=16, shuffle=True, **changes)
        return [ids_of(batch) for _ in range(2) for batch in loader]

    first = epochs(1)
    assert first == epochs(1, num_workers=2)
    assert first != epochs(2)
    assert first[: len(first) // 2] != first[len(first) // 2 :]


def test_transforms_see_batch_and_output() -> None:
    seen: list[Any] = []

    def note(out: Any) -> Any:
        seen.append(out)
        return out

    def mark(batch: Any) -> Any:
        batch.marked = True
        return batch

    loader = HGTLoader(typed(), [3], AUTHOR, transform=mark, transform_sampler_output=note, batch_size=25)
    assert [batch.marked for batch in loader] == [True]
    assert (type(seen[0]).__name__, seen[0].num_sampled_nodes) == ("HeteroSamplerOutput", None)


@pytest.mark.parametrize("edge_dir", ["in", "out"])
def test_batches_of_a_data_set(edge_dir: Direction) -> None:
    graph = typed_graph(30, 12, 150, 4)
    dataset = make_dataset(graph, edge_dir)
    seeds = torch.tensor([3, 4, 3, 8, 9])
    loader = HGTLoader(dataset, [4, 2], ("user", seeds), 3, with_edge=True, seed=7)
    alone = DistHGTLoader(
        DistDataset.from_dataset(dataset), [4, 2], ("user", seeds), 3,
        with_edge=True, collect_features=True, random_seed=7,
    )  # fmt: skip
    for index, (batch, other) in enumerate(zip(loader, alone, strict=True)):
        expected = hgt_batch(graph, edge_dir, [4, 2], "user", seeds[3 * index :][:3].tolist(), seed=7, index=index)
        for name in ("user", "item"):
            assert batch[name].n_id.tolist() == expected.nodes[name]
            assert batch[name].num_sampled_nodes == expected.num_sampled[name]
        assert torch.equal(batch["user"].y, batch["user"].n_id)
        assert batch["user"].mapping.tolist() == list(range(batch["user"].batch_size))
        assert_same(pyg_tensors(other), pyg_tensors(batch))
    alone.shutdown()
    assert [batch["user"].batch_size for batch in HGTLoader(dataset, [1], "user", drop_last=True, batch_size=20)] == [
        20
    ]


def test_dist_loader_takes_pygs_data() -> None:
    data = typed()
    with DistHGTLoader(data, SAMPLES, PAPER, batch_size=10, with_edge=True, random_seed=3) as loader:
        found = [ids_of(batch) for batch in loader]
    assert found == [ids_of(batch) for batch in HGTLoader(data, SAMPLES, PAPER, batch_size=10, seed=3)]


def test_state_dicts_resume() -> None:
    def open_(**changes: Any) -> HGTLoader:
        return HGTLoader(
            typed(), **{"num_samples": SAMPLES, "input_nodes": PAPER, "batch_size": 8, "seed": 1, **changes}
        )

    loader = open_(shuffle=True)
    expected = [ids_of(batch) for _ in range(2) for batch in loader]
    begun = open_(shuffle=True)
    found = []
    for batch in begun:
        found.append(ids_of(batch))
        if len(found) == 3:
            break
    resumed = open_(shuffle=True, num_workers=0)
    resumed.load_state_dict(begun.state_dict())
    found += [ids_of(batch) for _ in range(2) for batch in resumed]
    assert found == expected
    with pytest.raises(InvalidArgumentError, match="num_samples"):
        open_(shuffle=True, num_samples=[5, 3]).load_state_dict(begun.state_dict())


def test_what_makes_no_sense_is_refused() -> None:
    data, dataset = typed(), make_dataset(typed_graph(5, 5, 10, 0))
    with pytest.raises(
        InvalidArgumentError, match="num_samples: expected numbers for every node type, got none for 'l"
    ):
        HGTLoader(data, {PAPER: [1], AUTHOR: [1]}, PAPER)
    with pytest.raises(InvalidArgumentError, match="num_samples: unknown node type 'shop'"):
        HGTLoader(dataset, {"user": [1], "item": [1], "shop": [1]}, "user")
    with pytest.raises(InvalidArgumentError, match=r"num_samples: expected a list .*, got None"):
        DistHGTLoader(DistDataset.from_dataset(dataset), None, "user")  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="input_nodes: unknown node type 'shop'"):
        HGTLoader(data, [1], "shop")
    with pytest.raises(TypeError, match="replace"):
        HGTLoader(data, [1], PAPER, replace=True)
    with pytest.raises(TypeError, match="static_shapes"):
        HGTLoader(dataset, [1], "user", static_shapes=True)
    with pytest.raises(InvalidArgumentError, match="num_neighbors: expected None beside num_samples, got"):
        PyGSampler(data, [1], num_samples=[1])
    sampler = PyGSampler(data, num_samples=[1])
    with pytest.raises(InvalidArgumentError, match="num_neighbors: expected None beside num_samples, got"):
        sampler.num_neighbors = [3]
    with pytest.raises(InvalidArgumentError, match="data: expected a Dataset"):
        HGTLoader([1], [1], "user")


def test_what_pygs_node_loader_takes() -> None:
    """Its own loader of this name hands everything else on to that; times of seeds, which nothing is drawn by, are an
    error."""
    seeds = PAPER, torch.arange(10)
    (batch, *_) = HGTLoader(typed(), [2], seeds, batch_size=2, input_id=torch.arange(100, 110))
    assert batch[PAPER].input_id.tolist() == [100, 101]
    stores = typed(), MyFeatureStore(), MyGraphStore()
    for node_type in (PAPER, AUTHOR):
        stores[1].put_tensor(torch.rand(40, 3), group_name=node_type, attr_name="x", index=None)
    for edge_type in (CITES, WRITES):
        edges, size = stores[0][edge_type].edge_index, (40, 40)
        stores[2].put_edge_index(edges, edge_type=edge_type, layout="coo", size=size)

    class Own(HeteroData):
        pass

    (batch, *_) = HGTLoader(stores[1:], [2], seeds, batch_size=2, custom_cls=Own)
    assert type(batch) is Own
    with pytest.raises(InvalidArgumentError, match="input_time"):
        list(HGTLoader(typed(), [2], seeds, input_time=torch.arange(10)))


def test_empty_inputs_have_no_batches() -> None:
    assert list(HGTLoader(typed(), [2], (PAPER, torch.empty(0, dtype=torch.int64)))) == []
