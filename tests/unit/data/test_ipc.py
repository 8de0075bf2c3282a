"""Graphs, features and data sets that other processes receive: the same memory, and nothing copied."""

from __future__ import annotations

import copy
import pickle
import re
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.multiprocessing as mp

from graphlearn_dist.data import Dataset, Feature, Graph, Topology, UnifiedTensor
from graphlearn_dist.data.dataset import rebuild_dataset, reduce_dataset
from graphlearn_dist.data.feature import rebuild_feature, reduce_feature
from graphlearn_dist.data.graph import rebuild_graph, reduce_graph
from graphlearn_dist.data.unified_tensor import rebuild_unified_tensor, reduce_unified_tensor
from graphlearn_dist.distributed import DistDataset
from graphlearn_dist.distributed.dist_dataset import rebuild_dist_dataset, reduce_dist_dataset
from graphlearn_dist.errors import InvalidArgumentError
from graphlearn_dist.partition.partition_book import OffsetId2Index
from tests.support.graphs import analytic_edges
from tests.support.processes import run_processes

HERE = "tests.unit.data.test_ipc"
DEADLINE_S = 90.0  # only ever reached by a hang
MIB = 1 << 20
NUM_ROWS = 4096
USER, ITEM = "user", "item"
BUYS, BOUGHT_BY = (USER, "buys", ITEM), (ITEM, "bought_by", USER)


def make_whole(num_rows: int = 12, width: int = 2) -> Dataset:
    """A typed data set with everything that one may hold."""
    edges = torch.stack([torch.arange(num_rows), (torch.arange(num_rows) * 3 + 1) % num_rows])
    weights = torch.arange(num_rows) % 3 + 1.0
    dataset = Dataset(edge_dir="in")
    dataset.init_graph(
        {BUYS: edges, BOUGHT_BY: edges.flip(0)},
        edge_ids={BUYS: torch.arange(num_rows) + 5},
        edge_weights={BUYS: weights},
        edge_times={BOUGHT_BY: torch.arange(num_rows)},
        num_nodes={USER: num_rows, ITEM: num_rows},
        node_times={USER: torch.arange(num_rows).flip(0)},
    )
    rows = torch.arange(num_rows, dtype=torch.float32)[:, None].expand(-1, width)
    backwards = torch.arange(num_rows).flip(0)
    dataset.init_node_features({USER: rows.clone(), ITEM: rows.half()}, id2idx={ITEM: backwards})
    dataset.init_edge_features({BUYS: torch.arange(num_rows + 5.0)[:, None]})
    dataset.init_node_labels({USER: backwards.clone(), ITEM: torch.ones(num_rows, 2)}, id2idx={USER: backwards})
    dataset.init_node_split(({USER: backwards[:4]}, {USER: backwards[4:6]}, None))
    return dataset


def values_of(dataset: Dataset) -> dict[str, Any]:
    """Everything that lookups and samplers read of a data set."""
    found: dict[str, Any] = {"schema": dataset.schema}
    for edge_type, graph in dataset.graph.items():
        found[f"coo {edge_type}"] = graph.topo.to_coo()
        found[f"times {edge_type}"] = graph.topo.edge_times
        sums = graph.topo.weight_sums
        found[f"sums {edge_type}"] = None if sums is None else (sums.sums, sums.positive_counts)
    for name, store in dataset.stores().items():
        num_ids = store.size(0) if store.id2index is None else dataset.schema.num_nodes[0]
        found[name] = store[torch.arange(num_ids)]
    found["splits"] = (dataset.train_idx, dataset.val_idx, dataset.test_idx)
    found["earliest"] = dataset.earliest_nodes
    return found


def is_same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(is_same(one[key], other[key]) for key in one)
    if isinstance(one, tuple):
        return len(one) == len(other) and all(map(is_same, one, other))
    return bool(one == other)


# --- in one process ----------------------------------------------------------------------------------------------


def through_handle(dataset: Any) -> Any:
    return type(dataset).from_ipc_handle(dataset.share_ipc())


def through_reduction(dataset: Any) -> Any:
    rebuild, arguments = (reduce_dist_dataset if isinstance(dataset, DistDataset) else reduce_dataset)(dataset)
    assert rebuild in (rebuild_dataset, rebuild_dist_dataset)
    return rebuild(*arguments)


def through_pickle(dataset: Any) -> Any:
    return pickle.loads(pickle.dumps(dataset))


@pytest.mark.parametrize("send", [through_handle, through_reduction, copy.deepcopy, through_pickle])
@pytest.mark.parametrize("partitioned", [False, True])
def test_a_data_set_arrives_whole(send: Any, partitioned: bool) -> None:
    dataset = DistDataset.from_dataset(make_whole()) if partitioned else make_whole()
    expected = values_of(dataset)
    opened = send(dataset)
    assert type(opened) is type(dataset)
    assert is_same(values_of(opened), expected)
    dataset.node_features[USER].feature_tensor[0] = -1.0
    is_shared = float(opened.node_features[USER].feature_tensor[0, 0]) == -1.0
    assert is_shared == (send in (through_handle, through_reduction))
    assert is_same(values_of(through_handle(opened)), values_of(opened))  # and may be sent on


def test_a_data_set_without_anything_and_a_homogeneous_one() -> None:
    nothing = through_handle(Dataset(edge_dir="in"))
    assert (nothing.graph, nothing.node_features, nothing.node_labels, nothing.edge_dir) == (None, None, None, "in")
    dataset = Dataset()
    dataset.init_graph(analytic_edges(9), graph_mode="CPU")
    dataset.init_node_features(torch.arange(9.0)[:, None])
    dataset.random_node_split(2, 3)
    opened = through_handle(dataset)
    assert opened.graph.mode == "CPU"
    assert torch.equal(opened.node_features[torch.tensor([4])], torch.tensor([[4.0]]))
    assert is_same((opened.train_idx, opened.test_idx), (dataset.train_idx, dataset.test_idx))


def test_graphs_features_and_tensors() -> None:
    graph = Graph(Topology(analytic_edges(9), layout="CSC"), "CPU")
    graph.lazy_init()
    rebuild, arguments = reduce_graph(graph)
    assert rebuild is rebuild_graph
    for opened in (rebuild(*arguments), Graph.from_ipc_handle(graph.share_ipc()), copy.deepcopy(graph)):
        assert (opened.mode, opened.topo.layout, opened.col_count) == ("CPU", "CSC", graph.col_count)
        assert is_same(opened.export_topology(), graph.export_topology())
    rows = torch.arange(12).to(torch.int8).view(6, 2)
    feature = Feature(rows, OffsetId2Index(10, 6), dtype=None, num_threads=2, out_dtype=torch.float16)
    rebuild, arguments = reduce_feature(feature)
    assert rebuild is rebuild_feature
    for same in (rebuild(*arguments), Feature.from_ipc_handle(feature.share_ipc()), copy.deepcopy(feature)):
        assert (same.num_threads, same.dtype, same.feature_tensor.dtype) == (2, torch.float16, torch.int8)
        assert is_same(same[torch.tensor([15, 10])], torch.tensor([[10, 11], [0, 1]]).half())
    unified = UnifiedTensor(0, torch.int8, num_threads=2)
    unified.init_from([rows[:4], rows[4:]], [-1, -1])
    rebuild, arguments = reduce_unified_tensor(unified)
    assert rebuild is rebuild_unified_tensor
    for tensor in (
        rebuild(*arguments),
        UnifiedTensor.new_from_ipc(unified.share_ipc(), 0, torch.int8),
        UnifiedTensor.new_from_ipc(([], rows), 0, torch.int8),
        copy.deepcopy(unified),
    ):
        assert is_same(tensor[torch.tensor([5, 0])], rows[[5, 0]])
    assert UnifiedTensor.new_from_ipc(([], None), 0, torch.int8).shape == [0, 0]
    with pytest.raises(InvalidArgumentError, match="needs a GPU"):
        UnifiedTensor.new_from_ipc((["piece"], None), 0, torch.int8)


def test_what_is_shared_stays_where_it_is() -> None:
    dataset = make_whole()
    first = dataset.share_ipc()
    assert dataset.share_ipc() == first
    assert dataset.node_features[USER].share_ipc() == first.node_features[USER]


# --- in two ------------------------------------------------------------------------------------------------------


def private_bytes() -> int:
    """Memory of this process that it shares with nobody."""
    text = Path("/proc/self/smaps_rollup").read_text()
    return sum(1024 * int(kb) for kb in re.findall(r"^Private_(?:Clean|Dirty):\s+(\d+) kB", text, re.MULTILINE))


def read_received(inbox: Any, outbox: Any) -> None:
    """A child: receives objects, reads all of their rows, says what that took, and reads again when it is told to."""
    everything = torch.arange(NUM_ROWS)
    Feature(torch.zeros(NUM_ROWS, 2))[everything]  # what the first lookup of a process takes is not what is counted
    outbox.put("ready")
    before = private_bytes()
    dataset, feature, graph, unified = (inbox.get(timeout=DEADLINE_S) for _ in range(4))
    total = 0.0
    for chunk in everything.split(64):
        for rows in (dataset.node_features[USER], feature, unified):
            total += float(rows[chunk].sum(dtype=torch.float64))
    outbox.put((total, private_bytes() - before))
    outbox.put((graph.edge_count, dataset.train_idx[USER].tolist(), dataset.graph[BUYS].topo.weight_sums.sums.tolist()))
    inbox.get(timeout=DEADLINE_S)
    one = torch.tensor([3])
    outbox.put([float(rows[one][0, 0]) for rows in (dataset.node_features[USER], feature, unified)])


def share_with_a_child() -> None:
    """A parent that sends 24 MiB of rows each in a data set, a feature and a tensor in two pieces, and a graph."""
    width = 24 * MIB // 4 // NUM_ROWS
    dataset = make_whole(NUM_ROWS, width)
    values = dataset.node_features[USER].feature_tensor
    feature, unified = Feature(values + 1), UnifiedTensor(0)
    unified.init_from([values[:100] + 2, values[100:] + 2], [-1, -1])
    expected = 3 * float(values.sum(dtype=torch.float64)) + 3 * values.numel()
    context = mp.get_context("spawn")
    inbox, outbox = context.Queue(), context.Queue()
    child = context.Process(target=read_received, args=(inbox, outbox), daemon=True)
    child.start()
    try:
        assert outbox.get(timeout=DEADLINE_S) == "ready"
        for one in (dataset, feature, dataset.graph[BUYS], unified):
            inbox.put(one)
        total, grown = outbox.get(timeout=DEADLINE_S)
        assert total == expected
        assert grown < 12 * MIB, f"the child grew by {grown / MIB:.1f} MiB"
        seen = (NUM_ROWS, list(range(NUM_ROWS))[:-5:-1], dataset.graph[BUYS].topo.weight_sums.sums.tolist())
        assert outbox.get(timeout=DEADLINE_S) == seen
        for tensor, value in (
            (dataset.node_features[USER].feature_tensor, -1.0),
            (feature.feature_tensor, -2.0),
            (unified.parts[0], -3.0),
        ):
            tensor[3] = value
        inbox.put("written")
        assert outbox.get(timeout=DEADLINE_S) == [-1.0, -2.0, -3.0]
        child.join(DEADLINE_S)
        assert child.exitcode == 0
    finally:
        child.kill()
        child.join(DEADLINE_S)


def test_a_child_maps_what_it_is_sent() -> None:
    run_processes([(f"{HERE}.share_with_a_child", {})], DEADLINE_S)
