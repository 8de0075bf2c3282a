"""Loaders take PyG's data with PyG's arguments; their batches are those of PyG's loaders over the same draws."""

from __future__ import annotations

import random
import threading
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import RandomSampler, SequentialSampler
from torch_geometric.data import Data, HeteroData
from torch_geometric.loader import LinkNeighborLoader as PygLinkNeighborLoader
from torch_geometric.loader import NeighborLoader as PygNeighborLoader
from torch_geometric.loader import NodeLoader as PygNodeLoader
from torch_geometric.loader import ZipLoader
from torch_geometric.sampler import NegativeSampling as PygNegatives
from torch_geometric.sampler import NumNeighbors
from torch_geometric.testing import MyFeatureStore, MyGraphStore
from torch_geometric.utils import k_hop_subgraph, subgraph

from graphlearn_dist.data import GraphSource
from graphlearn_dist.data.pyg.pyg_graphs import graph_of_pyg
from graphlearn_dist.distributed import DistDataset, DistLinkNeighborLoader, DistNeighborLoader
from graphlearn_dist.distributed.pyg_sampler import PyGSampler
from graphlearn_dist.errors import InvalidArgumentError, UnknownIdError
from graphlearn_dist.loader import HGTLoader, LinkLoader, LinkNeighborLoader, NeighborLoader, NodeLoader
from graphlearn_dist.partition import partition_pyg
from graphlearn_dist.sampler import NegativeSampling
from tests.support.graphs import random_edges

PAPER, AUTHOR = "paper", "author"
CITES, WRITES, REV = (PAPER, "cites", PAPER), (AUTHOR, "writes", PAPER), (PAPER, "rev_writes", AUTHOR)
NUM_NODES, NUM_EDGES = 60, 500


class Marked(Data):
    """A program's own class; its ``pairs`` count along their last dimension."""

    def __cat_dim__(self, key: str, value: Any, *args: Any, **kwargs: Any) -> Any:
        return 1 if key == "pairs" else super().__cat_dim__(key, value, *args, **kwargs)


def homogeneous() -> Data:
    draw = torch.Generator().manual_seed(1)
    edges = random_edges(NUM_NODES, NUM_NODES, NUM_EDGES, 3)
    data = Marked(x=torch.rand(NUM_NODES, 4, generator=draw), edge_index=edges, y=torch.arange(NUM_NODES))
    data.edge_attr = torch.rand(NUM_EDGES, 2, generator=draw)
    data.edge_weight = torch.rand(NUM_EDGES, generator=draw) + 0.1
    data.edge_time = torch.randint(0, 30, (NUM_EDGES,), generator=draw)
    data.time = torch.randint(0, 30, (NUM_NODES,), generator=draw)
    data.train_mask = torch.arange(NUM_NODES) % 3 == 0
    data.half = torch.rand(NUM_NODES, 2, generator=draw).to(torch.bfloat16)
    data.array = np.arange(2.0 * NUM_NODES).reshape(NUM_NODES, 2)
    data.every_other = torch.arange(4.0 * NUM_NODES).view(NUM_NODES, 4)[:, ::2]
    data.learned = torch.nn.Parameter(torch.rand(NUM_NODES, 3, generator=draw))
    data.pairs = torch.arange(2 * NUM_NODES).view(2, NUM_NODES)
    data.name, data.scale = "graph", 2.5
    return data


def typed() -> HeteroData:
    data = HeteroData()
    data[PAPER].x, data[PAPER].y = torch.rand(40, 3), torch.arange(40)
    data[PAPER].time, data[AUTHOR].time = torch.arange(40) % 17, torch.arange(25) % 13
    data[AUTHOR].num_nodes = 25
    data[CITES].edge_index, data[WRITES].edge_index = random_edges(40, 40, 200, 1), random_edges(25, 40, 180, 2)
    data[REV].edge_index = data[WRITES].edge_index.flip(0)
    for key, count in ((CITES, 200), (WRITES, 180), (REV, 180)):
        data[key].edge_weight = torch.rand(count) + 0.1
    data[WRITES].edge_attr = torch.rand(180, 2)
    data.title = "library"
    return data


def too_few_nodes() -> HeteroData:
    data = typed()
    data[PAPER].x = data[PAPER].x[:20]
    return data


def stores(data: Any, layout: str = "coo") -> tuple[MyFeatureStore, MyGraphStore]:
    """The data as a program's own stores hold it, edges in a layout."""
    features, graph = MyFeatureStore(), MyGraphStore()
    is_typed = isinstance(data, HeteroData)
    for key in data.node_types if is_typed else [None]:
        for name in ("x", "y"):
            if name in (store := data if key is None else data[key]):
                features.put_tensor(store[name], group_name=key, attr_name=name, index=None)
    if is_typed:  # as every type that is sampled needs one
        features.put_tensor(torch.arange(25.0)[:, None], group_name=AUTHOR, attr_name="x", index=None)
    for key in data.edge_types if is_typed else [None]:
        row, col = (data if key is None else data[key]).edge_index
        size = (NUM_NODES, NUM_NODES) if key is None else tuple(data[end].num_nodes for end in key[::2])
        order = torch.argsort(row if layout == "csr" else col, stable=True)
        if layout == "csr":
            row, col = torch._convert_indices_from_coo_to_csr(row[order], size[0]), col[order]
        elif layout == "csc":
            row, col = row[order], torch._convert_indices_from_coo_to_csr(col[order], size[1])
        graph.put_edge_index((row, col), edge_type=key, layout=layout, size=size)
    return features, graph


def flat(batch: Any) -> dict[str, Any]:
    """Every attribute of a batch by its place."""
    if isinstance(batch, Data):
        return dict(batch._store.items())
    return {f"{key}.{name}": value for key, store in ((getattr(s, "_key", None), s) for s in batch.stores)
            for name, value in store.items()}  # fmt: skip


def assert_equal(batch: Any, expected: Any) -> None:
    """Equal attributes, of equal names in the same order, classes, types and dtypes; a batch of the same class."""
    found, wanted = flat(batch), flat(expected)
    assert type(batch) is type(expected)
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        assert type(found[name]) is type(value), name
        if isinstance(value, torch.Tensor):
            assert found[name].dtype == value.dtype, name
            assert torch.equal(found[name], value), name
            assert found[name].requires_grad == value.requires_grad, name
        else:
            assert found[name] == value, name


DATA: dict[str, Any] = {
    "homogeneous": homogeneous,
    "typed": typed,
    **{f"{layout} stores": lambda layout=layout: stores(homogeneous(), layout) for layout in ("coo", "csc", "csr")},
    **{f"typed {layout} stores": lambda layout=layout: stores(typed(), layout) for layout in ("coo", "csc", "csr")},
    "typed data as its own stores": lambda: (typed(),) * 2,
}
SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "replace": {"replace": True},
    "disjoint": {"disjoint": True},
    "induced": {"subgraph_type": "induced"},
    "bidirectional": {"subgraph_type": "bidirectional"},
    "weighted": {"weight_attr": "edge_weight"},
}


def is_typed(name: str) -> bool:
    return "typed" in name


@pytest.mark.filterwarnings("ignore:Cannot convert to bidirectional graph")
@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("name", DATA)
def test_batches_of_nodes_are_those_of_pygs_loader(name: str, settings: str) -> None:
    data, options = DATA[name](), SETTINGS[settings]
    if "weight_attr" in options and "stores" in name:
        pytest.skip("these stores hold no weights")
    ids = torch.tensor([7, 3, 24, 11, 0, 19, 5])
    seeds = (PAPER, ids) if is_typed(name) else ids
    theirs = PygNeighborLoader(data, [4, 3], seeds, neighbor_sampler=PyGSampler(data, [4, 3], seed=5, **options))
    ours = NeighborLoader(data, [4, 3], seeds, seed=5, batch_size=3, **options)
    for positions in ([0, 1, 2], torch.tensor([4, 2]), [6]):
        assert_equal(ours(positions), theirs(positions))
    drawn = list(ours)
    assert len(drawn) == len(ours) == 3
    for index, batch in enumerate(drawn):
        store = batch[PAPER] if is_typed(name) else batch
        assert store.input_id.tolist() == list(range(7))[3 * index : 3 * index + 3]
        assert torch.equal(store.n_id[: store.batch_size], ids[store.input_id])


LINKS: dict[str, Any] = {
    "none": None,
    "a mode": "binary",
    "a dict": {"mode": "triplet", "amount": 2},
    "a tuple": ("binary", 0.5),
    "PyG's": PygNegatives("triplet", dst_weight=torch.rand(40) + 0.1),
    "PyG's, weighted": PygNegatives("binary", 2.0, src_weight=torch.ones(25), dst_weight=torch.rand(40) + 0.1),
    "ours": NegativeSampling("binary", 1.5),
}


@pytest.mark.parametrize("disjoint", [False, True])
@pytest.mark.parametrize("negatives", LINKS)
@pytest.mark.parametrize("name", ["homogeneous", "typed", "typed coo stores"])
def test_batches_of_links_are_those_of_pygs_loader(name: str, negatives: str, disjoint: bool) -> None:
    data, sampling = DATA[name](), LINKS[negatives]
    if negatives.startswith("PyG's") and not is_typed(name):
        sampling = PygNegatives(sampling.mode, sampling.amount, dst_weight=torch.rand(NUM_NODES))
    links = torch.stack([torch.arange(11) + 2, torch.arange(11) * 2])
    index = (WRITES, links) if is_typed(name) else links
    theirs_sampling = PygNegatives("binary", 1.5) if negatives == "ours" else sampling
    label = None if negatives in ("a dict", "PyG's") else torch.arange(11) % 3
    sampler = PyGSampler(data, [3, 2], seed=9, disjoint=disjoint)
    theirs = PygLinkNeighborLoader(
        data, [3, 2], index, edge_label=label, neg_sampling=theirs_sampling, neighbor_sampler=sampler
    )
    ours = LinkNeighborLoader(
        data, [3, 2], index, edge_label=label, neg_sampling=sampling, disjoint=disjoint, seed=9, batch_size=4
    )
    for positions in ([0, 1, 2], torch.tensor([4, 2]), [6]):
        assert_equal(ours(positions), theirs(positions))
    assert [len((batch[WRITES] if is_typed(name) else batch).input_id) for batch in ours] == [4, 4, 3]


def test_full_neighborhoods_are_those_of_the_graph() -> None:
    """Against PyG's search of the whole graph: of nodes and links, directional and induced."""
    data = homogeneous()
    ids = torch.tensor([3, 50])
    (batch,) = NeighborLoader(data, [-1, -1], ids, batch_size=2)
    within_two, _, _, _ = k_hop_subgraph(ids, 2, data.edge_index)
    within_one, _, _, _ = k_hop_subgraph(ids, 1, data.edge_index)
    assert sorted(batch.n_id.tolist()) == within_two.tolist()
    leads_to = torch.isin(data.edge_index[1], within_one)
    assert sorted(batch.e_id.tolist()) == leads_to.nonzero().view(-1).tolist()
    assert torch.equal(batch.n_id[batch.edge_index], data.edge_index[:, batch.e_id])
    (batch,) = NeighborLoader(data, [-1], ids, subgraph_type="induced", batch_size=2)
    _, _, between = subgraph(within_one, data.edge_index, return_edge_mask=True, num_nodes=NUM_NODES)
    assert sorted(batch.e_id.tolist()) == between.nonzero().view(-1).tolist()
    assert "num_sampled_edges" not in batch
    links = data.edge_index[:, :4]
    (batch,) = LinkNeighborLoader(data, [-1], links, subgraph_type="induced", batch_size=4)
    nodes, _, _, _ = k_hop_subgraph(links.reshape(-1).unique(), 1, data.edge_index)
    _, _, between = subgraph(nodes, data.edge_index, return_edge_mask=True, num_nodes=NUM_NODES)
    assert sorted(batch.e_id.tolist()) == between.nonzero().view(-1).tolist()
    assert torch.equal(batch.n_id[batch.edge_label_index], links)


@pytest.mark.parametrize("make", [homogeneous, typed])
def test_seeds_that_come_twice_are_the_first_nodes_of_induced_subgraphs(make: Any) -> None:
    """A sampler that draws with replacement has them. Each of them gets all edges; these begin at the first of them."""
    data, ids = make(), torch.tensor([3, 30, 3, 3, 7])
    is_hetero = isinstance(data, HeteroData)
    given = (PAPER, ids) if is_hetero else ids
    for settings in ({}, {"prefetch": 0, "neighbor_sampler": PyGSampler(data, [-1], subgraph_type="induced")}):
        (batch,) = NeighborLoader(data, [-1], given, subgraph_type="induced", batch_size=5, **settings)
        seeds = batch[PAPER] if is_hetero else batch
        assert torch.equal(seeds.n_id[: seeds.batch_size], ids)
        assert len(seeds.n_id.unique()) == len(seeds.n_id) - 2
        for key in data.edge_types if is_hetero else [None]:
            edges, found = (data, batch) if key is None else (data[key], batch[key])
            source, target = (seeds, seeds) if key is None else (batch[key[0]], batch[key[2]])
            pairs = torch.stack([source.n_id[found.edge_index[0]], target.n_id[found.edge_index[1]]])
            assert torch.equal(pairs, edges.edge_index[:, found.e_id])
            assert not set(found.edge_index[0].tolist()) & ({2, 3} if source is seeds else set())
            for place, node in enumerate(target.n_id):
                among = torch.isin(edges.edge_index[0], source.n_id) & (edges.edge_index[1] == node)
                own = found.e_id[found.edge_index[1] == place]
                assert sorted(own.tolist()) == among.nonzero().view(-1).tolist()


def test_bidirectional_edges_have_their_reverse() -> None:
    data = homogeneous()
    for batch in NeighborLoader(data, [2, 2], subgraph_type="bidirectional", batch_size=10, seed=1):
        edges = set(map(tuple, batch.edge_index.t().tolist()))
        assert edges == {(t, s) for s, t in edges}
        assert len(edges) == batch.edge_index.size(1)


def test_backward_sampling_follows_edges_from_their_source() -> None:
    for data in (homogeneous(), typed()):
        is_hetero = isinstance(data, HeteroData)
        ids = torch.tensor([1, 8])
        sampler = PyGSampler(data, [-1], sample_direction="backward")
        (batch,) = PygNodeLoader(data, sampler, (AUTHOR, ids) if is_hetero else ids, batch_size=2)
        edges, found = (data[WRITES], batch[WRITES]) if is_hetero else (data, batch)
        leaves = torch.isin(edges.edge_index[0], ids).nonzero().view(-1)
        assert sorted(found.e_id.tolist()) == leaves.tolist()
        source, target = (batch[AUTHOR].n_id, batch[PAPER].n_id) if is_hetero else (batch.n_id, batch.n_id)
        pairs = torch.stack([source[found.edge_index[0]], target[found.edge_index[1]]])
        assert torch.equal(pairs, edges.edge_index[:, found.e_id])


# --- times -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", ["uniform", "last"])
@pytest.mark.parametrize("time_attr", ["time", "edge_time"])
def test_no_edge_is_later_than_its_seed(time_attr: str, strategy: str) -> None:
    data = homogeneous()
    times = torch.arange(NUM_NODES) % 25
    loader = NeighborLoader(
        data, [3, 2], input_time=times, time_attr=time_attr, temporal_strategy=strategy, batch_size=7, seed=2
    )
    seen = 0
    for batch in loader:
        assert torch.equal(batch.seed_time, times[batch.input_id])
        limit = batch.seed_time[batch.batch[batch.edge_index[0]]]
        neighbors = batch.n_id[batch.edge_index[0]]
        of_edges = data.edge_time[batch.e_id] if time_attr == "edge_time" else data.time[neighbors]
        assert bool((of_edges <= limit).all())
        assert torch.equal(batch[time_attr], data[time_attr][batch.e_id if time_attr == "edge_time" else batch.n_id])
        seen += len(limit)
    assert seen > 100


def test_seeds_without_times_have_their_nodes_own() -> None:
    data = typed()
    for batch in NeighborLoader(data, [4, 3], PAPER, time_attr="time", batch_size=8):
        assert "seed_time" not in batch[PAPER]  # as PyG's, which has those that were given
        seed_times = batch[PAPER].time[: batch[PAPER].batch_size]
        for key in (PAPER, AUTHOR):
            assert bool((batch[key].time <= seed_times[batch[key].batch]).all())


def test_times_of_links() -> None:
    data = homogeneous()
    loader = LinkNeighborLoader(
        data, [3], data.edge_index[:, :40], edge_label_time=data.edge_time[:40], time_attr="edge_time",
        neg_sampling="binary", batch_size=8,
    )  # fmt: skip
    for batch in loader:
        positives = data.edge_time[batch.input_id]
        assert torch.equal(batch.edge_label_time, torch.cat([positives, positives]))
        assert bool((data.edge_time[batch.e_id] <= positives[batch.batch[batch.edge_index[1]]]).all())


# --- what is given as seeds, links and fan-outs ------------------------------------------------------------------

INPUT_NODES: dict[str, tuple[Any, list[int]]] = {
    "None": (None, list(range(NUM_NODES))),
    "a list": ([4, 9, 1], [4, 9, 1]),
    "two numbers": ([4, 9], [4, 9]),
    "a range": (range(3, 8), [3, 4, 5, 6, 7]),
    "an array": (np.array([4, 9, 1], dtype=np.int32), [4, 9, 1]),
    "int32": (torch.tensor([4, 9], dtype=torch.int32), [4, 9]),
    "a mask": (torch.arange(NUM_NODES) % 9 == 4, list(range(4, NUM_NODES, 9))),
    "a mask in an array": (np.arange(NUM_NODES) % 9 == 4, list(range(4, NUM_NODES, 9))),
    "none at all": ([], []),
}


@pytest.mark.parametrize("form", INPUT_NODES)
def test_forms_of_input_nodes(form: str) -> None:
    given, expected = INPUT_NODES[form]
    batches = list(NeighborLoader(homogeneous(), [2], given, batch_size=4))
    assert [node for batch in batches for node in batch.n_id[: batch.batch_size].tolist()] == expected
    ids = [position for batch in batches for position in batch.input_id.tolist()]
    assert ids == (expected if "mask" in form else list(range(len(expected))))


@pytest.mark.parametrize("given", [PAPER, (PAPER, None), (PAPER, range(40)), [PAPER, torch.arange(40)]])
def test_forms_of_typed_input_nodes(given: Any) -> None:
    seeds = [node for batch in NeighborLoader(typed(), [2], given, batch_size=9)
             for node in batch[PAPER].n_id[: batch[PAPER].batch_size].tolist()]  # fmt: skip
    assert seeds == list(range(40))


def test_names_of_seeds() -> None:
    data = homogeneous()
    names = torch.tensor([90, 91, 92])
    (batch,) = NodeLoader(data, PyGSampler(data, [2]), [4, 9, 1], input_id=names, batch_size=3)
    assert torch.equal(batch.input_id, names)


@pytest.mark.parametrize(
    "given", [WRITES, list(WRITES), (AUTHOR, PAPER), (WRITES, None), ((AUTHOR, PAPER), None)], ids=str
)
def test_forms_of_typed_links(given: Any) -> None:
    data = typed()
    for source in (data, stores(data)):
        (batch,) = LinkNeighborLoader(source, [2], given, batch_size=180)
        ends = torch.stack([batch[key].n_id[row] for key, row in
                            zip((AUTHOR, PAPER), batch[WRITES].edge_label_index, strict=True)])  # fmt: skip
        assert torch.equal(ends, data[WRITES].edge_index)


def test_forms_of_links() -> None:
    data = homogeneous()
    links = data.edge_index[:, :9]
    for given, expected in (
        (None, data.edge_index),
        (links.numpy(), links),
        (links.tolist(), links),
        (links.int(), links),
    ):
        (batch,) = LinkNeighborLoader(data, [2], given, batch_size=NUM_EDGES)
        assert torch.equal(batch.n_id[batch.edge_label_index], expected)


def test_links_of_a_type_that_the_graph_has_no_edges_of() -> None:
    """A model learns to find edges that were taken out of the graph, all of them."""
    data = typed()
    wanted = (AUTHOR, "reviews", PAPER)
    links = torch.stack([torch.arange(6), torch.arange(6) + 30])
    (batch,) = LinkNeighborLoader(data, [2], (wanted, links), neg_sampling="binary", batch_size=6)
    found = batch[wanted].edge_label_index[:, :6]
    assert torch.equal(torch.stack([batch[AUTHOR].n_id[found[0]], batch[PAPER].n_id[found[1]]]), links)
    assert batch[wanted].edge_label.tolist() == [1.0] * 6 + [0.0] * 6


@pytest.mark.parametrize(
    "given",
    [[3, 2], NumNeighbors([3, 2]), {CITES: [3, 2], WRITES: [3, 2], REV: [3, 2]}, {CITES: [3, 2], None: [3, 2]},
     NumNeighbors({CITES: [3, 2]}, default=[3, 2])],
    ids=["list", "PyG's", "dict", "default", "PyG's default"],
)  # fmt: skip
def test_forms_of_fanouts(given: Any) -> None:
    data = typed()
    (batch,) = NeighborLoader(data, given, (PAPER, range(5)), batch_size=5, seed=3)
    (expected,) = NeighborLoader(data, [3, 2], (PAPER, range(5)), batch_size=5, seed=3)
    assert_equal(batch, expected)


def test_graphs_without_edges_and_fanouts_without_hops() -> None:
    typed_nodes = HeteroData()
    typed_nodes["a"].x = torch.arange(9.0)[:, None]
    nothing = {"edge_index": torch.empty(2, 0, dtype=torch.int64)}
    for data, seeds, fanouts in (
        (Data(x=torch.arange(9.0)[:, None]), None, [2]),
        (Data(x=torch.arange(9.0)[:, None], **nothing), None, [2]),
        (Data(x=torch.arange(9.0)[:, None], edge_index=torch.tensor([[1, 2], [3, 4]])), None, []),
        (typed_nodes, "a", [2]),
    ):
        for batch in NeighborLoader(data, fanouts, seeds, batch_size=4):
            store = batch if seeds is None else batch[seeds]
            assert torch.equal(store.n_id, store.input_id)
            assert torch.equal(store.x[:, 0], store.n_id.float())
            assert batch.num_edges == 0


# --- partition directories ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_parts", [1, 3])
@pytest.mark.parametrize("name", ["homogeneous", "typed"])
def test_a_partition_directory_is_the_data_that_was_partitioned(name: str, num_parts: int, tmp_path: Path) -> None:
    """Every attribute, with rows and without, of nodes and edges, from all partitions at once."""
    data, typed_graph = DATA[name](), is_typed(name)
    if not typed_graph:
        del data.pairs, data.learned  # whose columns are of nodes by this class of data alone; a model's
        data.node_index, data.edge_index_of = (
            torch.arange(2 * NUM_NODES).view(2, -1),
            torch.arange(NUM_EDGES).view(1, -1),
        )
    partition_pyg(data, tmp_path, num_parts=num_parts, weight_attr="edge_weight", edge_dir="in")
    ids = torch.tensor([7, 3, 24, 11, 0, 19, 5])
    links = torch.stack([torch.arange(6), torch.arange(6) + 10])
    loaders = [
        (NeighborLoader(source, [4, 3], (PAPER, ids) if typed_graph else ids, seed=5, batch_size=3),
         LinkNeighborLoader(source, [3], (WRITES, links) if typed_graph else links, neg_sampling="binary", seed=6,
                            subgraph_type="induced", batch_size=4),
         NeighborLoader(source, [3], PAPER if typed_graph else None, weight_attr="edge_weight", seed=7, batch_size=20))
        for source in (str(tmp_path), data)
    ]  # fmt: skip
    for ours, of_data in zip(*loaders, strict=True):
        for batch, expected in zip(ours, of_data, strict=True):
            found, wanted = flat(batch), flat(expected)
            named = {key for key in wanted if key.split(".")[-1] != "num_nodes"}
            assert named <= found.keys() | {f"{AUTHOR}.x"}
            for key in named & found.keys():
                value = wanted[key]
                same = torch.equal(found[key], value) if isinstance(value, torch.Tensor) else found[key] == value
                assert same, key


# --- loaders as objects -----------------------------------------------------------------------------------------


def test_attributes_of_the_data_may_change_between_batches() -> None:
    """As PyG's examples do for inference: rows go, ids of nodes come."""
    data = homogeneous()
    loader = NeighborLoader(data, [2], batch_size=10)
    assert "x" in next(iter(loader))
    del loader.data.x
    loader.data.n_id = torch.arange(NUM_NODES) + 1000
    batch = next(iter(loader))
    assert "x" not in batch
    assert torch.equal(batch.n_id[:10], torch.arange(1000, 1010))


def test_what_programs_ask_of_a_loader() -> None:
    data = homogeneous()
    loader = NeighborLoader(data, [2], range(30), batch_size=8, num_workers=2, drop_last=True)
    assert str(loader) == "NeighborLoader()"
    assert (loader.dataset, loader.batch_size, loader.num_workers, loader.drop_last) == (range(30), 8, 2, True)
    assert loader.data is data
    assert len(loader) == len(list(loader)) == 3
    assert loader.node_sampler.edge_permutation is None
    assert loader.node_sampler.num_neighbors.values == [2]
    link_loader = LinkNeighborLoader(data, [2], neg_sampling_ratio=1)
    assert str(link_loader) == "LinkNeighborLoader()"
    assert link_loader.neg_sampling.is_binary()
    assert link_loader.dataset == range(NUM_EDGES)
    kinds = {shuffle: type(NeighborLoader(data, [2], shuffle=shuffle).sampler) for shuffle in (False, True)}
    assert kinds == {False: SequentialSampler, True: RandomSampler}


def test_transforms() -> None:
    data, threads = homogeneous(), set()

    def see(batch: Any) -> Any:
        threads.add(threading.current_thread() is threading.main_thread())
        batch.seen = True
        return batch

    def first_hop_only(out: Any) -> Any:
        out.num_sampled_nodes = out.num_sampled_nodes[:2]
        return out

    for per_worker, in_main in ((None, True), (False, True), (True, False)):
        threads.clear()
        loader = NeighborLoader(
            data, [2, 2], transform=see, transform_sampler_output=first_hop_only, filter_per_worker=per_worker,
            num_workers=1, batch_size=20,
        )  # fmt: skip
        for batch in loader:
            assert batch.seen
            assert len(batch.num_sampled_nodes) == 2
        assert threads == {in_main}


@pytest.mark.parametrize("num_workers", [0, 1])
def test_loaders_in_a_zip_loader(num_workers: int) -> None:
    data = homogeneous()
    del data.learned  # PyG's workers share no rows that gradients flow back to

    def loaders() -> list[NeighborLoader]:
        return [NeighborLoader(data, [2], range(20), seed=1), NeighborLoader(data, [3], range(9), seed=2)]

    zipped = loaders()

    def epoch(number: int) -> list[Any]:
        for loader in zipped:
            loader.set_epoch(number)
        return list(ZipLoader(zipped, batch_size=4, num_workers=num_workers))

    for number in (0, 1, 0):
        expected = loaders()
        for loader in expected:
            loader.set_epoch(number)
        for index, pair in enumerate(epoch(number)):
            positions = list(range(9))[4 * index : 4 * index + 4]
            for batch, loader in zip(pair, expected, strict=True):
                assert_equal(batch, loader(positions))


@pytest.mark.filterwarnings("error::UserWarning")
@pytest.mark.parametrize("is_touched", [True, False])
def test_nodes_that_the_edges_alone_tell_of(is_touched: bool, tmp_path: Path) -> None:
    """A type without attributes and ``num_nodes``; PyG says of it that there are None, and samples along its edges."""
    data = HeteroData()
    data["user"].x = torch.rand(10, 2)
    if is_touched:
        data["item"]  # makes its storage
    data["user", "to", "item"].edge_index = torch.tensor([[0, 1], [5, 7]])
    data["item", "to", "user"].edge_index = torch.tensor([[9, 1], [5, 7]])
    data["item", "to", "none"].edge_index = torch.empty(2, 0, dtype=torch.int64)
    node_types = list(data.node_types)
    (batch,) = NeighborLoader(data, [1, 1], ("user", [5, 7]), batch_size=2)
    assert batch["item"].n_id.tolist() == [9, 1]
    (batch,) = NeighborLoader(data, [1], "item", batch_size=20)
    assert (batch["item"].n_id.tolist(), batch["user"].n_id.tolist()) == (list(range(10)), [0, 1])
    assert data.node_types == node_types
    schema = GraphSource.from_pyg(data).to_dataset().schema
    assert (schema.node_types, schema.num_nodes) == (("item", "none", "user"), (10, 0, 10))
    partition_pyg(data, tmp_path, num_parts=2)
    (batch,) = NeighborLoader(tmp_path, [1], ("user", [5, 7]), batch_size=2)
    assert batch["item"].n_id.tolist() == [9, 1]


def test_nodes_of_a_program_that_has_a_sampler_of_its_own() -> None:
    data = HeteroData()
    data["user"].x, data["item"].name = torch.rand(10, 2), "items"
    data["user", "to", "item"].edge_index = torch.tensor([[0, 1], [5, 7]])

    class Foreign:
        def __init__(self) -> None:
            self.edge_permutation, self.inner = None, PyGSampler(data, [1])

        def sample_from_nodes(self, index: Any) -> Any:
            return self.inner.sample_from_nodes(index)

    (batch,) = NodeLoader(data, Foreign(), "item", batch_size=20)
    assert batch["item"].n_id.tolist() == list(range(8))


def test_orders_of_a_program() -> None:
    data = homogeneous()
    seeds = torch.arange(NUM_NODES).flip(0)

    def orders(**keywords: Any) -> list[list[int]]:
        return [batch.n_id[: batch.batch_size].tolist() for batch in NeighborLoader(data, [2], seeds, **keywords)]

    assert orders(sampler=[5, 3, 1], batch_size=2) == [[54, 56], [58]]
    assert orders(sampler=torch.tensor([5, 3, 1]), batch_size=2, drop_last=True) == [[54, 56]]
    assert orders(batch_sampler=[[7], [1, 2]]) == [[52], [58, 57]]
    with pytest.raises(InvalidArgumentError, match="mutually exclusive with shuffle"):
        orders(sampler=[1], shuffle=True)
    loader = NeighborLoader(data, [2], seeds, sampler=[1, 2, 3], prefetch=0)
    state = next(iter(loader)) and loader.state_dict()
    loader.load_state_dict(state)
    assert [batch.n_id[0].item() for batch in loader] == [57, 56]


def test_what_is_no_position_of_a_seed_in_an_order_of_the_program() -> None:
    for order, error in (([0, 1.5], "whole numbers, got"), ([True], "whole numbers, got"), ([0, 9], "of 5 seeds, got")):
        for keywords in ({"sampler": order, "batch_size": 2}, {"batch_sampler": [order]}):
            with pytest.raises(InvalidArgumentError, match=f"sampler, batch_sampler: expected positions .*{error}"):
                list(NeighborLoader(homogeneous(), [2], torch.arange(5), **keywords))


@pytest.mark.parametrize("time_attr", ["time", "edge_time"])
def test_times_of_seeds_of_another_width(time_attr: str) -> None:
    data, times = homogeneous(), torch.arange(NUM_NODES) % 25
    given = {"num_neighbors": [3], "time_attr": time_attr, "seed": 1, "batch_size": 20}
    wide, narrow = (NeighborLoader(data, input_time=values, **given) for values in (times, times.int()))
    for batch, expected in zip(narrow, wide, strict=True):
        assert torch.equal(batch.e_id, expected.e_id)
    links = {**given, "edge_label_index": data.edge_index}
    last = torch.full((NUM_EDGES,), 30)
    wide, narrow = (LinkNeighborLoader(data, edge_label_time=values, **links) for values in (last, last.int()))
    for batch, expected in zip(narrow, wide, strict=True):
        assert torch.equal(batch.e_id, expected.e_id)


def test_seeds_come_from_torch_unless_given() -> None:
    data = homogeneous()

    def order(**keywords: Any) -> list[int]:
        loader = NeighborLoader(data, [2], shuffle=True, batch_size=10, **keywords)
        return torch.cat([batch.input_id for batch in loader]).tolist()

    torch.manual_seed(4)
    first, second = order(), order()
    torch.manual_seed(4)
    assert order() == first != second
    assert sorted(first) == list(range(NUM_NODES))
    of_generator = [order(generator=torch.Generator().manual_seed(8)) for _ in range(2)]
    assert of_generator[0] == of_generator[1] != order(seed=8)


def test_keywords_of_worker_processes() -> None:
    begun: list[int] = []
    for batch_size in (4, NUM_NODES):  # all of them begin, also where there are fewer batches
        list(NeighborLoader(homogeneous(), [2], num_workers=3, worker_init_fn=begun.append, batch_size=batch_size))
        assert sorted(begun) == [0, 1, 2]
        begun.clear()

    def fail(number: int) -> None:
        raise OSError(f"worker {number} has no disk")

    with pytest.raises(OSError, match=r"worker [01] has no disk"):
        list(NeighborLoader(homogeneous(), [2], num_workers=2, worker_init_fn=fail, batch_size=4))
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        for _ in range(2):
            NeighborLoader(homogeneous(), [2], num_workers=1, timeout=5)
    (warning,) = found
    assert "timeout without effect" in str(warning.message)
    with pytest.raises(TypeError, match="no_such_keyword"):
        NeighborLoader(homogeneous(), [2], no_such_keyword=1)


def test_a_worker_init_fn_that_iterates_itself() -> None:
    begun: list[str] = []

    def within(number: int) -> None:
        begun.append(f"within {number}")
        random.seed(1)

    def init(number: int) -> None:
        begun.append(f"init {number}")
        list(NeighborLoader(homogeneous(), [2], num_workers=1, worker_init_fn=within, batch_size=20))

    before = random.getstate()
    list(NeighborLoader(homogeneous(), [2], num_workers=1, worker_init_fn=init, batch_size=20))
    assert begun == ["init 0", "within 0"]
    assert random.getstate() == before


@pytest.mark.parametrize("keywords", [{}, {"num_workers": 0}, {"num_workers": 2}])
def test_what_worker_processes_would_seed_stays(keywords: dict[str, Any]) -> None:
    """PyG calls ``worker_init_fn`` in workers alone, whose generators are not those of the program."""
    begun: list[int] = []

    def seed_worker(number: int) -> None:
        torch.manual_seed(number)
        np.random.seed(number)
        random.seed(number)
        begun.append(number)

    def seed() -> None:
        torch.manual_seed(7)
        np.random.seed(7)
        random.seed(7)

    def draw() -> list[float]:
        return [torch.initial_seed(), random.random(), np.random.rand(), torch.rand(()).item()]

    loader = NeighborLoader(homogeneous(), [2], worker_init_fn=seed_worker, batch_size=20, seed=1, **keywords)
    seed()
    drawn = [draw() for _ in range(2) for _ in loader]
    seed()
    assert drawn == [draw() for _ in range(6)]
    assert sorted(begun) == sorted(2 * list(range(keywords.get("num_workers", 0))))


def test_a_sampler_of_the_program() -> None:
    """Any sampler of PyG's kind; its code runs in no background thread unless that is asked for."""
    data, threads = homogeneous(), set()

    class Counted(PyGSampler):
        def sample_from_nodes(self, index: Any, **options: Any) -> Any:
            threads.add(threading.current_thread())
            return super().sample_from_nodes(index)

    class Foreign:
        """It has what PyG asks of a sampler, and nothing of ours."""

        edge_permutation = None

        def __init__(self) -> None:
            self.inner = Counted(data, [2], seed=3)

        def sample_from_nodes(self, index: Any) -> Any:
            return self.inner.sample_from_nodes(index)

    loader = NodeLoader(data, Foreign(), range(9), batch_size=9)
    (batch,) = loader
    assert threads == {threading.main_thread()}
    assert_equal(batch, NeighborLoader(data, [2], range(9), seed=3)(range(9)))


def test_arguments_by_position_are_pygs() -> None:
    data = homogeneous()
    times = torch.full((4,), 12)
    (batch,) = NeighborLoader(data, [2], torch.arange(4), times, time_attr="time", batch_size=4)
    assert torch.equal(batch.seed_time, times)
    links, label = data.edge_index[:, :4], torch.ones(4)
    (batch,) = LinkNeighborLoader(data, [2], links, label, batch_size=4)
    assert torch.equal(batch.edge_label, label)
    (batch,) = LinkLoader(data, PyGSampler(data, [2]), links, label, batch_size=4)
    assert torch.equal(batch.edge_label, label)


BAD: list[tuple[Any, dict[str, Any], str]] = [
    (homogeneous, {"input_nodes": "paper"}, "input_nodes: unknown node type 'paper'"),
    (homogeneous, {"input_nodes": torch.tensor([0.5])}, "input_nodes: expected integer ids"),
    (homogeneous, {"input_nodes": torch.ones(3) > 0}, r"input_nodes: expected a mask \[60\], got \[3\]"),
    (homogeneous, {"input_time": torch.zeros(60, dtype=torch.int64)}, "input_time, time_attr: expected both"),
    (homogeneous, {"input_nodes": [1], "input_time": torch.zeros(2), "time_attr": "time"}, "input_time: expected a te"),
    (homogeneous, {"time_attr": "when"}, "time_attr: no attribute 'when'"),
    (homogeneous, {"weight_attr": "x"}, "weight_attr: no attribute|weight_attr: expected one weight"),
    (homogeneous, {"num_neighbors": None}, "num_neighbors: expected"),
    (homogeneous, {"num_neighbors": 2}, "num_neighbors: expected a list with one fan-out per hop, got 2"),
    (homogeneous, {"num_neighbors": np.array([[2]])}, "num_neighbors: expected a list"),
    (homogeneous, {"num_neighbors": torch.tensor([2])}, "num_neighbors: expected a list"),
    (homogeneous, {"input_nodes": torch.ones(3).to_sparse()}, "input_nodes: expected a dense tensor"),
    (homogeneous, {"num_workers": "two"}, "keywords of DataLoader: "),
    (lambda: [homogeneous()], {}, "data: expected a Dataset, PyG's Data, .* got list"),
    (lambda: None, {}, "data: expected a Dataset, PyG's Data, .* got NoneType"),
    (homogeneous, {"num_neighbors": [-2]}, "num_neighbors: expected each fan-out"),
    (homogeneous, {"subgraph_type": "both"}, "subgraph_type: expected one of"),
    (homogeneous, {"subgraph_type": "induced", "disjoint": True}, "disjoint, temporal_strategy: an induced subgraph"),
    (homogeneous, {"batch_size": None}, "batch_size: expected an integer, got None"),
    (homogeneous, {"persistent_workers": True, "num_workers": 0}, "persistent_workers"),
    (typed, {}, r"input_nodes: expected a node type or \(node type, ids\), got None; the data have"),
    (typed, {"input_nodes": torch.arange(3)}, r"input_nodes: expected a node type or \(node type, ids\), got Tensor"),
    (typed, {"input_nodes": {PAPER: [1]}}, r"input_nodes: expected a node type or \(node type, ids\), got dict"),
    (typed, {"num_neighbors": {WRITES: 3, None: [2]}}, r"num_neighbors: expected a list .*hop for \('author'.*, got 3"),
    (typed, {"num_neighbors": {WRITES: [3], None: 2}}, "num_neighbors: expected a list .*for the other types, got 2"),
    (typed, {"num_neighbors": {3: [3]}}, "num_neighbors: .*invalid edge type"),
    (typed, {"input_nodes": "venue"}, "input_nodes: unknown node type 'venue'"),
    (homogeneous, {"neighbor_sampler": "mine"}, "node_sampler: expected a sampler as PyG's BaseSampler"),
    (homogeneous, {"weight_attr": "y"}, "weight_attr: expected one weight for each edge, got 'y', which nodes have"),
    (too_few_nodes, {"input_nodes": PAPER}, "edge_index.*cites.*: row.*: node id .* is outside"),
    (homogeneous, {"input_time": [1] * NUM_NODES, "time_attr": "time"}, "input_time: expected a ten"),
    (typed, {"input_nodes": PAPER, "num_neighbors": {CITES: [2]}}, "num_neighbors: expected fan-outs for every"),
]  # fmt: skip


@pytest.mark.parametrize(("make", "options", "message"), BAD, ids=[str(i) for i in range(len(BAD))])
def test_bad_arguments(make: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        NeighborLoader(make(), **{"num_neighbors": [2], **options})


def test_positions_of_one_batch() -> None:
    """As numbers, or as a mask of the seeds; numbers that are none are no positions."""
    loader = NeighborLoader(homogeneous(), [0], range(10, 20))
    for given in ([2, 3], range(2, 4), np.array([2, 3]), (torch.arange(10) // 2 == 1)):
        assert loader(given).n_id.tolist() == [12, 13]
    assert loader([]).batch_size == 0
    wrong: Any
    for wrong in (torch.tensor([1.5]), torch.ones(3, dtype=torch.bool), 3, slice(0, 3), None, ["a"], [[1, 2]]):
        with pytest.raises(
            InvalidArgumentError, match=r"index: expected positions of seeds, int \[n\], or a mask \[10\], got"
        ):
            loader(wrong)


def test_positions_of_links_are_flattened_as_in_pyg() -> None:
    data = homogeneous()
    loader = LinkNeighborLoader(data, [-1])
    assert_equal(loader([[1, 2], [3, 4]]), loader([1, 2, 3, 4]))
    with pytest.raises(InvalidArgumentError, match=r"index: expected positions of seeds.*, got torch.int64 \[\]"):
        loader(3)


@pytest.mark.parametrize(
    ("kind", "make", "arguments", "message"),
    [
        (HGTLoader, typed, ([2],), r"HGTLoader.__init__\(\) missing a required argument: 'input_nodes'"),
        (LinkNeighborLoader, homogeneous, (), r"LinkNeighborLoader.__init__\(\) missing .* 'num_neighbors'"),
        (NodeLoader, homogeneous, (), r"NodeLoader.__init__\(\) missing .* 'node_sampler'"),
        (NeighborLoader, homogeneous, range(40), r"NeighborLoader.__init__\(\) too many positional arguments"),
    ],
)
def test_arguments_that_are_missing(kind: Any, make: Any, arguments: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        kind(make(), *arguments)


def test_links_as_a_pair_of_tensors() -> None:
    data = homogeneous()
    links = data.edge_index[:, :7]
    pairs = LinkNeighborLoader(data, [2], tuple(links), batch_size=7, seed=1)
    assert_equal(next(iter(pairs)), next(iter(LinkNeighborLoader(data, [2], links, batch_size=7, seed=1))))
    for wrong in ("all", (links[0], links[1, :3])):
        with pytest.raises(InvalidArgumentError, match=r"edge_label_index: expected links \[2, n\], got"):
            LinkNeighborLoader(data, [2], wrong)


def test_bad_links() -> None:
    data, links = homogeneous(), homogeneous().edge_index[:, :3]
    for options, message in (
        ({"edge_label": torch.ones(2)}, "edge_label: expected a tensor with one entry for each of 3 links"),
        ({"edge_label": torch.ones(3), "neg_sampling": "triplet"}, "edge_label: expected None with triplet"),
        ({"edge_label_time": torch.ones(3)}, "edge_label_time, time_attr: expected both or none"),
        ({"time_attr": "time"}, "edge_label_time, time_attr: expected both or none"),
        ({"neg_sampling": "most"}, "neg_sampling:"),
    ):
        with pytest.raises(InvalidArgumentError, match=message):
            LinkNeighborLoader(data, [2], links, **options)
    with pytest.raises(
        InvalidArgumentError, match="link_sampler: expected a sampler as PyG's BaseSampler is one, with"
    ):
        LinkLoader(data, "mine")
    with pytest.raises(InvalidArgumentError, match="edge_label_index: expected an edge type"):
        LinkNeighborLoader(typed(), [2])
    with pytest.raises(InvalidArgumentError, match="edge_label_index: expected one edge type"):
        LinkNeighborLoader(typed(), [2], ("venue", PAPER))
    with pytest.raises(UnknownIdError, match="60"):
        next(iter(LinkNeighborLoader(data, [2], links + 60)))


def test_directed_is_an_older_name() -> None:
    data = homogeneous()
    with pytest.warns(UserWarning, match="subgraph_type='induced'"):
        (batch,) = NeighborLoader(data, [3], range(4), directed=False, batch_size=4, seed=1)
    (expected,) = NeighborLoader(data, [3], range(4), subgraph_type="induced", batch_size=4, seed=1)
    assert_equal(batch, expected)


def test_nothing_is_said_of_missing_libraries() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        list(NeighborLoader(homogeneous(), [2], range(4), batch_size=2, num_workers=1))


def test_distributed_loaders_know_pygs_names() -> None:
    """Induced subgraphs of nodes and links, and PyG's ``NegativeSampling``: as the loader of PyG's data gives them."""
    data = homogeneous()
    dataset = DistDataset.from_dataset(graph_of_pyg(data))
    options: dict[str, Any] = {"batch_size": 6, "with_edge": True, "random_seed": 4}
    links, negatives = data.edge_index[:, :9], PygNegatives("binary", 2.0)
    pairs: list[tuple[Any, Any]] = [
        (DistNeighborLoader(dataset, [3], torch.arange(9), subgraph_type="induced", **options),
         NeighborLoader(data, [3], range(9), subgraph_type="induced", batch_size=6, seed=4)),
        (DistLinkNeighborLoader(dataset, [3], edge_label_index=links, neg_sampling=negatives, subgraph_type="induced",
                                **options),
         LinkNeighborLoader(data, [3], links, neg_sampling=negatives, subgraph_type="induced", batch_size=6, seed=4)),
    ]  # fmt: skip
    for distributed, local in pairs:
        for batch, expected in zip(distributed, local, strict=True):
            for name in ("n_id", "e_id", "edge_index", "input_id"):
                assert torch.equal(batch[name], expected[name]), name
            assert batch.edge_index.size(1) > 0
            assert ("edge_label_index" in expected) == isinstance(distributed, DistLinkNeighborLoader)
            if "edge_label_index" in expected:
                assert torch.equal(batch.edge_label_index, expected.edge_label_index)
                assert torch.equal(batch.edge_label, expected.edge_label)
        distributed.shutdown()
    with pytest.raises(InvalidArgumentError, match="subgraph_type: expected 'directional' or 'induced' here"):
        DistNeighborLoader(dataset, [3], torch.arange(9), subgraph_type="bidirectional")
