"""PyG's remote backend over servers, and its loaders with our sampler: what they give is what the data set holds."""

from __future__ import annotations

import functools
import multiprocessing
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch_geometric.data import Data, EdgeAttr, HeteroData, TensorAttr
from torch_geometric.loader import LinkLoader, NodeLoader
from torch_geometric.sampler import NeighborSampler as PygNeighborSampler
from torch_geometric.sampler import NodeSamplerInput as PygNodes
from torch_geometric.utils import k_hop_subgraph

from graphlearn_dist.distributed import DistNeighborLoader, DistServer, MpDistSamplingWorkerOptions, ServedDataset, rpc
from graphlearn_dist.distributed.pyg_sampler import PyGSampler, batch_index
from graphlearn_dist.distributed.pyg_stores import ServerFeatureStore, ServerGraphStore
from graphlearn_dist.errors import InvalidArgumentError, NotInitializedError, UnknownIdError
from graphlearn_dist.loader import NeighborLoader
from graphlearn_dist.partition import TablePartitioner, partition_pyg
from graphlearn_dist.sampler import NeighborSampler, NodeSamplerInput
from tests.support.graphs import (
    EDGE_TYPES,
    TestGraph,
    make_dataset,
    random_graph,
    typed_graph,
    with_times,
    with_weights,
)
from tests.support.jobs import Job, running_servers
from tests.support.oracle import PARTITIONERS, assert_same, pyg_tensors, write_partitions

NUM_NODES = 120
GRAPHS = {
    "homogeneous": with_times(with_weights(random_graph(NUM_NODES, 900, 8), 3, some_zero=False), 4),
    "typed": with_weights(typed_graph(60, 30, 300, 9), 3, some_zero=False),
}
KINDS = {"homogeneous": ("table", 2, (0, 1, 0)), "typed": ("random", 2, (0, 1))}  # partitioner, parts, who holds which
SEED = 7


# --- connecting: before the servers of the other tests, of which this process is a client ------------------------


def test_connecting() -> None:
    with pytest.raises(NotInitializedError, match="not a client"):
        ServedDataset.connect()


def test_a_partition_that_nobody_serves(tmp_path: Path) -> None:
    directory = write_partitions(GRAPHS["homogeneous"], tmp_path, "range", 2, "in")
    with running_servers(directory, partitions=(1,)) as job, job.client():
        with pytest.raises(InvalidArgumentError, match=r"expected all partitions of one data set.*without \{0\}"):
            ServedDataset.connect()


def test_every_attribute_is_served(tmp_path: Path) -> None:
    """Further attributes of nodes and edges, typed; and a loader of this package asks for those of edges, too."""
    data = pyg_data(GRAPHS["typed"])
    first = EDGE_TYPES[0]
    count, num_edges = data["user"].num_nodes, data[first].edge_index.size(1)
    data["user"].pos, data["user"].is_old = torch.rand(count, 3), torch.arange(count) % 2 == 0
    data[first].stars = torch.arange(num_edges)
    partition_pyg(data, tmp_path, num_parts=2)
    with running_servers(tmp_path, tmp_path, partitions=(0, 1)) as job, job.client():
        served = ServedDataset.connect(60.0)
        features = ServerFeatureStore(served)
        ids = torch.tensor([5, 0, 5])
        assert torch.equal(features.get_tensor("user", "pos", ids), data["user"].pos[ids])
        assert torch.equal(features.get_tensor("user", "is_old", None), data["user"].is_old)
        assert torch.equal(features.get_tensor(first, "stars", ids), ids)
        listed = {(attr.group_name, attr.attr_name) for attr in features.get_all_tensor_attrs()}
        assert {("user", "pos"), ("user", "is_old")} <= listed
        assert {(attr.group_name, attr.attr_name) for attr in features.edge_tensor_attrs()} == {(first, "stars")}
        loader = NeighborLoader((features, ServerGraphStore(served)), [3], ("user", ids), batch_size=3, seed=1)
        (batch,) = loader
        (expected,) = NeighborLoader(data, [3], ("user", ids), batch_size=3, seed=1)
        assert torch.equal(batch["user"].pos, expected["user"].pos)
        assert torch.equal(batch[first].stars, expected[first].stars)
        assert len(batch[first].stars) == batch[first].edge_index.size(1)


# --- features --------------------------------------------------------------------------------------------------


class Served:
    """A job of servers and what its client sees."""

    def __init__(self, name: str, job: Job) -> None:
        self.graph = GRAPHS[name]
        self.job = job
        self.data = ServedDataset.connect(60.0)
        self.features, self.edges = ServerFeatureStore(self.data), ServerGraphStore(self.data)
        self.seed_type = None if self.graph.is_homogeneous else "user"
        self.link_type = None if self.graph.is_homogeneous else EDGE_TYPES[0]

    def inputs(self, ids: torch.Tensor) -> Any:
        return ids if self.seed_type is None else (self.seed_type, ids)


@pytest.fixture(scope="module", params=list(GRAPHS))
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    kind, num_parts, partitions = KINDS[request.param]
    owners = (torch.arange(NUM_NODES) * 7) % 5 % num_parts
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(PARTITIONERS, "table", functools.partial(TablePartitioner, node_owners=owners))
        root = tmp_path_factory.mktemp(request.param)
        directory = write_partitions(GRAPHS[request.param], root, kind, num_parts, "in")
    with running_servers(*[directory] * len(partitions), partitions=partitions) as job, job.client():
        yield Served(request.param, job)


def pyg_data(graph: TestGraph) -> Any:
    """The graph as PyG holds it."""
    if graph.is_homogeneous:
        rows = [part[None] for part in (graph.node_features(), graph.edges, graph.edge_features(), graph.node_labels())]
        return Data(*rows)
    data = HeteroData()
    for key, count in graph.num_nodes.items():
        data[key].num_nodes = count
        data[key].y = graph.node_labels()[key]
        if key in graph.node_features():
            data[key].x = graph.node_features()[key]
    for key, edges in graph.edges.items():
        data[key].edge_index = edges
    return data


def test_rows_of_nodes(served: Served) -> None:
    count = served.graph.num_nodes[served.seed_type]
    ids = torch.tensor([5, count - 1, 0, 5, 17, 17])
    mask = torch.arange(count) % 3 == 0
    for name, rows in (("x", served.graph.node_features()), ("y", served.graph.node_labels())):
        for index in (ids, ids.int(), ids[:0], None, slice(3, count, 7), slice(-5, None), mask):
            found = served.features.get_tensor(served.seed_type, name, index)
            expected = rows[served.seed_type] if index is None else rows[served.seed_type][index]
            assert torch.equal(found, expected), index
            assert found.dtype == expected.dtype
        assert torch.equal(served.features[served.seed_type, name, 11], rows[served.seed_type][11])
        assert torch.equal(served.features.view(group_name=served.seed_type)[name][ids], rows[served.seed_type][ids])


def test_what_is_listed(served: Served) -> None:
    features, labels = served.graph.node_features(), served.graph.node_labels()
    listed = {(attr.group_name, attr.attr_name) for attr in served.features.get_all_tensor_attrs()}
    assert listed == {(key, "x") for key in features} | {(key, "y") for key in labels}
    for key, rows in features.items():
        assert served.features.get_tensor_size(group_name=key, attr_name="x") == tuple(rows.shape)
    for key, rows in labels.items():
        assert served.features.get_tensor_size(TensorAttr(key, "y")) == tuple(rows.shape)
    assert served.features.get_tensor_size(TensorAttr("item", "x")) is None


def test_rows_of_edges(served: Served) -> None:
    for edge_type, rows in served.graph.edge_features().items():
        ids = torch.tensor([3, 200, 3, 0])
        assert torch.equal(served.features.get_tensor(edge_type, "edge_attr", ids), rows[ids])
        assert torch.equal(served.features.get_tensor(edge_type, "edge_attr", None), rows)


def test_several_tensors_are_asked_for_together(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    endpoint, asked = rpc.get_endpoint(), []
    request = endpoint.request

    def counted(target: Any, function: str, *args: Any, **kwargs: Any) -> Any:
        asked.append((target, function))
        return request(target, function, *args, **kwargs)

    monkeypatch.setattr(endpoint, "request", counted)
    ids = {key: torch.randperm(count)[:25] for key, count in served.graph.num_nodes.items()}
    attrs = served.features.get_all_tensor_attrs()
    for attr in attrs:
        attr.index = ids[attr.group_name]
    found = served.features.multi_get_tensor([*attrs, TensorAttr(served.seed_type, "x", torch.tensor([2, 1]))])
    rows = {"x": served.graph.node_features(), "y": served.graph.node_labels()}
    for attr, tensor in zip(attrs, found[:-1], strict=True):
        assert torch.equal(tensor, rows[attr.attr_name][attr.group_name][attr.index])
    assert torch.equal(found[-1], rows["x"][served.seed_type][[2, 1]])
    assert len(asked[: served.data.num_partitions]) == len({target for target, _ in asked}) == 2
    assert len(asked) <= 4  # one more round for the second part of x


def test_wrong_reads(served: Served) -> None:
    count = served.graph.num_nodes[served.seed_type]
    for bad in (count, -1):
        with pytest.raises(UnknownIdError, match=rf"index: id {bad} is outside \[0, {count}\)"):
            served.features.get_tensor(served.seed_type, "x", torch.tensor([0, bad]))
    with pytest.raises(InvalidArgumentError, match=r"index: expected dtype int64 or int32, got torch.float32"):
        served.features.get_tensor(served.seed_type, "x", torch.tensor([0.5]))
    with pytest.raises(InvalidArgumentError, match=rf"index: expected a mask \[{count}\], got \(3,\)"):
        served.features.get_tensor(served.seed_type, "x", torch.tensor([True, False, True]))
    for group, name in ((served.seed_type, "z"), ("paper", "x"), ("item", "x")):
        with pytest.raises(InvalidArgumentError, match=f"the servers have no '{name}' of {group!r}"):
            served.features.get_tensor(group, name, None)
    with pytest.raises(KeyError, match="not found"):
        served.edges.get_edge_index(("paper", "cites", "paper"), "coo")


def test_nothing_can_be_written(served: Served) -> None:
    edge_index = (torch.tensor([0]), torch.tensor([1]))
    with pytest.raises(InvalidArgumentError, match="put_tensor: expected only reads"):
        served.features.put_tensor(torch.zeros(1, 2), served.seed_type, "x", None)
    with pytest.raises(InvalidArgumentError, match="remove_tensor: expected only reads"):
        served.features.remove_tensor(served.seed_type, "x", None)
    with pytest.raises(InvalidArgumentError, match="put_edge_index: expected only reads"):
        served.edges.put_edge_index(edge_index, served.link_type, "coo")
    with pytest.raises(InvalidArgumentError, match="remove_edge_index: expected only reads"):
        served.edges.remove_edge_index(served.link_type, "coo")


# --- edges -----------------------------------------------------------------------------------------------------


def test_edges_in_every_layout(served: Served) -> None:
    for attr in served.edges.get_all_edge_attrs():
        source, target = served.graph.edges[attr.edge_type]
        expected = sorted(zip(target.tolist(), source.tolist(), strict=True))
        row, col = served.edges.get_edge_index(attr)
        assert list(zip(col.tolist(), row.tolist(), strict=True)) == expected
        num_sources, num_targets = attr.size
        ends = (None, None) if attr.edge_type is None else attr.edge_type[::2]
        assert attr.size == tuple(served.graph.num_nodes[end] for end in ends)
        row, colptr = served.edges.get_edge_index(EdgeAttr(attr.edge_type, "csc"))
        assert torch.repeat_interleave(torch.arange(num_targets), colptr.diff()).tolist() == [t for t, _ in expected]
        assert row.tolist() == [s for _, s in expected]
        rowptr, col = served.edges.get_edge_index(EdgeAttr(attr.edge_type, "csr"))
        rows = torch.repeat_interleave(torch.arange(num_sources), rowptr.diff())
        assert list(zip(rows.tolist(), col.tolist(), strict=True)) == sorted((s, t) for t, s in expected)


@pytest.mark.filterwarnings("ignore:Using 'NeighborSampler' without a 'pyg-lib'")
def test_pygs_own_sampler_finds_the_graph(served: Served) -> None:
    """Whatever it then samples with, PyG's sampler holds the same neighbors as it does of the data themselves."""
    remote = PygNeighborSampler((served.features, served.edges), [2])
    local = PygNeighborSampler(pyg_data(served.graph), [2])
    if served.graph.is_homogeneous:
        pairs = [(remote.colptr, remote.row, local.colptr, local.row)]
    else:
        names = local.colptr_dict
        assert remote.colptr_dict.keys() == names.keys()
        pairs = [(remote.colptr_dict[n], remote.row_dict[n], local.colptr_dict[n], local.row_dict[n]) for n in names]
    for colptr, row, local_colptr, local_row in pairs:
        assert torch.equal(colptr, local_colptr)
        bounds = list(zip(colptr.tolist(), colptr[1:].tolist(), strict=False))
        assert [sorted(row[i:j].tolist()) for i, j in bounds] == [sorted(local_row[i:j].tolist()) for i, j in bounds]
    assert remote.num_nodes == local.num_nodes


# --- the sampler -----------------------------------------------------------------------------------------------


def assert_same_batch(batch: Any, expected: Any) -> None:
    """A batch over the stores has all that one over the data has but edge features, which PyG asks no store for."""
    found, wanted = pyg_tensors(batch), pyg_tensors(expected)
    assert_same(
        {name: value for name, value in found.items() if not name.startswith("num_nodes")},
        {name: value for name, value in wanted.items() if not name.startswith(("num_nodes", "edge_attr"))},
    )


SETTINGS: dict[str, dict[str, Any]] = {
    "uniform": {"num_neighbors": [4, 3]},
    "weighted": {"num_neighbors": [4, 3], "with_weight": True, "replace": True},
    "labor": {"num_neighbors": [4, 3], "strategy": "labor"},
    "disjoint": {"num_neighbors": [3, -1], "disjoint": True, "num_threads": 2},
}


@pytest.mark.parametrize("settings", SETTINGS)
def test_batches_from_servers_are_those_of_the_data(served: Served, settings: str) -> None:
    count = served.graph.num_nodes[served.seed_type]
    ids = torch.cat([torch.arange(count), torch.arange(4)])
    dataset, arguments = (
        make_dataset(served.graph, "in"),
        {"seed": SEED, "temporal_strategy": None, **SETTINGS[settings]},
    )
    local = NodeLoader(pyg_data(served.graph), PyGSampler(dataset, **arguments), served.inputs(ids), batch_size=30)
    remote = NodeLoader(
        (served.features, served.edges), PyGSampler(served.data, **arguments), served.inputs(ids), batch_size=30
    )
    for batch, expected in zip(remote, local, strict=True):
        assert_same_batch(batch, expected)
        seeds = batch if served.seed_type is None else batch[served.seed_type]
        assert torch.equal(seeds.x, served.graph.node_features()[served.seed_type][seeds.n_id])
        assert torch.equal(seeds.n_id[: seeds.batch_size], ids[seeds.input_id])


def test_times_of_seeds(served: Served) -> None:
    if not served.graph.times:
        with pytest.raises(InvalidArgumentError, match="input_time: expected edge times"):
            PyGSampler(served.data, [2]).sample_from_nodes(
                PygNodes(None, torch.tensor([0]), torch.tensor([3]), served.seed_type)
            )
        return
    ids, times = torch.arange(40), torch.arange(40) % 20
    stores, dataset = (served.features, served.edges), make_dataset(served.graph, "in")
    for strategy in ("uniform", "last"):
        remote, local = (PyGSampler(data, [3, 2], temporal_strategy=strategy) for data in (served.data, dataset))
        batches = NodeLoader(stores, remote, ids, input_time=times, batch_size=16)
        for batch, expected in zip(
            batches, NodeLoader(pyg_data(served.graph), local, ids, input_time=times, batch_size=16), strict=True
        ):
            assert torch.equal(batch.n_id, expected.n_id)
            assert torch.equal(batch.edge_index, expected.edge_index)
            assert torch.equal(batch.seed_time, times[batch.input_id])
            assert torch.equal(batch.batch, expected.batch)
            seen = served.graph.times[None][batch.e_id]
            assert bool((seen <= batch.seed_time[batch.batch[batch.edge_index[1]]]).all())


@pytest.mark.parametrize("mode", ["none", "binary", "triplet"])
def test_links(served: Served, mode: str) -> None:
    links = served.graph.edges[served.link_type][:, :33]
    options: dict[str, Any] = {"edge_label_index": (served.link_type, links), "batch_size": 11}
    if mode != "none":
        options["neg_sampling"] = (mode, 2.0)
    if mode == "binary":
        options["edge_label"] = torch.arange(33) % 3
    remote = LinkLoader(
        (served.features, served.edges), PyGSampler(served.data, [3, 2], seed=SEED, temporal_strategy=None), **options
    )
    if served.link_type is None:
        options["edge_label_index"] = links
    local_sampler = PyGSampler(make_dataset(served.graph, "in"), [3, 2], seed=SEED, temporal_strategy=None)
    local = LinkLoader(pyg_data(served.graph), local_sampler, **options)
    ends = (None, None) if served.link_type is None else served.link_type[::2]
    for batch, expected in zip(remote, local, strict=True):
        assert_same_batch(batch, expected)
        source, target = (batch if end is None else batch[end] for end in ends)
        store = batch if served.link_type is None else batch[served.link_type]
        positives = links[:, store.input_id]
        if mode == "triplet":
            assert torch.equal(source.n_id[source.src_index], positives[0])
            assert torch.equal(target.n_id[target.dst_pos_index], positives[1])
            assert target.dst_neg_index.shape == (11, 2)
            continue
        assert torch.equal(source.n_id[store.edge_label_index[0, :11]], positives[0])
        assert torch.equal(target.n_id[store.edge_label_index[1, :11]], positives[1])
        if mode == "binary":
            assert store.edge_label.tolist() == [*(store.input_id % 3 + 1).tolist(), *[0] * 22]


def test_loaders_want_rows_that_are_here(served: Served) -> None:
    for options in (None, MpDistSamplingWorkerOptions()):
        with pytest.raises(InvalidArgumentError, match="data: expected a partition whose rows are here"):
            DistNeighborLoader(served.data, [2], served.inputs(torch.arange(3)), edge_dir="in", worker_options=options)
    with pytest.raises(InvalidArgumentError, match="data: expected a partition whose rows are here"):
        DistServer(served.data)


def read_in_child(features: ServerFeatureStore, group: Any, answer: Any) -> None:
    try:
        features.get_tensor(group, "x", torch.tensor([1]))
    except NotInitializedError as error:
        answer.send(str(error))


def test_a_process_forked_from_a_client_is_told(served: Served) -> None:
    """It does not wait for answers that nobody would hand it, as a worker of a PyG loader."""
    fork = multiprocessing.get_context("fork")
    answer, theirs = fork.Pipe(duplex=False)
    child = fork.Process(target=read_in_child, args=(served.features, served.seed_type, theirs))
    child.start()
    try:
        assert answer.poll(30.0)
        assert re.search(r"the data set on servers belongs to process.*num_workers=0", answer.recv())
    finally:
        child.join(30.0)
        child.kill()


# --- without servers -------------------------------------------------------------------------------------------

HOMOGENEOUS = GRAPHS["homogeneous"]


def test_draws_are_those_of_the_sampler() -> None:
    dataset, ids = make_dataset(HOMOGENEOUS, "in"), torch.tensor([4, 90, 4, 7])
    adapter = PyGSampler(dataset, [3, 2], seed=SEED, temporal_strategy=None)
    own = NeighborSampler(dataset.graph, [3, 2], with_edge=True, edge_dir="in", seed=SEED, temporal_strategy=None)
    for epoch in (0, 5):
        adapter.set_epoch(epoch)
        positions = torch.tensor([8, 2, 1, 0])
        out = adapter.sample_from_nodes(PygNodes(positions, ids))
        expected = own.sample_from_nodes(NodeSamplerInput(ids), epoch=epoch, index=batch_index(positions))
        for name in ("node", "row", "col", "edge"):
            assert torch.equal(getattr(out, name), getattr(expected, name))
        assert (out.num_sampled_nodes, out.num_sampled_edges) == (
            expected.num_sampled_nodes,
            expected.num_sampled_edges,
        )
        assert out.metadata[0] is positions
        assert out.batch is None


def test_the_number_of_a_batch_is_that_of_its_seeds() -> None:
    """It is part of what a batch is: another version must not draw differently."""
    assert (
        batch_index(torch.tensor([0, 1])) == batch_index(torch.tensor([0, 1], dtype=torch.int32)) == 4059051691542397301
    )
    assert len({batch_index(torch.tensor(ids)) for ids in ([0, 1], [1, 0], [0], [0, 1, 1], [2, 3])}) == 5


def test_neither_workers_nor_order_matter() -> None:
    data, dataset = pyg_data(HOMOGENEOUS), make_dataset(HOMOGENEOUS, "in")

    def epochs(num_workers: int, **options: Any) -> list[list[dict[str, Any]]]:
        sampler = PyGSampler(dataset, [3, 2], seed=SEED, temporal_strategy=None)
        loader = NodeLoader(data, sampler, None, batch_size=16, num_workers=num_workers, **options)
        found = []
        for epoch in range(2):
            sampler.set_epoch(epoch)
            found.append([pyg_tensors(batch) for batch in loader])
        return found

    here, forked = epochs(0), epochs(2, persistent_workers=True)
    for batches, others in zip(here, forked, strict=True):
        for batch, other in zip(batches, others, strict=True):
            assert_same(batch, other)
    assert not torch.equal(here[0][0]["n_id."], here[1][0]["n_id."])  # another epoch, other draws
    shuffled = PyGSampler(dataset, [3, 2], seed=SEED, temporal_strategy=None)
    one = shuffled.sample_from_nodes(PygNodes(torch.arange(16), torch.arange(16)))
    assert torch.equal(one.node, here[0][0]["n_id."])


def test_full_neighborhoods_are_pygs() -> None:
    data, ids = pyg_data(HOMOGENEOUS), torch.tensor([3, 50])
    (batch,) = NodeLoader(
        data, PyGSampler(make_dataset(HOMOGENEOUS, "in"), [-1, -1], temporal_strategy=None), ids, batch_size=2
    )
    expected, _, _, _ = k_hop_subgraph(ids, 2, data.edge_index, flow="source_to_target")
    assert sorted(batch.n_id.tolist()) == expected.tolist()
    assert torch.equal(batch.x, data.x[batch.n_id])
    assert torch.equal(batch.edge_attr, data.edge_attr[batch.e_id])
    assert torch.equal(batch.n_id[batch.edge_index], data.edge_index[:, batch.e_id])
    assert torch.equal(batch.input_id, torch.tensor([0, 1]))


def test_wrong_data() -> None:
    with pytest.raises(InvalidArgumentError, match=r"data: expected PyG's Data, HeteroData or .*, got dict"):
        PyGSampler({}, [2])
    with pytest.raises(InvalidArgumentError, match="num_neighbors: expected fan-outs for PyGSampler itself"):
        PyGSampler(pyg_data(HOMOGENEOUS)).sample_from_nodes(PygNodes(None, torch.tensor([1])))
    with pytest.raises(InvalidArgumentError, match="edge_dir: the data set holds 'out'-neighbors"):
        PyGSampler(make_dataset(HOMOGENEOUS, "out"), [2])
    with pytest.raises(InvalidArgumentError, match="with_weight: expected edge weights"):
        PyGSampler(make_dataset(random_graph(20, 50, 1), "in"), [2], with_weight=True)
    with pytest.raises(UnknownIdError, match="120"):
        PyGSampler(make_dataset(HOMOGENEOUS, "in"), [2], temporal_strategy=None).sample_from_nodes(
            PygNodes(None, torch.tensor([120]))
        )
