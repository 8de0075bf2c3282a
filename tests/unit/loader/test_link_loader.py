"""Batches of links: seeds, labels and negatives by their definition, and in PyG's layout."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch_geometric.sampler import EdgeSamplerInput as PygEdges
from torch_geometric.sampler import NegativeSampling as PygNegatives
from torch_geometric.sampler import SamplerOutput as PygOutput
from torch_geometric.sampler.neighbor_sampler import edge_sample
from torch_geometric.utils import k_hop_subgraph

from graphlearn_dist.data import Dataset
from graphlearn_dist.errors import InvalidArgumentError, UnknownIdError
from graphlearn_dist.loader import LinkNeighborLoader, get_edge_label_index
from graphlearn_dist.sampler import NegativeSampling
from graphlearn_dist.sampler.links.negative_pool import NegativePool, negative_key
from graphlearn_dist.typing import reverse_edge_type
from tests.support.graphs import (
    EDGE_TYPES,
    MAX_TIME,
    Case,
    Direction,
    TestGraph,
    analytic_graph,
    cases,
    make_dataset,
    random_graph,
    typed_graph,
    with_node_times,
    with_times,
)
from tests.support.reference import Draw, ReferenceBatch, sample_batch

MODES: dict[str, Any] = {
    "none": None,
    "binary": "binary",
    "binary 1.5": NegativeSampling("binary", 1.5),
    "triplet": ("triplet",),
    "triplet 3": {"mode": "triplet", "amount": 3},
}


def ends_of(edge_type: Any) -> tuple[Any, Any]:
    return (None, None) if edge_type is None else (edge_type[0], edge_type[2])


def store_of(batch: Any, name: Any) -> Any:
    """The store of a type, or the batch itself where it has one unnamed type."""
    return batch if name is None else batch[name]


def links_of(case: Case, edge_type: Any) -> torch.Tensor:
    """As many links as the case has seeds, some of them edges, others any pairs."""
    source_type, target_type = ends_of(edge_type)
    draw = torch.Generator().manual_seed(case.seed % 1000)
    count = len(case.seeds)
    pairs = [
        torch.randint(0, case.graph.num_nodes[name], (count,), generator=draw) for name in (source_type, target_type)
    ]
    edges = case.graph.edges[edge_type][:, : count // 2]
    links = torch.stack(pairs)
    links[:, : edges.size(1)] = edges
    return links


def global_links(batch: Any, edge_type: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Sources and targets of a batch's links (of triplets: positives, then negatives link by link), global ids."""
    source, target = (store_of(batch, name) for name in ends_of(edge_type))
    store = store_of(batch, edge_type)
    if "edge_label_index" in store:
        return source.n_id[store.edge_label_index[0]], target.n_id[store.edge_label_index[1]]
    negatives = target.dst_neg_index.view(len(target.dst_pos_index), -1)
    sources = torch.cat([source.src_index, source.src_index.repeat_interleave(negatives.size(1))])
    return source.n_id[sources], target.n_id[torch.cat([target.dst_pos_index, negatives.flatten()])]


def expected_negatives(case: Case, edge_type: Any, sampling: Any, sources: torch.Tensor, index: int) -> Any:
    """(sources or None, targets) of the negatives of a batch, targets of triplets ``[links, amount]``."""
    names = sorted(case.graph.edges, key=lambda name: name or ())
    pool = NegativePool(*(case.graph.num_nodes[name] for name in ends_of(edge_type)))
    key = negative_key(case.seed, case.epoch, index, names.index(edge_type))
    if sampling.is_triplet():
        return None, pool.triplet(sources, int(sampling.amount), key)
    return pool.binary(math.ceil(sampling.amount * len(sources)), key)


@dataclass(frozen=True)
class Expected:
    """The ends of a batch's links with their negatives, global ids, and the positive that each belongs to."""

    source: torch.Tensor
    target: torch.Tensor
    source_links: torch.Tensor
    target_links: torch.Tensor


def expected_ends(case: Case, edge_type: Any, sampling: Any, positives: torch.Tensor, index: int) -> Expected:
    source, target = positives
    links = torch.arange(len(source))
    if sampling is None:
        return Expected(source, target, links, links)
    more, drawn = expected_negatives(case, edge_type, sampling, source, index)
    slots = torch.cat([links, torch.arange(drawn.numel()) % len(source)])
    if more is None:
        return Expected(source, torch.cat([target, drawn.t().flatten()]), links, slots)
    return Expected(torch.cat([source, more]), torch.cat([target, drawn]), slots, slots)


def expected_batch(
    case: Case, edge_type: Any, ends: Expected, times: Any, disjoint: bool, index: int
) -> ReferenceBatch:
    """The plain sampler's batch: seeds are the distinct ends (disjoint: all of them), sources first."""
    lists = list(zip(ends_of(edge_type), (ends.source.tolist(), ends.target.tolist()), strict=True))
    if not disjoint:
        joined: dict[Any, list[int]] = {}
        for name, ids in lists:
            joined.setdefault(name, []).extend(ids)
        lists = [(name, list(dict.fromkeys(ids))) for name, ids in joined.items()]
    draw = Draw(replace=case.replace, times="ignore" if times is None else "before")
    return sample_batch(
        case.graph,
        case.edge_dir,
        case.fanouts,
        *lists[0],
        more_seeds=lists[1:],
        draws=dict.fromkeys(case.graph.edges, draw),
        disjoint=disjoint,
        times=None if times is None else times[torch.cat([ends.source_links, ends.target_links])].tolist(),
        seed=case.seed,
        epoch=case.epoch,
        index=index,
    )


def check_neighborhood(batch: Any, case: Case, ends: Expected, expected: ReferenceBatch) -> None:
    """Nodes, edges and counts of a batch, and the link that each node of a disjoint batch belongs to."""
    link_of_tree = torch.cat([ends.source_links, ends.target_links])
    for i, name in enumerate(sorted(case.graph.num_nodes, key=str)):
        store = store_of(batch, name)
        assert store.n_id.tolist() == expected.nodes[i]
        assert store.num_sampled_nodes == expected.num_sampled_nodes[i]
        if expected.trees is not None:
            assert store.batch.tolist() == link_of_tree[expected.trees[i]].tolist()
    for i, name in enumerate(sorted(case.graph.edges, key=lambda name: name or ())):
        reverse = name is not None and case.edge_dir == "out"
        store = store_of(batch, reverse_edge_type(name) if reverse else name)
        assert store.edge_index.tolist() == [expected.rows[i], expected.cols[i]]
        assert store.e_id.tolist() == expected.edge_ids[i]
        assert store.num_sampled_edges == expected.num_sampled_edges[i]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("disjoint", [False, True])
@given(data=st.data())
@settings(max_examples=20, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_batches_equal_the_definition(mode: str, disjoint: bool, data: st.DataObject) -> None:
    """Seeds, neighborhoods and links, typed or not, along every kind of edge type, with times or without."""
    case = data.draw(cases())
    edge_type = None if case.graph.is_homogeneous else data.draw(st.sampled_from(EDGE_TYPES))
    links, sampling, times = links_of(case, edge_type), NegativeSampling.cast(MODES[mode]), None
    if disjoint and data.draw(st.booleans()):
        case = replace(case, graph=with_times(case.graph, 5))
        times = torch.arange(links.size(1)) * 5 % MAX_TIME
    loader = LinkNeighborLoader(
        make_dataset(case.graph, case.edge_dir),
        case.fanouts,
        edge_label_index=links if edge_type is None else (edge_type, links),
        neg_sampling=MODES[mode],
        with_edge=True,
        batch_size=case.batch_size,
        shuffle=case.shuffle,
        seed=case.seed,
        replace=case.replace,
        disjoint=disjoint,
        edge_label_time=times,
    )
    for index in range(len(loader)):
        batch = loader.batch(case.epoch, index)
        chosen = store_of(batch, edge_type).input_id
        ends = expected_ends(case, edge_type, sampling, links[:, chosen], index)
        batch_times = None if times is None else times[chosen]
        expected = expected_batch(case, edge_type, ends, batch_times, disjoint, index)
        check_neighborhood(batch, case, ends, expected)
        check_links(batch, edge_type, sampling, links[:, chosen], ends.source, ends.target)


def check_links(batch: Any, edge_type: Any, sampling: Any, positives: torch.Tensor, source: Any, target: Any) -> None:
    """The links in global ids: positives as asked, then the negatives."""
    found = torch.stack(global_links(batch, edge_type))
    count = positives.size(1)
    assert torch.equal(found[:, :count], positives)
    store = store_of(batch, edge_type)
    assert store.batch_size == len(store.input_id) == count
    if sampling is not None and sampling.is_triplet():
        amount = sampling.amount
        shape = (count,) if amount == 1 else (count, amount)
        assert store_of(batch, ends_of(edge_type)[1]).dst_neg_index.shape == shape
        drawn = target[count:].view(amount, count).t().flatten()
        assert torch.equal(found[:, count:], torch.stack([positives[0].repeat_interleave(amount), drawn]))
        assert not {"edge_label", "edge_label_index"} & set(store.keys())
        return
    assert torch.equal(found, torch.stack([source, target]))
    assert ("edge_label" in store) == (sampling is not None)
    if sampling is not None:
        assert store.edge_label.tolist() == [1.0] * count + [0.0] * (source.numel() - count)


# --- PyG's layout ------------------------------------------------------------------------------------------------


def pyg_metadata(
    links: torch.Tensor, times: torch.Tensor, label: Any, sampling: Any, num_nodes: int
) -> tuple[Any, Any]:
    """What PyG's own ``edge_sample`` says about disjoint links, with a sampler that gives the seeds alone."""

    def seeds_alone(seed: torch.Tensor, seed_time: torch.Tensor) -> PygOutput:
        nothing = torch.empty(0, dtype=torch.int64)
        return PygOutput(seed, nothing, nothing, None, batch=torch.arange(seed.numel()), metadata=seed_time)

    inputs = PygEdges(None, links[0], links[1], label, times)
    out = edge_sample(inputs, seeds_alone, num_nodes, True, None, sampling)
    return out, out.metadata


@pytest.mark.parametrize("amount", [1, 2])
@pytest.mark.parametrize("mode", ["none", "binary", "triplet"])
def test_layout_of_disjoint_links_is_that_of_pyg(mode: str, amount: int) -> None:
    """Local ids, labels, times and the number of each seed's link."""
    graph = with_times(random_graph(30, 200, 3), 1)
    links, times = graph.edges[None][:, :8], torch.arange(8) + 5
    label = None if mode == "triplet" else torch.arange(8) % 3 + 1
    ours = None if mode == "none" else NegativeSampling(mode, amount)
    theirs = None if mode == "none" else PygNegatives(mode, amount)
    loader = LinkNeighborLoader(
        make_dataset(graph), [2], edge_label_index=links, edge_label=label, neg_sampling=ours, batch_size=8,
        edge_label_time=times,
    )  # fmt: skip
    (batch,) = list(loader)
    out, metadata = pyg_metadata(links, times, label, theirs, 30)
    assert batch.num_sampled_nodes[0] == out.node.numel()
    assert torch.equal(batch.batch[: out.node.numel()], out.batch)
    if mode == "triplet":
        _, src_index, dst_pos_index, dst_neg_index, seed_time = metadata
        assert torch.equal(batch.src_index, src_index)
        assert torch.equal(batch.dst_pos_index, dst_pos_index)
        assert torch.equal(batch.dst_neg_index, dst_neg_index)
        assert torch.equal(batch.seed_time, seed_time)
    else:
        _, edge_label_index, edge_label, edge_label_time = metadata
        assert torch.equal(batch.edge_label_index, edge_label_index)
        assert torch.equal(batch.edge_label, edge_label)
        assert torch.equal(batch.edge_label_time, edge_label_time)


@pytest.mark.parametrize("edge_dir", ["in", "out"])
def test_full_neighborhoods_are_those_of_pyg(edge_dir: Direction) -> None:
    """[-1, -1] reaches PyG's 2-hop subgraph of all ends, over the edges that enter (leave) its 1-hop subgraph."""
    graph = random_graph(60, 150, 2)
    edges, links = graph.edges[None], torch.tensor([[3, 9, 9, 50], [4, 9, 1, 3]])
    (batch,) = list(
        LinkNeighborLoader(make_dataset(graph, edge_dir), [-1, -1], None, links, batch_size=4, with_edge=True)
    )
    flow = "source_to_target" if edge_dir == "in" else "target_to_source"
    inner, outer = (k_hop_subgraph(links.unique(), k, edges, num_nodes=60, flow=flow)[0] for k in (1, 2))
    assert sorted(batch.n_id.tolist()) == outer.tolist()
    sampled_for = edges[1] if edge_dir == "in" else edges[0]
    assert sorted(batch.e_id.tolist()) == torch.isin(sampled_for, inner).nonzero().view(-1).tolist()
    assert torch.equal(batch.n_id[batch.edge_label_index], links)


# --- labels ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("label", "sampling", "expected"),
    [
        (None, None, None),
        ([0, 2, 1, 0], None, [0, 2, 1, 0]),
        ([0, 2, 1, 0], "binary", [1, 3, 2, 1, 0, 0, 0, 0]),  # 0 is the negatives' then
        ([1, 2, 1, 3], "binary", [1, 2, 1, 3, 0, 0, 0, 0]),
        ([0.0, 1.0, 0.5, 0.0], "binary", [1.0, 2.0, 1.5, 1.0, 0.0, 0.0, 0.0, 0.0]),
        (None, "binary", [1.0] * 4 + [0.0] * 4),
        ([[1, 5], [2, 5], [3, 5], [4, 5]], "binary", [[1, 5], [2, 5], [3, 5], [4, 5]] + [[0, 0]] * 4),
    ],
)
def test_labels(label: Any, sampling: Any, expected: Any) -> None:
    links = torch.tensor([[0, 1, 2, 3], [1, 2, 3, 4]])
    labels = None if label is None else torch.tensor(label)
    loader = LinkNeighborLoader(
        make_dataset(analytic_graph(9)),
        [1],
        edge_label_index=links,
        edge_label=labels,
        neg_sampling=sampling,
        batch_size=4,
    )
    (batch,) = list(loader)
    if expected is None:
        assert "edge_label" not in batch
    else:
        assert batch.edge_label.tolist() == expected
        assert labels is None or batch.edge_label.dtype == labels.dtype


def test_labels_are_raised_in_every_batch_or_in_none() -> None:
    """Whether 0 is among the labels is asked once, of all of them."""
    links, labels = torch.tensor([[0, 1, 2, 3], [1, 2, 3, 4]]), torch.tensor([0, 1, 2, 2])
    loader = LinkNeighborLoader(make_dataset(analytic_graph(9)), [1], None, links, labels, "binary", batch_size=2)
    assert [batch.edge_label.tolist() for batch in loader] == [[1, 2, 0, 0], [3, 3, 0, 0]]


# --- negatives ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("edge_dir", ["in", "out"])
@pytest.mark.parametrize("mode", ["binary", "triplet"])
@pytest.mark.parametrize("edge_type", [None, EDGE_TYPES[0], EDGE_TYPES[2]])
def test_strict_negatives_are_never_edges(edge_dir: Direction, mode: str, edge_type: Any) -> None:
    graph = random_graph(25, 300, 1) if edge_type is None else typed_graph(20, 15, 150, 1)
    dataset = make_dataset(graph, edge_dir)
    edges = set(zip(*graph.edges[edge_type].tolist(), strict=True))
    sources = set(graph.edges[edge_type][0].tolist())
    full = {s for s in sources if all((s, t) in edges for t in range(graph.num_nodes[ends_of(edge_type)[1]]))}
    keep = [i for i, s in enumerate(graph.edges[edge_type][0].tolist()) if s not in full]
    links = graph.edges[edge_type][:, keep]
    found: set[Any] = set()
    for strict in (True, False):
        loader = LinkNeighborLoader(
            dataset, [1], None, (edge_type, links), None, NegativeSampling(mode, 2, strict=strict), batch_size=32
        )
        for batch in loader:
            source, target = (ids[batch_size_of(batch, edge_type) :].tolist() for ids in global_links(batch, edge_type))
            pairs = set(zip(source, target, strict=True))
            assert not strict or not pairs & edges
            found |= pairs
    assert found & edges  # those that need not be strict met some


def batch_size_of(batch: Any, edge_type: Any) -> int:
    size: int = store_of(batch, edge_type).batch_size
    return size


def complete(num_nodes: int) -> TestGraph:
    ids = torch.arange(num_nodes)
    return TestGraph({None: num_nodes}, {None: torch.cartesian_prod(ids, ids).t().contiguous()}, {})


def test_a_complete_graph_has_no_negatives() -> None:
    links = torch.tensor([[0, 1], [1, 2]])
    dataset = make_dataset(complete(5))
    for disjoint in (False, True):
        binary = NegativeSampling("binary", 3, strict=True)
        (batch,) = list(LinkNeighborLoader(dataset, [1], None, links, None, binary, batch_size=2, disjoint=disjoint))
        assert batch.edge_label.tolist() == [1, 1]
        assert torch.equal(batch.n_id[batch.edge_label_index], links)
    with pytest.raises(InvalidArgumentError, match="source 0 has no negative"):
        list(
            LinkNeighborLoader(dataset, [1], None, links, None, NegativeSampling("triplet", strict=True), batch_size=2)
        )


def test_negatives_that_were_not_found_leave_the_others_with_their_links() -> None:
    """Disjoint and strict: slots stay open, and the trees of each negative's ends still have its link's number."""
    graph = complete(6)
    graph.edges[None] = graph.edges[None][:, :-1]  # (5, 5) is the only pair that is no edge
    links = torch.tensor([[0, 1, 2], [1, 2, 3]])
    negatives = NegativeSampling("binary", 7, strict=True)
    found = 0
    loader = LinkNeighborLoader(
        make_dataset(graph), [1], None, links, None, negatives, batch_size=3, disjoint=True, seed=3
    )
    for epoch in range(5):
        batch = loader.batch(epoch, 0)
        source, target = batch.edge_label_index
        assert torch.equal(batch.batch[source], batch.batch[target])
        assert torch.equal(batch.batch[source[:3]], torch.arange(3))
        assert batch.n_id[source[3:]].tolist() == batch.n_id[target[3:]].tolist() == [5] * (len(source) - 3)
        found += len(source) - 3
    assert 0 < found < 5 * 21


def test_weights_of_negatives() -> None:
    """Targets are drawn by their weights."""
    weight = torch.zeros(9)
    weight[[4, 7]] = 1
    links = torch.tensor([[0, 1, 2, 3], [1, 2, 3, 4]])
    negatives = NegativeSampling("triplet", 5, weight)
    (batch,) = list(
        LinkNeighborLoader(make_dataset(analytic_graph(9)), [1], None, links, None, negatives, batch_size=4)
    )
    assert set(batch.n_id[batch.dst_neg_index].flatten().tolist()) == {4, 7}


# --- ways to name links ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("edge_dir", ["in", "out"])
def test_all_edges_of_a_type_are_links_in_the_order_of_their_ids(edge_dir: Direction) -> None:
    graph = typed_graph(20, 10, 60, 0)
    for edge_type in EDGE_TYPES:
        loader = LinkNeighborLoader(make_dataset(graph, edge_dir), [2], edge_label_index=edge_type, batch_size=16)
        found = torch.cat([torch.stack(global_links(batch, edge_type)) for batch in loader], dim=1)
        assert torch.equal(found, graph.edges[edge_type])
    plain = random_graph(20, 90, 0)
    name, links = get_edge_label_index(make_dataset(plain, edge_dir), None)
    assert name is None
    assert torch.equal(links, plain.edges[None])
    assert get_edge_label_index(make_dataset(graph, edge_dir), (EDGE_TYPES[0], None))[1].shape[0] == 2


@pytest.mark.parametrize("edge_type", [None, EDGE_TYPES[0]])
def test_links_in_an_array(edge_type: Any) -> None:
    dataset = make_dataset(analytic_graph(9) if edge_type is None else typed_graph(9, 9, 30, 0))
    links = np.array([[4, 0, 2], [5, 1, 4]], np.int32)
    given = links if edge_type is None else (edge_type, links)
    (batch,) = LinkNeighborLoader(dataset, [1], None, given, batch_size=3)
    found = torch.stack(global_links(batch, edge_type))
    assert found.tolist() == links.tolist()
    for bad in (links.astype(np.float32), np.array([["a"], ["b"]]), links[0]):
        with pytest.raises(InvalidArgumentError, match="edge_label_index: expected"):
            LinkNeighborLoader(dataset, [1], None, bad if edge_type is None else (edge_type, bad))
    (batch,) = LinkNeighborLoader(dataset, [1], None, given, np.array([3.0, 1.0, 2.0]), batch_size=3)
    labels = (batch if edge_type is None else batch[edge_type]).edge_label
    assert labels.equal(torch.tensor([3.0, 1.0, 2.0], dtype=torch.float64))


LINKS = torch.tensor([[0, 1], [1, 2]])
TIMES = torch.tensor([1, 1])
REFUSED: dict[str, tuple[type[Exception], dict[str, Any]]] = {
    "edge_label_index: unknown edge type": (InvalidArgumentError, {"edge_label_index": (EDGE_TYPES[0], LINKS)}),
    "edge_label_index: expected a tensor": (InvalidArgumentError, {"edge_label_index": torch.zeros(3, 2).long()}),
    "edge_label_index: expected dtype": (InvalidArgumentError, {"edge_label_index": LINKS.float()}),
    "edge_label_index: node id 6 is outside": (UnknownIdError, {"edge_label_index": LINKS + 4}),
    "edge_label_index: node id -1 is outside": (UnknownIdError, {"edge_label_index": LINKS - 1}),
    "edge_label: expected a tensor or array with a label for each of 2 links": (
        InvalidArgumentError,
        {"edge_label": torch.ones(3)},
    ),
    "edge_label: expected None with triplet": (
        InvalidArgumentError,
        {"edge_label": torch.ones(2), "neg_sampling": "triplet"},
    ),
    "mode: expected one of": (InvalidArgumentError, {"neg_sampling": "ternary"}),
    "weight: expected one weight for each of 6 nodes": (
        InvalidArgumentError,
        {"neg_sampling": NegativeSampling("binary", 1, torch.ones(5))},
    ),
    "edge_label_time: expected one time for each of 2": (InvalidArgumentError, {"edge_label_time": TIMES[:1]}),
    "input_time: expected edge times in the data set": (InvalidArgumentError, {"edge_label_time": TIMES}),
    "num_neighbors: expected a list": (InvalidArgumentError, {"num_neighbors": None}),
    "link_sampler: expected a NeighborSampler": (InvalidArgumentError, {"neighbor_sampler": object()}),
}  # fmt: skip


@pytest.mark.parametrize("message", REFUSED)
def test_refuses(message: str) -> None:
    error, changes = REFUSED[message]
    arguments = {"num_neighbors": [1], "edge_label_index": LINKS, "batch_size": 2, **changes}
    with pytest.raises(error, match=message):
        LinkNeighborLoader(make_dataset(analytic_graph(6)), **arguments)


def test_refuses_links_of_no_type_in_a_typed_graph() -> None:
    with pytest.raises(InvalidArgumentError, match="edge_label_index: unknown edge type None"):
        LinkNeighborLoader(make_dataset(typed_graph(5, 5, 9, 0)), [1])
    with pytest.raises(InvalidArgumentError, match="data: expected a data set with a graph"):
        LinkNeighborLoader(Dataset(), [1])


@pytest.mark.parametrize("mode", ["binary", "triplet"])
def test_negatives_are_there_at_the_time_of_their_link(mode: str) -> None:
    """Of a typed graph in which all nodes have times: as in PyG, a link before all nodes gets the earliest."""
    graph = with_node_times(typed_graph(60, 30, 200, 4), 7)
    edge_type = EDGE_TYPES[0]
    links = graph.edges[edge_type][:, :80]
    times = torch.arange(80) % (MAX_TIME + 2) - 1  # -1 is before all
    loader = LinkNeighborLoader(
        make_dataset(graph, "in"),
        [2],
        edge_label_index=(edge_type, links),
        neg_sampling=NegativeSampling(mode, 2),
        batch_size=80,
        edge_label_time=times,
    )
    source, target = global_links(loader.batch(0, 0), edge_type)
    drawn = target[80:] if mode == "binary" else target[80:].view(80, 2).t().flatten()
    ends = [(edge_type[2], drawn)] + [(edge_type[0], source[80:])] * (mode == "binary")
    for node_type, nodes in ends:
        node_times = graph.node_times[node_type]
        in_time = node_times[nodes] <= times.repeat(2)
        earliest = int((node_times == node_times.min()).nonzero()[0])
        assert nodes.numel() == 160
        assert bool((in_time | (nodes == earliest)).all())
        assert bool(in_time[times.repeat(2) >= 0].all())  # some node is of time 0
        assert len(set(nodes.tolist())) > 10
