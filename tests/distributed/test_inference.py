"""Inference over servers gives the bits of inference in one process."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch_geometric.nn import GAT, GCN, GraphSAGE

from graphlearn_dist.distributed import ServedDataset, rpc
from graphlearn_dist.distributed.partitions.partition_service import PartitionService
from graphlearn_dist.errors import InvalidArgumentError
from graphlearn_dist.inference import InferenceOptions, infer, open_results
from graphlearn_dist.rpc.calls.remote import Remote
from graphlearn_dist.tables import build
from tests.support.graphs import random_graph, typed_graph, with_weights
from tests.support.inference import WIDTH, WeightedLayer, basic, dataset_of, partitions_of, pyg_of, typed_layers
from tests.support.jobs import running_servers

GRAPHS = {"homogeneous": random_graph(300, 2500, 1), "typed": typed_graph(130, 70, 900, 2)}


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("num_servers", [1, 2, 3])
def test_servers(name: str, num_servers: int, tmp_path: Path) -> None:
    graph = GRAPHS[name]
    directory = partitions_of(graph, tmp_path, "random", num_servers)
    models: list[Any] = [typed_layers(pyg_of(graph))] if name == "typed" else [basic(GraphSAGE), basic(GAT)]
    ways = [InferenceOptions(block_size=50, num_threads=2), InferenceOptions(block_size=64, num_threads=1, fanout=3)]
    with running_servers(*[directory] * num_servers, partitions=range(num_servers)) as job, job.client():
        served = ServedDataset.connect(60.0)
        for model in models:
            for options in ways:
                expected = infer(model, dataset_of(graph), options=options)
                found = infer(model, served, options=options)
                for key in expected.node_types:
                    assert torch.equal(found.rows(key), expected.rows(key))
        if name == "homogeneous":
            expected = infer(basic(GCN), dataset_of(graph), options=ways[0])
            assert torch.equal(infer(basic(GCN), served, options=ways[0]).rows(), expected.rows())
        with pytest.raises(InvalidArgumentError, match="weights: expected edge weights in the data set"):
            infer([torch.nn.Identity()], served, options=InferenceOptions(weights=True))


def test_original_ids_of_served_data(tmp_path: Path) -> None:
    """Servers only number nodes: Parquet asks where their ids are, and has them."""
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    names = [f"node {number:03}" for number in range(120)]
    pq.write_table(pa.table({"id": names[::-1], "x": [float(i) for i in range(120)]}), tmp_path / "users.parquet")
    pq.write_table(pa.table({"a": names, "b": names[::-1]}), tmp_path / "knows.parquet")
    user = {"node_id_col": "id", "features": [{"feature_col": "x"}]}
    knows = {"relation": ["user", "knows", "user"], "source_id_col": "a", "dest_id_col": "b", "files": "knows.parquet"}
    for name, rows in (("all", 120), ("few", 100)):
        pq.write_table(pq.read_table(tmp_path / "users.parquet").slice(0, rows), tmp_path / f"{name}.parquet")
        nodes = [{"node_type": "user", "files": f"{name}.parquet", **user}]
        edges = [{**knows, "drop": ["unknown_ids"]}]
        (tmp_path / f"{name}.json").write_text(json.dumps({"nodes": nodes, "edges": edges}))
        build(tmp_path / f"{name}.json", tmp_path / name, num_parts=2)
    layers: list[Any] = [lambda x, _: x]
    with running_servers(*[tmp_path / "all"] * 2, partitions=range(2)) as job, job.client():
        served = ServedDataset.connect(60.0)
        for id_maps, message in (
            (None, "id_maps: .* of column id of 'user'.* got None"),
            ("few", "120 nodes .* with 100"),
        ):
            given = None if id_maps is None else tmp_path / id_maps
            with pytest.raises(InvalidArgumentError, match=message):
                infer(layers, served, tmp_path / "out", options=InferenceOptions(format="parquet", id_maps=given))
        infer(layers, served, tmp_path / "out", options=InferenceOptions(format="parquet", id_maps=tmp_path / "all"))
        kept = infer(layers, served, options=InferenceOptions(id_maps=tmp_path / "all"))
    kept.write(tmp_path / "kept", format="parquet")
    for folder in ("out", "kept"):
        [(ids, rows)] = open_results(tmp_path / folder).batches("user")
        assert ids.to_pylist() == names
        assert rows.flatten().tolist() == list(range(119, -1, -1))


@pytest.mark.parametrize("name", GRAPHS)
def test_weights_on_servers(name: str, tmp_path: Path) -> None:
    """Also where only some of the edge types have weights, and none of a block's nodes has edges."""
    graph = with_weights(GRAPHS[name], 3, some_zero=True)
    if name == "typed":
        graph = replace(graph, weights=dict(list(graph.weights.items())[1:]))
    directory = partitions_of(graph, tmp_path, "random", 2)
    models = [basic(GCN), [WeightedLayer(WIDTH, 8)]] if name == "homogeneous" else [[add_weighted, add_weighted]]
    with running_servers(directory, directory, partitions=range(2)) as job, job.client():
        served = ServedDataset.connect(60.0)
        for model in models:
            for options in (InferenceOptions(weights=True), InferenceOptions(weights=True, block_size=7)):
                expected, found = (infer(model, data, options=options) for data in (dataset_of(graph), served))
                for key in expected.node_types:
                    assert torch.equal(found.rows(key), expected.rows(key))
        remote = Remote[PartitionService](rpc.get_endpoint(), ("server", 0))
        for arguments in ((0, 3, 2), (0, 0, 10_000), (0, -1, 2), (99, 0, 1)):
            with pytest.raises(InvalidArgumentError, match=r"rows: expected some of|edge_types: expected less than"):
                remote.ask(PartitionService.edge_weights, *arguments).result()


def add_weighted(x: Any, edge_index: Any, weights: Any) -> Any:
    """Adds neighbors by weight where edges have any."""
    found = {key: rows.clone() for key, rows in x.items()}
    for key, (sources, targets) in edge_index.items():
        scale = weights[key][:, None] if key in weights else 1.0
        found[key[2]].index_add_(0, targets, x[key[0]][sources] * scale)
    return found
