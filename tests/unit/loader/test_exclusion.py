"""Links that are predicted pass no messages: what ``exclude`` leaves out of a batch, and what it leaves as it is."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.data import Data, HeteroData
from torch_geometric.sampler import BaseSampler

from graphlearn_dist import _C
from graphlearn_dist.core import to_tensor
from graphlearn_dist.data import Dataset
from graphlearn_dist.distributed.dist_dataset import DistDataset
from graphlearn_dist.distributed.partitions.partition_service import PartitionService
from graphlearn_dist.distributed.sampling.batches import PartitionedBatches
from graphlearn_dist.errors import InvalidArgumentError, UnknownIdError
from graphlearn_dist.loader import LinkLoader, LinkNeighborLoader, get_edge_label_index
from graphlearn_dist.sampler import EdgeSamplerInput, NeighborSampler, SamplingConfig, SamplingType
from graphlearn_dist.sampler.batches import LocalBatches
from graphlearn_dist.sampler.inputs import resolve_input
from tests.support.direct_peers import DirectPeers
from tests.support.graphs import EDGE_TYPES, TestGraph, make_dataset, random_graph, typed_graph, with_times
from tests.support.oracle import load_partitions, write_partitions

BUYS, REV_BUYS, KNOWS = EDGE_TYPES
HOMOGENEOUS = random_graph(60, 400, 3, explicit_edge_ids=True)
TYPED = typed_graph(40, 20, 200, 4)
COMMON: dict[str, Any] = {"batch_size": 16, "shuffle": True, "with_edge": True, "prefetch": 0}

DRAWS: dict[str, dict[str, Any]] = {
    "uniform": {"num_neighbors": [6, 4]},
    "all": {"num_neighbors": [-1, -1]},
    "replaced": {"num_neighbors": [5], "replace": True},
    "labor": {"num_neighbors": [3, 3], "strategy": "labor"},
    "disjoint": {"num_neighbors": [4, 3], "disjoint": True},
}


def reverse_ids(graph: TestGraph) -> torch.Tensor:
    """By edge id the id of an edge that runs back, where there is one; -1 elsewhere."""
    source, target = graph.edges[None].tolist()
    ids = graph.ids_of(None).tolist()
    by_ends = {(a, b): edge for a, b, edge in zip(source, target, ids, strict=True)}
    reverse = torch.full((graph.num_edge_ids(None),), -1)
    for a, b, edge in zip(source, target, ids, strict=True):
        reverse[edge] = by_ends.get((b, a), -1)
    return reverse


def filtered(batch: Any, edge_type: Any, excluded: np.ndarray) -> dict[str, Any]:
    """By the definition: the edges of a batch made without exclusion, one by one, without those of excluded ids."""
    store = batch if edge_type is None else batch[edge_type]
    keep = [i for i, edge in enumerate(store.e_id.tolist()) if edge not in set(excluded.tolist())]
    bounds = np.cumsum([0, *torch.as_tensor(store.num_sampled_edges).tolist()])
    per_hop = [sum(low <= i < high for i in keep) for low, high in itertools.pairwise(bounds)]
    found = {"edge_index": store.edge_index[:, keep], "e_id": store.e_id[keep], "per_hop": per_hop}
    return found | ({"edge_attr": store.edge_attr[keep]} if "edge_attr" in store else {})


def assert_filtered(batch: Any, plain: Any, excluded: dict[Any, np.ndarray], edge_types: tuple[Any, ...]) -> int:
    """The batch is the plain one without these edges; how many it lacks."""
    lost = 0
    for edge_type in edge_types:
        store, old = (batch, plain) if edge_type is None else (batch[edge_type], plain[edge_type])
        wanted = filtered(plain, edge_type, excluded.get(edge_type, np.empty(0, dtype=np.int64)))
        assert torch.as_tensor(store.num_sampled_edges).tolist() == wanted.pop("per_hop")
        for name, value in wanted.items():
            assert torch.equal(store[name], value), (edge_type, name)
        lost += old.e_id.numel() - store.e_id.numel()
    for name in (None,) if edge_types == (None,) else ("user", "item"):
        mine, theirs = (batch, plain) if name is None else (batch[name], plain[name])
        assert torch.equal(mine.n_id, theirs.n_id)
    return lost


@pytest.mark.parametrize("draw", DRAWS)
@pytest.mark.parametrize("mode", ["self", "reverse_id"])
def test_a_batch_lacks_its_links_and_their_reverses(draw: str, mode: str) -> None:
    data, reverse = make_dataset(HOMOGENEOUS, "in"), reverse_ids(HOMOGENEOUS)
    ids, links = HOMOGENEOUS.ids_of(None), HOMOGENEOUS.edges[None]
    given = {"edge_label_index": links, "neg_sampling": "binary", "temporal_strategy": None, **COMMON, **DRAWS[draw]}
    excluding = {"exclude": mode, "edge_label_id": ids}
    if mode == "reverse_id":
        excluding["reverse_eids"] = reverse
    lost = 0
    plain = LinkNeighborLoader(data, **given)
    for batch, whole in zip(LinkNeighborLoader(data, **given, **excluding), plain, strict=True):
        own = ids[whole.input_id].numpy()
        excluded = np.concatenate([own, reverse[own].numpy()]) if mode == "reverse_id" else own
        lost += assert_filtered(batch, whole, {None: excluded}, (None,))
        assert torch.equal(batch.edge_label_index, whole.edge_label_index)
    assert lost > 100


@pytest.mark.parametrize("mode", ["self", "reverse_id", "reverse_types"])
def test_types(mode: str) -> None:
    data, ids = make_dataset(TYPED, "in"), TYPED.ids_of(BUYS)
    given = {"num_neighbors": [5, 3], "edge_label_index": (BUYS, TYPED.edges[BUYS]), **COMMON}
    excluding: dict[str, Any] = {"exclude": mode, "edge_label_id": ids}
    if mode == "reverse_types":
        excluding["reverse_etypes"] = {BUYS: REV_BUYS}
    if mode == "reverse_id":
        excluding["reverse_eids"] = {BUYS: ids.flip(0)}
    lost = 0
    for batch, whole in zip(
        LinkNeighborLoader(data, **given, **excluding), LinkNeighborLoader(data, **given), strict=True
    ):
        own = ids[whole[BUYS].input_id].numpy()
        excluded = {BUYS: np.concatenate([own, ids.flip(0).numpy()[own]]) if mode == "reverse_id" else own}
        if mode == "reverse_types":
            excluded[REV_BUYS] = own
        lost += assert_filtered(batch, whole, excluded, EDGE_TYPES)
    assert lost > 20


def test_all_edges_know_their_ids() -> None:
    """Links that are named by their type are excluded as those that are given with their ids."""
    data = make_dataset(HOMOGENEOUS, "in")
    _, links = get_edge_label_index(data, None)
    given = LinkNeighborLoader(
        data,
        [4],
        edge_label_index=links,
        edge_label_id=HOMOGENEOUS.ids_of(None).sort().values,
        exclude="self",
        **COMMON,
    )
    for named, with_ids in zip(LinkNeighborLoader(data, [4], exclude="self", **COMMON), given, strict=True):
        assert torch.equal(named.e_id, with_ids.e_id)
        assert torch.equal(named.edge_index, with_ids.edge_index)


def test_parallel_edges_stay() -> None:
    """Edges are known by their ids, as in DGL: another one between the same ends still passes messages."""
    graph = TestGraph({None: 3}, {None: torch.tensor([[0, 0, 1], [1, 1, 2]])}, {})
    loader = LinkNeighborLoader(
        make_dataset(graph, "in"),
        [-1],
        edge_label_index=torch.tensor([[0], [1]]),
        edge_label_id=torch.tensor([1]),
        exclude="self",
    )
    assert next(iter(loader)).e_id.tolist() == [0]


def test_links_that_are_no_edges_exclude_nothing() -> None:
    data, links = make_dataset(HOMOGENEOUS, "in"), HOMOGENEOUS.edges[None]
    given = {"num_neighbors": [-1], "edge_label_index": links, **COMMON}
    none = torch.full((links.size(1),), -1)
    loader = LinkNeighborLoader(data, **given, exclude="self", edge_label_id=none)
    for batch, whole in zip(loader, LinkNeighborLoader(data, **given), strict=True):
        assert torch.equal(batch.e_id, whole.e_id)


def test_induced_edges_and_times() -> None:
    """Edges between sampled nodes, and those that a link's time allows, are left out as well."""
    graph = with_times(HOMOGENEOUS, 4)
    links, ids = graph.edges[None], graph.ids_of(None)
    loader = LinkNeighborLoader(
        make_dataset(graph, "in"),
        [-1],
        edge_label_index=links,
        edge_label_time=graph.times_of(None) + 1,
        exclude="self",
        edge_label_id=ids,
        **COMMON,
    )
    for batch in loader:
        assert not np.isin(batch.e_id, ids[batch.input_id]).any()
    config = SamplingConfig(
        SamplingType.LINK, [3], 16, True, False, True, True, False, False, "in", 0, induced=True, temporal_strategy=None
    )
    inputs = EdgeSamplerInput(*links, excluded=ids)
    batches = LocalBatches(make_dataset(HOMOGENEOUS, "in"), inputs, config)
    whole = LocalBatches(make_dataset(HOMOGENEOUS, "in"), EdgeSamplerInput(*links), config)
    for index in range(batches.schedule.num_batches):
        batch, all_edges = batches.make(0, index), whole.make(0, index).subgraph.edge_ids[0]
        assert all_edges is not None
        wanted = all_edges[~torch.isin(all_edges, ids[batch.input_positions])]
        assert batch.subgraph.edge_ids[0] is not None
        assert torch.equal(batch.subgraph.edge_ids[0], wanted)
        assert wanted.numel() < all_edges.numel()


def test_no_excluded_edge_in_a_thousand_batches(tmp_path: Path) -> None:
    """Of the whole graph and of three partitions that ask each other, in forty epochs; and these are the same."""
    reverse, ids = reverse_ids(HOMOGENEOUS), HOMOGENEOUS.ids_of(None)
    inputs = EdgeSamplerInput(*HOMOGENEOUS.edges[None], excluded=ids, excluded_reverse=reverse[ids])
    config = SamplingConfig(SamplingType.LINK, [5, 3], 16, True, False, True, False, False, False, "in", -7)
    local = LocalBatches(make_dataset(HOMOGENEOUS, "in"), inputs, config)
    datasets = load_partitions(write_partitions(HOMOGENEOUS, tmp_path, "random", 3, "in"), 3)
    services = [PartitionService(dataset) for dataset in datasets]
    peers = DirectPeers(services)
    asked = PartitionedBatches(datasets[0], inputs, config, [services[0]], peers)
    checked = 0
    for epoch in range(40):
        for index in range(local.schedule.num_batches):
            batch = local.make(epoch, index)
            edge_ids, own = batch.subgraph.edge_ids[0], ids[batch.input_positions]
            assert edge_ids is not None
            assert edge_ids.numel() > 0
            assert not np.isin(edge_ids, np.concatenate([own, reverse[own]])).any()
            far = run(asked.make(epoch, index))
            assert torch.equal(far.subgraph.edge_index[0], batch.subgraph.edge_index[0])
            assert far.subgraph.edge_ids[0] is not None
            assert torch.equal(far.subgraph.edge_ids[0], edge_ids)
            checked += 1
    assert checked == 1000


def run(making: Any) -> Any:
    """What a coroutine that never waits gives."""
    try:
        making.send(None)
    except StopIteration as stop:
        return stop.value
    raise AssertionError("it waited")


def test_edge_ids_are_asked_for_where_something_is_excluded(tmp_path: Path) -> None:
    datasets = load_partitions(write_partitions(HOMOGENEOUS, tmp_path, "random", 2, "in"), 2)
    services = [PartitionService(dataset) for dataset in datasets]
    for with_edge in (False, True):
        config = SamplingConfig(SamplingType.LINK, [5], 16, True, False, with_edge, False, False, False, "in", 7)
        inputs = EdgeSamplerInput(*HOMOGENEOUS.edges[None])
        if with_edge:
            inputs.excluded = HOMOGENEOUS.ids_of(None)
        peers = DirectPeers(services)
        run(PartitionedBatches(datasets[0], inputs, config, [services[0]], peers).make(0, 0))
        assert [query.arguments[1] for query in peers.asked_as("hop")] == [with_edge]


def test_data_of_pyg() -> None:
    """Ids are positions among the edges of the data; links that are named by their type know theirs."""
    edges = HOMOGENEOUS.edges[None]
    data, ids = Data(edge_index=edges, num_nodes=60), torch.arange(edges.size(1))
    given: dict[str, Any] = {"num_neighbors": [6, 4], "batch_size": 16, "shuffle": True, "seed": 3}
    lost = 0
    named = LinkNeighborLoader(data, **given, exclude="self")
    loaders = (
        LinkNeighborLoader(data, **given),
        LinkNeighborLoader(data, **given, edge_label_index=edges, edge_label_id=ids, exclude="self"),
        LinkNeighborLoader(data, **given, exclude="reverse_id", reverse_eids=ids.flip(0)),
        named,
    )
    for plain, batch, both, by_type in zip(*loaders, strict=True):
        lost += assert_filtered(batch, plain, {None: plain.input_id.numpy()}, (None,))
        assert_filtered(both, plain, {None: torch.cat([plain.input_id, ids.flip(0)[plain.input_id]]).numpy()}, (None,))
        assert torch.equal(by_type.edge_index, batch.edge_index)
    assert lost > 100
    assert named.state_dict() != loaders[0].state_dict()
    typed = HeteroData({"user": {"num_nodes": 40}, "item": {"num_nodes": 20}})
    typed[BUYS].edge_index, typed[REV_BUYS].edge_index = TYPED.edges[BUYS], TYPED.edges[BUYS].flip(0)
    reverse = {"exclude": "reverse_types", "reverse_etypes": {BUYS: REV_BUYS}, "edge_label_index": BUYS}
    for batch in LinkNeighborLoader(typed, [-1, -1], batch_size=8, **reverse):
        own = batch[BUYS].input_id
        assert not torch.isin(torch.cat([batch[BUYS].e_id, batch[REV_BUYS].e_id]), own).any()
    with pytest.raises(InvalidArgumentError, match="exclude: expected None with a sampler that knows nothing of it"):
        LinkLoader(data, ForeignSampler(), edge_label_index=None, exclude="self")


class ForeignSampler(BaseSampler):  # type: ignore[misc]  # PyG is not typed
    """A sampler of a program's own."""

    def sample_from_nodes(self, index: Any, **kwargs: Any) -> Any:
        raise NotImplementedError

    def sample_from_edges(self, index: Any, neg_sampling: Any = None) -> Any:
        raise NotImplementedError


def test_edges_are_dropped_by_their_ids() -> None:
    draw = torch.Generator().manual_seed(5)
    for count in (0, 1, 7, 500):
        ids, edges = torch.randint(0, 1 << 40, (5000,), generator=draw), torch.randint(0, 99, (2, 5000), generator=draw)
        excluded = torch.cat([ids[torch.randint(0, 5000, (count,), generator=draw)], torch.tensor([-1])])
        is_dropped = np.isin(ids, excluded)
        kept, kept_ids, dropped = map(to_tensor, _C.drop_edges(edges, ids, excluded))
        assert np.array_equal(dropped, is_dropped.nonzero()[0])
        assert np.array_equal(kept, edges.numpy()[:, ~is_dropped])
        assert np.array_equal(kept_ids, ids.numpy()[~is_dropped])
    with pytest.raises(InvalidArgumentError, match=r"edge_index: expected int64 \[2, 5000\]"):
        _C.drop_edges(edges[:, 1:].contiguous(), ids, ids)


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"exclude": "all"}, "exclude: expected one of"),
        ({"exclude": "self", "edge_label_id": None}, "edge_label_id: expected the ids of the links"),
        ({"exclude": None}, "edge_label_id: expected the ids of the links with exclude, and None without"),
        ({"exclude": "reverse_id"}, "reverse_eids: expected it with exclude='reverse_id', got None"),
        ({"reverse_eids": torch.zeros(3, dtype=torch.int64)}, "reverse_eids: expected None with exclude='self'"),
        ({"edge_label_id": torch.zeros(3, dtype=torch.int64)}, "edge_label_id: expected one id for each of 400 links"),
        ({"edge_label_id": torch.zeros(400)}, "edge_label_id: expected dtype int64 or int32"),
        ({"exclude": "reverse_types", "reverse_etypes": {BUYS: REV_BUYS}}, "reverse_etypes: expected the reverse of"),
        ({"edge_label_index": None}, "edge_label_id: expected None, as all edges of a type know theirs"),
    ],
)
def test_refused(changes: dict[str, Any], error: str) -> None:
    links = {"edge_label_index": HOMOGENEOUS.edges[None], "edge_label_id": HOMOGENEOUS.ids_of(None), "exclude": "self"}
    with pytest.raises(InvalidArgumentError, match=error):
        LinkNeighborLoader(make_dataset(HOMOGENEOUS, "in"), [3], **{**links, **changes})


def test_refused_ids_and_types() -> None:
    data, links = make_dataset(HOMOGENEOUS, "in"), HOMOGENEOUS.edges[None]
    ids = HOMOGENEOUS.ids_of(None)
    with pytest.raises(UnknownIdError, match="edge_label_id: expected ids of edges, or -1 for none, got -2"):
        LinkNeighborLoader(data, [3], edge_label_index=links, edge_label_id=ids - 2 - ids.min(), exclude="self")
    with pytest.raises(UnknownIdError, match="reverse_eids: expected an entry for edge"):
        LinkNeighborLoader(
            data, [3], edge_label_index=links, edge_label_id=ids, exclude="reverse_id", reverse_eids=ids[:5].clone()
        )
    with pytest.raises(InvalidArgumentError, match=r"reverse_etypes: expected a type from 'item' to 'user'"):
        LinkNeighborLoader(
            make_dataset(TYPED, "in"),
            [3],
            edge_label_index=BUYS,
            exclude="reverse_types",
            reverse_etypes={BUYS: KNOWS},
        )
    sampler = NeighborSampler.of_dataset(data, [3])
    with pytest.raises(InvalidArgumentError, match="with_edge: expected True where edges of links are excluded"):
        sampler.sample_from_edges(EdgeSamplerInput(*links, excluded=ids))


def test_ids_beyond_the_edges_are_refused(tmp_path: Path) -> None:
    """By what knows how many edges there are: a graph held whole, PyG's data, and partitions, of which one is asked."""
    links, ids = HOMOGENEOUS.edges[None], HOMOGENEOUS.ids_of(None)
    count = HOMOGENEOUS.num_edge_ids(None)
    last, beyond = (torch.full((links.size(1),), edge) for edge in (count - 1, count))
    partition = load_partitions(write_partitions(HOMOGENEOUS, tmp_path, "random", 2, "in"), 2)[0]
    whole = make_dataset(HOMOGENEOUS, "in")
    message = rf"edge_label_id \(excluded\): expected ids of edges, which are below {count}, .* got {count}"
    for data in (whole, partition, DistDataset.from_dataset(whole)):
        resolve_input(EdgeSamplerInput(*links, excluded=last), data)
        with pytest.raises(UnknownIdError, match=message):
            resolve_input(EdgeSamplerInput(*links, excluded=beyond), data)
    with pytest.raises(UnknownIdError, match=message):
        LinkNeighborLoader(whole, [3], edge_label_index=links, edge_label_id=beyond, exclude="self")
    reverse = {"exclude": "reverse_id", "reverse_eids": torch.full((count,), count)}
    with pytest.raises(UnknownIdError, match=r"reverse_eids \(excluded_reverse\): expected ids of edges, .* got "):
        LinkNeighborLoader(whole, [3], edge_label_index=links, edge_label_id=ids, **reverse)
    with pytest.raises(UnknownIdError, match=r"edge_label_id \(excluded\): expected ids of edges, which are below 400"):
        LinkNeighborLoader(
            Data(edge_index=links, num_nodes=60), [3], edge_label_index=links, edge_label_id=ids + 400, exclude="self"
        )


def test_ids_beyond_the_edges_of_a_type_are_refused() -> None:
    types, five = {"user": {"num_nodes": 40}, "item": {"num_nodes": 20}}, torch.zeros(2, 5, dtype=torch.int64)
    data = HeteroData({**types, BUYS: {"edge_index": TYPED.edges[BUYS]}, REV_BUYS: {"edge_index": five}})
    of_reverse = {"exclude": "reverse_types", "reverse_etypes": {BUYS: REV_BUYS}}
    message = r"reverse_etypes \(excluded_reverse\): expected .* of type .*rev_buys.*, which are below 5, .* got 199"
    for given in (data, make_typed(TYPED.edges[BUYS], five)):
        with pytest.raises(UnknownIdError, match=message):
            LinkNeighborLoader(given, [3], edge_label_index=BUYS, **of_reverse)
    none = (("user", "likes", "item"), torch.tensor([[0], [1]]))  # links of a type without edges
    with pytest.raises(UnknownIdError, match=r"as the graph has no edges of type .*likes.*, only -1 for none, got 0"):
        LinkNeighborLoader(data, [3], edge_label_index=none, edge_label_id=torch.tensor([0]), exclude="self")
    next(iter(LinkNeighborLoader(data, [3], edge_label_index=none, edge_label_id=torch.tensor([-1]), exclude="self")))


def make_typed(buys: torch.Tensor, rev_buys: torch.Tensor) -> Dataset:
    """A data set of these edges."""
    data = Dataset(edge_dir="in")
    data.init_graph({BUYS: buys, REV_BUYS: rev_buys}, num_nodes={"user": 40, "item": 20})
    return data


def test_partitions_in_memory_that_do_not_know_how_many_edges_there_are() -> None:
    """Without a book of edges nobody says what is beyond them, and none of another partition is refused."""
    owners = torch.tensor([0, 0, 1, 1])
    part = DistDataset(2, 0, node_pb=owners, edge_dir="in")
    part.init_graph(torch.tensor([[2, 3], [0, 1]]), torch.tensor([4, 5]), num_nodes=4)
    assert part.num_edge_ids() is None
    resolve_input(EdgeSamplerInput(torch.tensor([0]), torch.tensor([1]), excluded=torch.tensor([9])), part)
    part.edge_pb = torch.tensor([1, 1, 1, 1, 0, 0, 1])
    with pytest.raises(UnknownIdError, match="which are below 7, or -1 for none, got 9"):
        resolve_input(EdgeSamplerInput(torch.tensor([0]), torch.tensor([1]), excluded=torch.tensor([9])), part)
