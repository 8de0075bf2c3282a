"""Batches of the loaders of ``graphlearn_dist.glt``: those of the core, in the form of GraphLearn-for-PyTorch."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch

import graphlearn_dist.glt as glt
from graphlearn_dist.errors import InvalidArgumentError
from graphlearn_dist.loader import LinkNeighborLoader, NeighborLoader, SubGraphLoader
from graphlearn_dist.sampler import NeighborSampler
from graphlearn_dist.sampler.base import NegativeSampling
from tests.support.graphs import Direction, make_dataset, random_graph, typed_graph

HOMOGENEOUS = random_graph(60, 400, 3, explicit_edge_ids=True)
TYPED = typed_graph(50, 30, 300, 4)
BUYS = ("user", "buys", "item")
REVERSED = ("item", "rev_buys", "user")
DIRECTIONS: list[Direction] = ["in", "out"]
SHARED: dict[str, Any] = {"batch_size": 7, "shuffle": True, "with_edge": True, "seed": 3}


def pairs(loader: Any, core: Any) -> list[tuple[Any, Any]]:
    found = list(zip(loader, core, strict=True))
    assert len(found) == len(loader) > 1
    return found


def edges_of(edge_index: torch.Tensor, source: torch.Tensor, target: torch.Tensor, *more: torch.Tensor) -> list[Any]:
    """Edges by global ids, with what they carry, in some order."""
    columns = source[edge_index[0]], target[edge_index[1]], *more
    return sorted(zip(*(column.tolist() for column in columns), strict=True))


# --- nodes -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("edge_dir", DIRECTIONS)
def test_nodes(edge_dir: Direction) -> None:
    dataset = make_dataset(HOMOGENEOUS, edge_dir)
    arguments = dataset, [3, 2], torch.arange(20)
    for batch, core in pairs(glt.loader.NeighborLoader(*arguments, **SHARED), NeighborLoader(*arguments, **SHARED)):
        for name in ("node", "edge_index", "edge", "x", "y", "edge_attr"):
            assert torch.equal(batch[name], core[name]), name
        assert torch.equal(batch.batch, core.n_id[: core.batch_size])
        assert batch.batch_size == core.batch_size
        assert batch.num_sampled_nodes == core.num_sampled_nodes
        assert batch.num_sampled_edges == core.num_sampled_edges


@pytest.mark.parametrize("edge_dir", DIRECTIONS)
def test_typed_nodes(edge_dir: Direction) -> None:
    dataset = make_dataset(TYPED, edge_dir)
    arguments = dataset, [3, 2], ("user", torch.arange(20))
    loader = glt.loader.NeighborLoader(*arguments, **SHARED)
    for batch, core in pairs(loader, NeighborLoader(*arguments, **SHARED)):
        assert batch.edge_types == core.edge_types
        for edge_type, edge_index in core.edge_index_dict.items():
            assert torch.equal(batch[edge_type].edge_index, edge_index)
            assert batch.num_sampled_edges[edge_type].tolist() == core[edge_type].num_sampled_edges
        for node_type in core.node_types:
            assert batch.num_sampled_nodes[node_type].tolist() == core[node_type].num_sampled_nodes
        assert torch.equal(batch["user"].batch, batch["user"].node[: core["user"].batch_size])
        assert {*batch["user"]} == {"node", "x", "y", "batch", "batch_size"}  # programs count them
        assert "y" in core["item"]
        assert {*batch["item"]} == {"node"}  # it has no features
        assert batch["item"].num_nodes == batch["item"].node.numel()
        assert all({*store} - {"edge_attr"} == {"edge_index", "edge"} for store in batch.edge_stores)


def test_disjoint_batches_keep_the_tree_of_each_node() -> None:
    arguments = make_dataset(HOMOGENEOUS), [3, 2], torch.arange(20)
    shared = {**SHARED, "disjoint": True}
    for batch, core in pairs(glt.loader.NeighborLoader(*arguments, **shared), NeighborLoader(*arguments, **shared)):
        assert torch.equal(batch.batch, core.batch)
        assert batch.batch_size == core.batch_size


def test_layers_and_transforms() -> None:
    dataset = make_dataset(HOMOGENEOUS)
    arguments = dataset, [3, 2], torch.arange(20)
    for one, core in pairs(
        glt.loader.NeighborLoader(*arguments, as_pyg_v1=True, **SHARED),
        NeighborLoader(*arguments, as_pyg_v1=True, **SHARED),
    ):
        assert one[0] == core[0]
        assert torch.equal(one[1], core[1])
        assert all(torch.equal(a.edge_index, b.edge_index) for a, b in zip(one[2], core[2], strict=True))
    loader = glt.loader.NeighborLoader(*arguments, transform=lambda batch: batch.batch, **SHARED)
    assert torch.equal(torch.cat(list(loader)).sort().values, torch.arange(20))


# --- links -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("edge_dir", DIRECTIONS)
def test_links(edge_dir: Direction) -> None:
    """From target to source in both directions."""
    dataset = make_dataset(HOMOGENEOUS, edge_dir)
    links = HOMOGENEOUS.edges[None][:, :30]
    arguments = {"edge_label_index": links, "neg_sampling": NegativeSampling("binary", 1, strict=True), **SHARED}
    loader = glt.loader.LinkNeighborLoader(dataset, [3, 2], **arguments)
    for batch, core in pairs(loader, LinkNeighborLoader(dataset, [3, 2], **arguments)):
        assert torch.equal(batch.edge_label_index, core.edge_label_index.flip(0))
        assert torch.equal(batch.edge_label, core.edge_label)
        assert torch.equal(batch.edge_index, core.edge_index)
        assert torch.equal(batch.batch, core.n_id[: core.num_sampled_nodes[0]])
        assert batch.batch_size == batch.batch.numel()
        positive = batch.node[batch.edge_label_index[:, batch.edge_label == 1]]
        assert torch.equal(positive, links[:, core.input_id].flip(0))


@pytest.mark.parametrize("edge_dir", DIRECTIONS)
def test_typed_links(edge_dir: Direction) -> None:
    """Where out-neighbors are sampled they stand under the reversed edge type, from target to source."""
    dataset = make_dataset(TYPED, edge_dir)
    arguments = {"edge_label_index": BUYS, "neg_sampling": NegativeSampling("binary", 1, strict=True), **SHARED}
    loader = glt.loader.LinkNeighborLoader(dataset, [3, 2], **arguments)
    for batch, core in pairs(loader, LinkNeighborLoader(dataset, [3, 2], **arguments)):
        where, other = (REVERSED, BUYS) if edge_dir == "out" else (BUYS, REVERSED)
        wanted = core[BUYS].edge_label_index
        assert torch.equal(batch[where].edge_label_index, wanted.flip(0) if edge_dir == "out" else wanted)
        assert torch.equal(batch[where].edge_label, core[BUYS].edge_label)
        assert other not in batch.edge_types or "edge_label" not in batch[other]
        assert {*batch[where]} - {"edge_attr"} == {"edge_index", "edge", "edge_label_index", "edge_label"}
        assert {*batch["user"]} == {"node", "x"}
        assert {*batch["item"]} == {"node", "batch", "batch_size", "num_nodes"}
        assert torch.equal(batch["item"].batch, core["item"].n_id[: core["item"].num_sampled_nodes[0]])
        assert batch["item"].batch_size == batch["item"].batch.numel()
        assert {*batch.edge_types} == {*batch.edge_index_dict}  # no store that has links alone


@pytest.mark.parametrize("edge_dir", DIRECTIONS)
def test_typed_triplets(edge_dir: Direction) -> None:
    dataset = make_dataset(TYPED, edge_dir)
    arguments = {"edge_label_index": BUYS, "neg_sampling": ("triplet", 2), **SHARED}
    loader = glt.loader.LinkNeighborLoader(dataset, [3, 2], **arguments)
    for batch, core in pairs(loader, LinkNeighborLoader(dataset, [3, 2], **arguments)):
        assert torch.equal(batch["user"].src_index, core["user"].src_index)
        assert torch.equal(batch["item"].dst_neg_index, core["item"].dst_neg_index)
        assert {*batch["user"]} == {"node", "x", "src_index"}
        assert {*batch["item"]} == {"node", "batch", "batch_size", "num_nodes", "dst_pos_index", "dst_neg_index"}
        assert torch.equal(batch["item"].batch, batch["item"].node[: batch["item"].batch_size])
        ends = torch.cat([batch["item"].dst_pos_index, batch["item"].dst_neg_index.view(-1)])
        assert torch.equal(ends.unique(), torch.arange(batch["item"].batch_size))
        assert all({*store} - {"edge_attr"} == {"edge_index", "edge"} for store in batch.edge_stores)
        assert {*batch.edge_types} == {*batch.edge_index_dict}


OF_EVERY_BATCH = {"x", "node", "edge_index", "num_sampled_nodes", "num_sampled_edges", "batch_size"}


@pytest.mark.parametrize("edge_dir", DIRECTIONS)
def test_attributes(edge_dir: Direction) -> None:
    """Those of GLT's batches: labels with seeds alone, edges and their features where they are asked for."""
    links = HOMOGENEOUS.edges[None][:, :30]
    triplets = {"src_index", "dst_pos_index", "dst_neg_index"}
    for with_edge in (True, False):
        given = {"batch_size": 7, "with_edge": with_edge}
        edges = {"edge", "edge_attr"} if with_edge else set()
        dataset = make_dataset(HOMOGENEOUS, edge_dir)
        batch = next(iter(glt.loader.NeighborLoader(dataset, [3, 2], torch.arange(20), **given)))
        assert {*batch.keys()} == {*OF_EVERY_BATCH, "batch", "y", *edges}
        for negatives, own in (("binary", {"edge_label_index", "edge_label"}), ("triplet", triplets)):
            arguments = {"edge_label_index": links, "neg_sampling": negatives, **given}
            batch = next(iter(glt.loader.LinkNeighborLoader(dataset, [3, 2], **arguments)))
            assert {*batch.keys()} == {*OF_EVERY_BATCH, "batch", *own, *edges}
        typed = glt.loader.NeighborLoader(make_dataset(TYPED, edge_dir), [3, 2], ("user", torch.arange(20)), **given)
        found = {name for store in next(iter(typed)).edge_stores for name in store}
        assert found - {"edge_attr"} == ({"edge_index", "edge"} if with_edge else {"edge_index"})
        assert with_edge or "edge_attr" not in found


def is_edge(graph: Any, source: int, target: int) -> bool:
    return bool(((graph.edges[None][0] == source) & (graph.edges[None][1] == target)).any())


def test_binary_negatives_are_strict_unless_it_is_said() -> None:
    """In a graph where a third of all pairs are edges."""
    dense = random_graph(20, 200, 1)
    dataset, links = make_dataset(dense), dense.edges[None][:, :100]

    def num_false(neg_sampling: Any) -> int:
        loader = glt.loader.LinkNeighborLoader(
            dataset, [2], edge_label_index=links, neg_sampling=neg_sampling, **SHARED
        )
        drawn = [batch.node[batch.edge_label_index[:, batch.edge_label == 0]] for batch in loader]
        assert sum(pair.size(1) for pair in drawn) > 50
        return sum(is_edge(dense, source, target) for target, source in torch.cat(drawn, 1).t().tolist())

    for strict in ("binary", ("binary", 2), {"mode": "binary"}, glt.sampler.NegativeSampling("binary")):
        assert num_false(strict) == 0
    loose = glt.sampler.NegativeSampling("binary", strict=False)
    assert num_false(loose) > 10
    assert num_false(NegativeSampling("binary")) > 10  # the core's, as it says of itself
    assert not glt.sampler.NegativeSampling("triplet").strict
    assert isinstance(loose, glt.sampler.NegativeSampling)


# --- induced subgraphs -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_neighbors", [None, [3], [0]])
@pytest.mark.parametrize("edge_dir", DIRECTIONS)
def test_subgraphs(edge_dir: Direction, num_neighbors: Any) -> None:
    """The same subgraph, its nodes by id, its edges by target."""
    dataset = make_dataset(HOMOGENEOUS, edge_dir)
    arguments = dataset, torch.tensor([50, 3, 31, 8, 9, 10, 3, 20, 21]), num_neighbors
    loader = glt.loader.subgraph_loader.SubGraphLoader(*arguments, **SHARED)
    for batch, core in pairs(loader, SubGraphLoader(*arguments, **SHARED)):
        assert torch.equal(batch.node, core.n_id.sort().values)
        assert torch.equal(batch.node[batch.mapping], core.n_id[core.mapping])
        assert torch.equal(batch.metadata, batch.mapping)
        assert batch.batch_size == core.mapping.numel()
        assert torch.equal(batch.x[:, 0], core.x[core.n_id.argsort()][:, 0])
        assert torch.equal(batch.y, core.y[core.n_id.argsort()])
        assert bool((batch.edge_index[1].diff() >= 0).all())
        found = edges_of(batch.edge_index, batch.node, batch.node, batch.edge, batch.edge_attr[:, 0])
        assert found == edges_of(core.edge_index, core.n_id, core.n_id, core.e_id, core.edge_attr[:, 0])
        attributes = {"x", "y", "node", "edge_index", "edge", "edge_attr", "mapping", "metadata", "batch_size"}
        assert {*batch.keys()} == attributes


@pytest.mark.parametrize("edge_dir", DIRECTIONS)
def test_typed_subgraphs(edge_dir: Direction) -> None:
    dataset = make_dataset(TYPED, edge_dir)
    arguments = dataset, ("user", torch.tensor([40, 3, 31, 8, 9, 10, 3, 20, 21])), [3]
    loader = glt.loader.subgraph_loader.SubGraphLoader(*arguments, **SHARED)
    for batch, core in pairs(loader, SubGraphLoader(*arguments, **SHARED)):
        for node_type in core.node_types:
            assert torch.equal(batch[node_type].node, core[node_type].n_id.sort().values)
        users = batch["user"]
        assert torch.equal(users.node[users.mapping], core["user"].n_id[core["user"].mapping])
        for (source, relation, target), store in core.edge_items():
            mine, ids = batch[source, relation, target], (core[source].n_id, core[target].n_id)
            found = edges_of(mine.edge_index, batch[source].node, batch[target].node, mine.edge)
            assert found == edges_of(store.edge_index, *ids, store.e_id)


# --- samplers --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("edge_dir", DIRECTIONS)
@pytest.mark.parametrize("graph", [HOMOGENEOUS, TYPED], ids=["homogeneous", "typed"])
def test_samplers(graph: Any, edge_dir: Direction) -> None:
    dataset = make_dataset(graph, edge_dir)
    seeds = torch.tensor([30, 3, 17])
    inputs = glt.sampler.NodeSamplerInput(seeds, None if graph is HOMOGENEOUS else "user")
    arguments = {"edge_dir": edge_dir, "seed": 2, "with_edge": True}
    sampler = glt.sampler.NeighborSampler(dataset.graph, [3], torch.device("cpu"), **arguments)
    core = NeighborSampler(dataset.graph, [3], **arguments)
    out, wanted = sampler.sample_from_nodes(inputs, device=torch.device("cpu")), core.sample_from_nodes(inputs)
    assert str(out) == str(wanted)
    out, wanted = sampler.subgraph(inputs), core.subgraph(inputs)
    if graph is HOMOGENEOUS:
        assert torch.equal(out.node, wanted.node.sort().values)
        assert torch.equal(out.node[out.metadata], seeds)
        assert edges_of(torch.stack([out.row, out.col]), out.node, out.node, out.edge) == edges_of(
            torch.stack([wanted.row, wanted.col]), wanted.node, wanted.node, wanted.edge
        )
    else:
        assert all(torch.equal(out.node[key], node.sort().values) for key, node in wanted.node.items())
        assert torch.equal(out.node["user"][out.metadata], seeds)
        for key, edge_index in wanted.get_edge_index().items():
            found = edges_of(out.get_edge_index()[key], out.node[key[0]], out.node[key[2]], out.edge[key])
            assert found == edges_of(edge_index, wanted.node[key[0]], wanted.node[key[2]], wanted.edge[key])
    if not torch.cuda.is_available():
        with pytest.raises(InvalidArgumentError, match=r"device: expected .* got 'cuda:0'"):
            sampler.sample_from_nodes(inputs, device="cuda:0")


@pytest.mark.parametrize("edge_dir", DIRECTIONS)
def test_outputs_as_pyg_objects(edge_dir: Direction) -> None:
    """``to_data`` and ``to_hetero_data`` turn links as loaders do."""
    arguments = {"edge_dir": edge_dir, "seed": 2}
    row, col = HOMOGENEOUS.edges[None][:, :5]
    sampler = glt.sampler.NeighborSampler(make_dataset(HOMOGENEOUS, edge_dir).graph, [3], **arguments)
    out = sampler.sample_from_edges(glt.sampler.EdgeSamplerInput(row, col))
    data = glt.loader.to_data(out)
    assert torch.equal(data.node[data.edge_label_index], torch.stack([col, row]))
    assert not {"n_id", "e_id"} & {*data.keys()}
    sampler = glt.sampler.NeighborSampler(make_dataset(TYPED, edge_dir).graph, [3], with_edge=True, **arguments)
    row, col = TYPED.edges[BUYS][:, :5]
    out = sampler.sample_from_edges(glt.sampler.EdgeSamplerInput(row, col, input_type=BUYS))
    rows = {key: edge.float()[:, None] for key, edge in out.edge.items()}
    data = glt.loader.to_hetero_data(out, edge_feat_dict=rows, edge_dir=edge_dir)
    index = data[REVERSED if edge_dir == "out" else BUYS].edge_label_index
    ends = index.flip(0) if edge_dir == "out" else index
    assert torch.equal(data["user"].node[ends[0]], row)
    assert torch.equal(data["item"].node[ends[1]], col)
    assert all(torch.equal(data[key].edge_attr, wanted) for key, wanted in rows.items())
    assert {*data.num_sampled_nodes} == {"user", "item"}
    assert torch.equal(data["item"].batch.sort().values, col.unique())


# --- samplers of a program's own -------------------------------------------------------------------------------


class OwnSampler(glt.sampler.BaseSampler):
    """Gives what GLT's own loaders were given for the same seeds, and says how often it was asked."""

    def __init__(self, sampler: glt.sampler.NeighborSampler) -> None:
        self.sampler, self.num_calls = sampler, 0

    def sample_from_nodes(self, inputs: Any, **kwargs: Any) -> Any:
        self.num_calls += 1
        return self.sampler.sample_from_nodes(inputs, **kwargs)

    def sample_from_edges(self, inputs: Any, **kwargs: Any) -> Any:
        self.num_calls += 1
        return self.sampler.sample_from_edges(inputs, **kwargs)

    def subgraph(self, inputs: Any, **kwargs: Any) -> Any:
        self.num_calls += 1
        return self.sampler.subgraph(inputs, **kwargs)


class DerivedSampler(glt.sampler.NeighborSampler):
    num_calls = 0

    def sample_from_nodes(self, inputs: Any, **kwargs: Any) -> Any:
        self.num_calls += 1
        return super().sample_from_nodes(inputs, **kwargs)


def values_in(batch: Any) -> dict[Any, list[Any]]:
    """All that stands in a batch, but for what is of edge types that it did not reach, which loaders name."""
    found: dict[Any, Any] = {}

    def fill(values: dict[Any, Any], *path: Any) -> None:
        for key, value in values.items():
            if isinstance(value, dict):
                fill(value, *path, key)
            else:
                found[(*path, key)] = torch.as_tensor(value).tolist()

    fill(batch.to_dict())
    unreached = {path[0] for path, of in found.items() if path[1:] == ("edge_index",) and of == [[], []]}
    return {path: value for path, value in found.items() if not unreached & {*path}}


@pytest.mark.parametrize("edge_dir", DIRECTIONS)
@pytest.mark.parametrize("kind", ["homogeneous", "typed"])
@pytest.mark.parametrize("task", ["nodes", "derived", "links", "subgraphs"])
def test_own_samplers(task: str, kind: str, edge_dir: Direction) -> None:
    """All neighbors are taken, so that nothing is drawn."""
    is_typed = kind == "typed"
    dataset = make_dataset(TYPED if is_typed else HOMOGENEOUS, edge_dir)
    sampler = glt.sampler.NeighborSampler(dataset.graph, [-1, -1], with_edge=True, edge_dir=edge_dir)
    own: Any = OwnSampler(sampler)
    if task == "derived":
        own = DerivedSampler(dataset.graph, [-1, -1], with_edge=True, edge_dir=edge_dir)
    seeds: Any = ("user", torch.arange(20)) if is_typed else torch.arange(20)
    links: Any = (BUYS, TYPED.edges[BUYS][:, :20]) if is_typed else HOMOGENEOUS.edges[None][:, :20]
    options: dict[str, Any] = {"batch_size": 7, "shuffle": True}
    if task == "links":
        loaders = [glt.loader.LinkLoader(dataset, one, links, **options) for one in (own, sampler)]
    elif task == "subgraphs":
        loaders = [glt.loader.SubGraphLoader(dataset, seeds, None, one, **options) for one in (own, sampler)]
    else:
        loaders = [glt.loader.NodeLoader(dataset, one, seeds, **options) for one in (own, sampler)]
    for _ in range(2):
        for batch, wanted in pairs(*loaders):
            found = values_in(batch)  # more of it where the sampler says more
            assert found | values_in(wanted) == found
    assert own.num_calls == 6
    assert len(loaders[0]) == 3


def test_options_that_an_own_sampler_would_have_to_know() -> None:
    dataset = make_dataset(HOMOGENEOUS)
    own = OwnSampler(glt.sampler.NeighborSampler(dataset.graph, [2]))
    with pytest.raises(InvalidArgumentError, match="locality: expected none with an own sampler"):
        glt.loader.NeighborLoader(dataset, [2], torch.arange(20), own, locality=4)
    with pytest.raises(TypeError, match="unexpected keyword argument 'workers'"):
        glt.loader.NodeLoader(dataset, own, torch.arange(20), workers=3)
    with pytest.raises(InvalidArgumentError, match="node_sampler: expected a NeighborSampler, got object"):
        glt.loader.NodeLoader(dataset, object(), torch.arange(20))


def test_what_else_an_own_sampler_gives() -> None:
    """Is for a ``_collate_fn`` of the program's own, whatever its kind."""

    class Answers:
        def sample_from_nodes(self, inputs: Any) -> Any:
            return {"seeds": inputs.node}

    class Own(glt.loader.NodeLoader):
        @staticmethod
        def _collate_fn(sampler_out: Any) -> Any:
            return sampler_out["seeds"].tolist()

    dataset = make_dataset(HOMOGENEOUS)
    assert list(Own(dataset, Answers(), torch.arange(4), batch_size=2)) == [[0, 1], [2, 3]]
    with pytest.raises(InvalidArgumentError, match=r"sampler: expected sample_from_nodes .* got dict"):
        next(iter(glt.loader.NodeLoader(dataset, Answers(), torch.arange(4), batch_size=2)))


def test_own_batches_of_seeds() -> None:
    """As GLT's loaders are made themselves: ``__next__`` takes seeds, asks the sampler, and collates."""

    class Own(glt.loader.NodeLoader):
        def __next__(self) -> Any:
            return self._collate_fn(self.sampler.sample_from_nodes(next(self._seeds_iter)))

    dataset = make_dataset(HOMOGENEOUS)
    sampler = glt.sampler.NeighborSampler(dataset.graph, [-1], with_edge=True)
    for one in (sampler, OwnSampler(sampler)):
        loader = Own(dataset, one, torch.arange(20, 40), batch_size=7, shuffle=True)
        epochs = []
        for _ in range(2):
            batches = list(loader)
            assert all(torch.equal(batch.y, dataset.node_labels[batch.node]) for batch in batches)
            epochs.append(torch.cat([batch.batch for batch in batches]))
            assert epochs[-1].sort().values.tolist() == [*range(20, 40)]
        assert not torch.equal(*epochs)
        passes = [[seeds.tolist() for seeds in loader._seed_loader] for _ in range(2)]
        assert passes[0] != passes[1]
        loader.set_epoch(0)
        assert torch.cat([batch.batch for batch in loader]).equal(epochs[0])
        with pytest.raises(InvalidArgumentError, match="state_dict: expected a loop whose batches the loader makes"):
            loader.state_dict()
    order = torch.utils.data.SequentialSampler(range(20))
    ordered = Own(dataset, sampler, torch.arange(20, 40), batch_size=7, sampler=order)
    assert torch.cat([batch.batch for batch in ordered]).tolist() == [*range(20, 40)]


# --- keywords --------------------------------------------------------------------------------------------------


def test_keywords_of_torch() -> None:
    """As programs for that library give them; what has no effect is said."""
    dataset = make_dataset(HOMOGENEOUS)
    given = {"num_workers": 2, "persistent_workers": True, "prefetch_factor": 4}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loader = glt.loader.NeighborLoader(dataset, [2], torch.arange(20), batch_size=7, **given)
        links = glt.loader.LinkNeighborLoader(dataset, [2], num_workers=16, persistent_workers=True, drop_last=True)
        glt.loader.subgraph_loader.SubGraphLoader(dataset, torch.arange(20), num_workers=0)
    wanted = NeighborLoader(dataset, [2], torch.arange(20), batch_size=7)
    assert all(torch.equal(batch.node, core.n_id) for batch, core in pairs(loader, wanted))
    assert repr(links) == "LinkNeighborLoader()"
    assert len(links._seed_loader) == len(links)
    assert (len(loader._seed_loader), [seeds.tolist() for seeds in loader._seed_loader][-1]) == (3, [*range(14, 20)])
    with pytest.raises(TypeError, match="unexpected keyword argument 'workers'"):
        glt.loader.NeighborLoader(dataset, [2], torch.arange(20), workers=3)
