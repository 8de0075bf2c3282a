"""Partitioning scripts of GraphLearn-for-PyTorch, and what its data sets load of what they wrote."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch

import graphlearn_dist.glt as glt
from graphlearn_dist.distributed import DistDataset
from graphlearn_dist.utils.system.ports import reserved_port
from tests.distributed.test_partitions_in_memory import check_batches_of
from tests.support import glt_partition_programs as programs
from tests.support.graphs import TestGraph, random_graph, typed_graph, with_weights
from tests.support.processes import assert_nothing_left, start

HERE = "tests.distributed.test_glt_partitions"
DEADLINE_S = 120.0  # only ever reached by a hang
GRAPHS = {
    "homogeneous": lambda: with_weights(random_graph(300, 2500, 8), 3, some_zero=False),
    "typed": lambda: with_weights(typed_graph(120, 80, 900, 9), 3, some_zero=False),
}


def inputs_of(graph: TestGraph) -> dict[str, Any]:
    """What a program reads of its raw files."""
    return {
        "num_nodes": graph.unwrap(graph.num_nodes),
        "edge_index": graph.unwrap(graph.edges),
        "node_feat": graph.unwrap(graph.node_features()),
        "edge_feat": graph.unwrap(graph.edge_features()),
        "edge_weights": graph.unwrap({key: graph.weights_of(key) for key in graph.edges}),
        "seeds": torch.arange(next(iter(graph.num_nodes.values()))),
    }


def loaded(root: Path, graph: TestGraph, **options: Any) -> list[Any]:
    """Both trainers' partitions, with labels of all nodes from files."""
    files = {}
    for key, labels in graph.node_labels().items():
        files[key] = str(root / f"label-{key}.pt")
        torch.save(labels, files[key])
    return [
        programs.load(str(root), rank, label_file=graph.unwrap(files), **options) for rank in range(programs.NUM_PARTS)
    ]


@pytest.mark.parametrize("graph_caching", [False, True])
@pytest.mark.parametrize("name", sorted(GRAPHS))
def test_random(name: str, graph_caching: bool, tmp_path: Path) -> None:
    graph = GRAPHS[name]()
    (tmp_path / "raw").mkdir()  # the directory has files already
    programs.partition_random(str(tmp_path), inputs_of(graph), graph_caching=graph_caching)
    datasets = loaded(tmp_path, graph, graph_caching=graph_caching)
    check_batches_of(graph, "out", datasets)
    for dataset in datasets:
        assert dataset.graph_caching is graph_caching
        for key, labels in graph.node_labels().items():
            assert torch.equal(dataset.get_node_label(key), labels)
    check_loaded_tuple(tmp_path, graph)


def check_loaded_tuple(root: Path, graph: TestGraph) -> None:
    """``load_partition``: the pieces of which a program puts a data set together itself, with books read as tensors."""
    datasets = []
    for rank in range(programs.NUM_PARTS):
        num_parts, partition_idx, edges, node_feat, edge_feat, node_pb, edge_pb = glt.partition.load_partition(
            str(root), rank
        )
        assert (num_parts, partition_idx) == (programs.NUM_PARTS, rank)
        dataset = glt.distributed.DistDataset(num_parts, partition_idx, node_pb=node_pb, edge_pb=edge_pb)
        typed = isinstance(edges, dict)
        dataset.init_graph(
            {key: part.edge_index for key, part in edges.items()} if typed else edges.edge_index,
            {key: part.eids for key, part in edges.items()} if typed else edges.eids,
            {key: part.weights for key, part in edges.items()} if typed else edges.weights,
            graph_mode="CPU",
        )
        for given, book, init in (
            (node_feat, node_pb, dataset.init_node_features),
            (edge_feat, edge_pb, dataset.init_edge_features),
        ):
            parts = {
                key: glt.partition.cat_feature_cache(rank, data, book[key] if typed else book)
                for key, data in (given.items() if typed else [(None, given)])
            }
            feats, rows = ({key: part[i] for key, part in parts.items()} for i in (1, 2))
            init(feats if typed else feats[None], rows if typed else rows[None], with_gpu=False)
        dataset.init_node_labels(graph.unwrap(graph.node_labels()))
        datasets.append(dataset)
        for key, count in graph.num_nodes.items():
            owners = torch.as_tensor(node_pb[key] if typed else node_pb)
            assert owners.shape == (count,)
            assert torch.equal(glt.utils.common.default_id_filter(owners, rank), torch.where(owners == rank)[0])
    check_batches_of(graph, "out", datasets)


def test_by_frequency(tmp_path: Path) -> None:
    graph = GRAPHS["homogeneous"]()
    programs.partition_by_frequency(str(tmp_path / "parts"), inputs_of(graph))
    datasets = loaded(tmp_path / "parts", graph)
    check_batches_of(graph, "out", datasets)
    assert all(len(rows.ids) > 0 for dataset in datasets for rows in dataset.row_caches().values())
    check_loaded_tuple(tmp_path / "parts", graph)


@pytest.mark.parametrize("name", sorted(GRAPHS))
def test_features_after_the_graph(name: str, tmp_path: Path) -> None:
    graph = GRAPHS[name]()
    programs.partition_in_two_stages(str(tmp_path / "parts"), inputs_of(graph))
    check_batches_of(graph, "out", loaded(tmp_path / "parts", graph))


def run_slice(root: str, name: str, rank: int, port: int) -> None:
    programs.partition_slices(root, inputs_of(GRAPHS[name]()), rank, port)


@pytest.mark.parametrize("name", sorted(GRAPHS))
def test_by_several_processes(name: str, tmp_path: Path) -> None:
    graph, root = GRAPHS[name](), tmp_path / "parts"
    root.mkdir()
    (root / "README").touch()
    with ExitStack() as stack:
        port = stack.enter_context(reserved_port())
        arguments = {"root": str(root), "name": name, "port": port}
        ranks = [stack.enter_context(start(f"{HERE}.run_slice", rank=rank, **arguments)) for rank in range(2)]
        for rank in ranks:
            rank.wait(DEADLINE_S)
        assert_nothing_left(*(rank.pid for rank in ranks))
    check_batches_of(graph, "out", loaded(root, graph))


def test_features_are_stored_as_float32() -> None:
    """GraphLearn-for-PyTorch's default; the core keeps the dtype that they have."""
    rows = torch.arange(8, dtype=torch.float64).view(4, 2)
    partitioner = glt.partition.RandomPartitioner("unused", 2, 4, torch.tensor([[0, 1], [1, 0]]), rows)
    assert partitioner.node_feat_dtype is torch.float32


def test_splits_and_labels(tmp_path: Path) -> None:
    """A random split is of this partition's nodes; torch's generator decides, and labels lose dimensions of one."""
    graph = GRAPHS["homogeneous"]()
    programs.partition_random(str(tmp_path), inputs_of(graph))
    torch.save(torch.arange(300).view(300, 1), tmp_path / "label.pt")
    splits = []
    for rank in range(2):
        dataset = programs.load(str(tmp_path), rank, label_file=str(tmp_path / "label.pt"))
        assert dataset.node_labels.shape == (300,)
        for seed in (1, 1, 2):
            torch.manual_seed(seed)
            dataset.random_node_split(0.2, 10)
            splits.append((dataset.train_idx, dataset.val_idx, dataset.test_idx))
        own = torch.where(dataset.node_pb == rank)[0]
        for train, val, test in splits[-3:]:
            assert torch.equal(torch.cat([train, val, test]).sort().values, own)
            assert (len(val), len(test)) == (round(len(own) * 0.2), 10)
    assert all(torch.equal(one, other) for one, other in zip(splits[0], splits[1], strict=True))
    assert not torch.equal(splits[0][1], splits[2][1])
    assert isinstance(dataset, DistDataset)
