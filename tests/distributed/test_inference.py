"""Inference over servers gives the bits of inference in one process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch_geometric.nn import GAT, GCN, GraphSAGE

from graphlearn_dist.distributed import ServedDataset
from graphlearn_dist.errors import InvalidArgumentError
from graphlearn_dist.inference import InferenceOptions, infer
from tests.support.graphs import random_graph, typed_graph
from tests.support.inference import basic, dataset_of, partitions_of, pyg_of, typed_layers
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
        with pytest.raises(InvalidArgumentError, match="weights: expected data that are held here"):
            infer([torch.nn.Identity()], served, options=InferenceOptions(weights=True))
