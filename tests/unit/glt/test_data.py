"""What data sets, graphs, books and helpers of ``glt`` do otherwise than those of the core."""

from __future__ import annotations

import copy
import itertools
import pickle
import warnings
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import graphlearn_dist
import graphlearn_dist.glt as glt
from graphlearn_dist import _C
from graphlearn_dist.errors import InvalidArgumentError
from graphlearn_dist.utils import no_effect

EDGES = torch.tensor([[0, 0, 1, 2, 3, 3], [1, 2, 2, 3, 0, 1]])


def ring() -> Any:
    """A data set of four nodes."""
    dataset = glt.data.Dataset()
    dataset.init_graph(EDGES, graph_mode="cpu")
    dataset.init_node_features(torch.arange(8.0).view(4, 2), with_gpu=False)
    dataset.init_node_labels(torch.arange(4)[:, None])
    return dataset


def test_topologies_are_of_int64() -> None:
    for topology in (glt.data.Topology(EDGES, input_layout="coo", layout="CSC"), ring().get_graph().topo):
        assert type(topology) is glt.data.Topology
        assert {topology.indptr.dtype, topology.indices.dtype, topology.edge_ids.dtype} == {torch.int64}
        assert torch.equal(topology.to_coo()[0].sort().values, EDGES[0])
    graph = glt.data.Graph(glt.data.Topology(EDGES), mode="cpu")
    assert graph.mode == "CPU"
    sent = ForkingPickler.loads(ForkingPickler.dumps(graph))
    assert type(sent) is glt.data.Graph
    assert all(torch.equal(a, b) for a, b in zip(sent.export_topology(), graph.export_topology(), strict=True))


def test_topologies_by_their_earlier_name() -> None:
    indptr, indices = torch.tensor([0, 2, 3, 4, 6]), EDGES[1]
    by_rows = glt.data.CSRTopo((indptr, indices), torch.arange(10, 16), "CSR")
    by_columns = glt.data.CSRTopo((indices, indptr), layout="csc")  # the edges the other way around
    assert torch.equal(torch.stack(by_rows.to_coo()[:2]), EDGES)
    assert by_rows.edge_ids.tolist() == [10, 11, 12, 13, 14, 15]
    assert set(zip(*(ends.tolist() for ends in by_columns.to_coo()[:2]), strict=True)) == set(
        zip(*EDGES.flip(0).tolist(), strict=True)
    )
    graph = glt.data.Graph(glt.data.CSRTopo(EDGES), mode="CPU")
    subgraph = glt.sampler.NeighborSampler(graph, [-1]).subgraph(torch.tensor([0, 1]))
    assert subgraph.node[subgraph.metadata].tolist() == [0, 1]


@pytest.mark.skipif(_C.cuda_device_count() > 0, reason="GPUs are usable")
def test_shares_for_gpus_where_there_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that keeps a share of its rows on GPUs runs without, and is told so once; a device stays an error."""
    monkeypatch.setattr(no_effect, "_warned", set())
    dataset, rows, groups = ring(), torch.arange(8.0).view(4, 2), [glt.data.DeviceGroup(0, [0])]
    with pytest.warns(UserWarning, match="split_ratio: it has no effect here: no GPU is usable") as told:
        dataset.init_node_features(rows, None, glt.data.sort_by_in_degree, 0.5, groups)
    assert len(told) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        dataset.init_edge_features(torch.arange(6.0)[:, None], split_ratio=1.0)
        made = glt.data.Feature(rows, split_ratio=0.2)
    ids = torch.tensor([3, 0, 3])
    for feature in (dataset.node_features, made, ForkingPickler.loads(ForkingPickler.dumps(dataset.node_features))):
        assert type(feature) is glt.data.Feature
        assert torch.equal(feature[ids], rows[ids])
    assert dataset.edge_features[ids].view(-1).tolist() == [3.0, 0.0, 3.0]
    for arguments, match in (({"split_ratio": 0.5, "device": 0}, "device: expected"), ({"split_ratio": 1.5}, "split_")):
        with pytest.raises(InvalidArgumentError, match=match):
            glt.data.Feature(rows, **arguments)
    with pytest.raises(InvalidArgumentError, match="0 GPUs are usable"):
        graphlearn_dist.data.Feature(rows, split_ratio=0.5)


def test_data_sets() -> None:
    dataset = ring()
    assert (dataset.node_labels.shape, dataset.get_node_types(), dataset.get_edge_types()) == ((4,), None, None)
    dataset.init_graph(None)
    dataset.init_node_features(None)
    dataset.init_edge_features(None)
    dataset.init_node_labels(None)  # nothing is given, and nothing changes
    assert (dataset.get_graph().edge_count, dataset.get_node_feature().shape) == (6, (4, 2))
    dataset.init_node_split((torch.tensor([[0, 1]]), torch.tensor([1]), None))
    assert (dataset.train_idx.tolist(), dataset.val_idx.tolist(), dataset.test_idx) == ([0, 1], [1], None)
    dataset["note"] = 3
    assert (dataset["note"], dataset["nothing"]) == (3, None)


def test_random_splits_follow_torch() -> None:
    dataset, splits = ring(), []
    for seed in (1, 1):
        torch.manual_seed(seed)
        dataset.random_node_split(1, 0.25)
        splits.append([dataset.train_idx.tolist(), dataset.val_idx.tolist(), dataset.test_idx.tolist()])
    assert splits[0] == splits[1]
    assert sorted(itertools.chain(*splits[0])) == [0, 1, 2, 3]
    torch.manual_seed(0)
    assert len({tuple(glt.data.random_split(20, 5, 5)[1].tolist()) for _ in range(5)}) > 1
    typed = glt.data.Dataset(node_labels={"user": torch.arange(6)})
    typed.random_node_split(2, 1)
    assert {key: len(ids) for key, ids in typed.train_idx.items()} == {"user": 3}


def test_random_splits_need_labels() -> None:
    whole = torch.zeros(4, dtype=torch.int64)
    for dataset in (glt.data.Dataset(), glt.distributed.DistDataset(node_pb=whole)):
        dataset.init_graph(torch.tensor([[0, 1, 2], [1, 2, 3]]), graph_mode="CPU")
        with pytest.raises(InvalidArgumentError, match=r"node_labels: expected labels, .*init_node_labels first"):
            dataset.random_node_split(0.1, 0.2)
        assert dataset.train_idx is None


def test_edge_types_are_in_the_order_in_which_they_were_given() -> None:
    """As lists, and in batches, whose edges are the same in any order."""
    edges = {("b", "to", "a"): torch.tensor([[0, 1], [1, 0]]), ("a", "to", "b"): torch.tensor([[0, 1], [0, 1]])}
    batches = []
    for order in (list(edges), list(edges)[::-1]):
        dataset = glt.data.Dataset()
        dataset.init_graph({edge_type: edges[edge_type] for edge_type in order}, graph_mode="CPU")
        assert dataset.get_edge_types() == order
        loader = glt.loader.NeighborLoader(dataset, [1, 1], ("a", torch.arange(2)), batch_size=2)
        batch = next(iter(loader))
        wanted = [glt.typing.reverse_edge_type(edge_type) for edge_type in order]
        assert batch.edge_types == list(batch.edge_index_dict) == list(batch.num_sampled_edges) == wanted
        assert batch.metadata()[1] == wanted
        batches.append(batch)
        worker = glt.distributed.DistDataset(1, 0, dataset.graph, node_pb=dict.fromkeys("ab", torch.zeros(2).long()))
        assert worker.get_edge_types() == order
        with glt.distributed.DistNeighborLoader(worker, [1, 1], ("a", torch.arange(2)), batch_size=2) as made:
            assert next(iter(made)).edge_types == wanted
    one, other = batches
    for edge_type in one.edge_types:
        assert torch.equal(one[edge_type].edge_index, other[edge_type].edge_index)


def test_data_sets_of_other_processes() -> None:
    dataset = ring()
    dataset.init_node_split((torch.tensor([0]), torch.tensor([1]), torch.tensor([2])))
    one = glt.distributed.DistDataset(
        1, 0, dataset.graph, dataset.node_features, None, torch.arange(4)[:, None], torch.zeros(4, dtype=torch.int64)
    )
    for given in (dataset, one):
        for made in (
            ForkingPickler.loads(ForkingPickler.dumps(given)),
            pickle.loads(pickle.dumps(given)),
            copy.copy(given),
        ):
            assert type(made) is type(given)
            assert torch.equal(made.get_node_feature()[torch.tensor([3])], torch.tensor([[6.0, 7.0]]))
            assert torch.equal(made.node_labels, torch.arange(4))


def test_range_books() -> None:
    book = glt.partition.RangePartitionBook([(0, 3), (3, 7)], 1)
    assert book.partition_bounds.tolist() == [3, 7]
    assert book[torch.tensor([0, 3, 6])].tolist() == [0, 1, 1]
    assert (book.id2index[torch.tensor([3, 6])].tolist(), book.id_filter(book, 1).tolist()) == ([0, 3], [3, 4, 5, 6])
    assert pickle.loads(pickle.dumps(book)).partition_bounds.tolist() == [3, 7]
    with pytest.raises(ValueError, match="partition_ranges"):
        glt.partition.RangePartitionBook([(0, 3), (4, 7)], 0)


def test_books_of_subclassed_tensors() -> None:
    book = torch.tensor([0, 1, 1]).as_subclass(glt.partition.GLTPartitionBook)
    assert (book[torch.tensor([1])].tolist(), book.num_partitions, book.local_ids(1).tolist()) == ([1], 2, [1, 2])
    assert glt.utils.default_id_filter(book, 1).tolist() == [1, 2]
    assert glt.utils.default_id_select(torch.tensor([5, 6]), torch.tensor([True, False])).tolist() == [5]


def test_helpers() -> None:
    utils = glt.utils
    assert utils.convert_to_tensor(["a", 1, None]) == ["a", 1, None]
    assert torch.equal(utils.convert_to_tensor({"a": (np.arange(2),)}, torch.float32)["a"][0], torch.arange(2.0))
    found = utils.index_select(({"a": torch.arange(5)}, [torch.arange(5), None]), (1, 3))
    assert (found[0]["a"].tolist(), found[1][0].tolist(), found[1][1]) == ([1, 2], [1, 2], None)
    assert (utils.parse_size(1.5), utils.parse_size("2KB"), utils.UNITS["MB"]) == (1, 2048, 1 << 20)
    counts: dict[str, list[int]] = {"a": [0]}
    utils.count_dict({"a": [1, 2], "b": [3]}, counts, 3)
    assert counts == {"a": [0, 0, 2], "b": [0, 0, 1]}
    assert glt.data.sort_by_in_degree(EDGES, 0.5, None) == (EDGES, None)
    assert utils.exit_status.python_exit_status is False


def test_checkpoints(tmp_path: Path) -> None:
    model, other = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    optimizers = [torch.optim.Adam(one.parameters(), lr=rate) for one, rate in ((model, 0.5), (other, 0.1))]
    model(torch.ones(1, 2)).sum().backward()
    optimizers[0].step()
    folder = str(tmp_path / "checkpoints")
    glt.utils.common.save_ckpt(3, folder, model, optimizers[0], epoch=1.5)
    assert glt.utils.common.load_ckpt(4, folder, other) == -1
    assert glt.utils.common.load_ckpt(3, folder, other, optimizers[1]) == 1.5
    assert torch.equal(other.weight, model.weight)
    assert optimizers[1].param_groups[0]["lr"] == 0.5


def test_errors_of_the_core() -> None:
    with pytest.raises(InvalidArgumentError, match="mode: expected 'CPU'"):
        glt.data.Graph(glt.data.Topology(EDGES), "gpu")
    with pytest.raises(InvalidArgumentError, match="layout"):
        glt.data.Topology(EDGES, input_layout="rows")


def test_names_at_the_top() -> None:
    """Names of types are at the top of both packages."""
    for name in (
        "InputNodes",
        "NumNeighbors",
        "NodeLabel",
        "NodeIndex",
        "Seeds",
        "EdgeIndexTensor",
        "reverse_edge_type",
    ):
        assert getattr(graphlearn_dist, name) is getattr(glt, name)
    assert (graphlearn_dist.EDGE_TYPE_STR_SPLIT, glt.as_str(("a", "b", "c"))) == ("__", "a__b__c")
