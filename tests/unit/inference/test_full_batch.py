"""Inference on real graphs is PyG's full-batch forward pass: homogeneous, weighted, typed.

Cora, Tolokers and Debian's typed graph are read from `GLD_SHARED_DATA`, by default `../shared/data` beside the
repository, and skipped where they are absent.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch_geometric.data import Data, HeteroData
from torch_geometric.nn import GCN, GraphConv, GraphSAGE, HeteroConv

from graphlearn_dist.inference import InferenceOptions, infer
from tests.support.inference import far, full_typed, typed_layers

ROOT = Path(__file__).resolve().parents[3]
ARCHIVES = Path(os.environ.get("GLD_SHARED_DATA", ROOT.parent / "shared" / "data"))
CLOSE = 1e-5


def archive(name: str) -> Any:
    path = ARCHIVES / f"{name}.npz"
    if not path.is_file():
        pytest.skip(f"{name}.npz is not in {ARCHIVES} (GLD_SHARED_DATA names another directory)")
    return np.load(path, allow_pickle=False)


def both_ways(pairs: Any) -> torch.Tensor:
    edges = torch.from_numpy(pairs.astype(np.int64))
    return torch.cat([edges, edges.flip(0)], dim=1)


def features(arrays: Any) -> torch.Tensor:
    if "x" in arrays:
        return torch.from_numpy(arrays["x"]).float()
    x = torch.zeros(*arrays["x_shape"].tolist())
    sizes = torch.from_numpy(np.diff(arrays["x_indptr"].astype(np.int64)))
    x[torch.repeat_interleave(sizes), torch.from_numpy(arrays["x_indices"].astype(np.int64))] = 1
    return x


def debian() -> HeteroData:
    """Packages, their sources and tags, with the features of packages and a few numbers of the others."""
    arrays = archive("debian_core")
    data = HeteroData()
    data["package"].x = torch.from_numpy(arrays["x_package"]).float()
    counts = {"source": len(arrays["source_names"]), "tag": len(arrays["tag_names"])}
    for key, count in counts.items():
        data[key].x = torch.randn(count, 8, generator=torch.Generator().manual_seed(count))
    ends = {
        ("package", "depends", "package"): arrays["edge_depends"].astype(np.int64),
        ("package", "recommends", "package"): arrays["edge_recommends"].astype(np.int64),
        ("package", "has", "tag"): arrays["edge_has_tag"].astype(np.int64),
        ("source", "needs", "package"): arrays["edge_build_depends"].astype(np.int64),
    }
    for (source, relation, target), pairs in ends.items():
        edges = torch.from_numpy(pairs)
        data[source, relation, target].edge_index = edges
        data[target, f"rev_{relation}", source].edge_index = edges.flip(0)
    return data


def one_type(name: str) -> Data:
    """A graph of one node type: of Debian's, all nodes as one, and all edges."""
    if name == "debian":
        data = debian()
        widest = max(rows.size(1) for rows in data.x_dict.values())
        for store in data.node_stores:
            store.x = F.pad(store.x, (0, widest - store.x.size(1)))
        data = data.to_homogeneous(add_node_type=False, add_edge_type=False)
        return Data(x=data.x, edge_index=data.edge_index)
    arrays = archive(name)
    return Data(x=features(arrays), edge_index=both_ways(arrays["edge_index"]))


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(
    "name", ["cora", *(pytest.param(name, marks=pytest.mark.thorough) for name in ("tolokers", "debian"))]
)
def test_homogeneous(name: str, weighted: bool) -> None:
    data = one_type(name)
    arguments = [data.x, data.edge_index]
    if weighted:
        data.edge_weight = torch.rand(data.num_edges, generator=torch.Generator().manual_seed(1))
        arguments.append(data.edge_weight)
    for kind in (GCN,) if weighted else (GCN, GraphSAGE):
        torch.manual_seed(0)
        model = kind(data.x.size(1), 32, 2, 7).eval()
        with torch.no_grad():
            expected = model(*arguments)
        sizes = ((1 << 20, 1), (1000, 2))
        found = [infer(model, data, options=InferenceOptions(block_size=b, num_threads=t, weights=weighted)).rows()
                 for b, t in sizes]  # fmt: skip
        assert far(found[0], expected) < CLOSE
        assert torch.equal(found[1], found[0])


@pytest.mark.thorough  # the next one has weights, too
def test_typed() -> None:
    data = debian()
    layers = typed_layers(data)
    expected = full_typed(layers, data)
    found = [infer(layers, data, options=InferenceOptions(block_size=size, num_threads=2)) for size in (1 << 20, 5000)]
    for key, rows in expected.items():
        assert far(found[0].rows(key), rows) < CLOSE
        assert torch.equal(found[1].rows(key), found[0].rows(key))


class TypedWeights(torch.nn.Module):
    """A ``GraphConv`` for each edge type, which multiplies by its weights."""

    def __init__(self, data: HeteroData, widths: dict[str, int], width: int) -> None:
        super().__init__()
        convs = {ends: GraphConv((widths[ends[0]], widths[ends[2]]), width) for ends in data.edge_types}
        self.conv = HeteroConv(convs, aggr="sum")

    def forward(self, x: Any, edge_index: Any, weights: Any) -> Any:
        return self.conv(x, edge_index, edge_weight_dict=weights)


def test_typed_weights() -> None:
    data = debian()
    for number, ends in enumerate(data.edge_types):
        draw = torch.Generator().manual_seed(number)
        data[ends].edge_weight = torch.rand(data[ends].num_edges, generator=draw)
    torch.manual_seed(0)
    widths = {key: rows.size(1) for key, rows in data.x_dict.items()}
    layers = [TypedWeights(data, widths, 16), TypedWeights(data, dict.fromkeys(widths, 16), 5)]
    expected = data.x_dict
    with torch.no_grad():
        for layer in layers:
            expected = layer(expected, data.edge_index_dict, data.edge_weight_dict)
    sizes = ((1 << 20, 2), (5000, 1))
    found = [infer(layers, data, options=InferenceOptions(block_size=size, num_threads=threads, weights=True))
             for size, threads in sizes]  # fmt: skip
    for key, rows in expected.items():
        assert far(found[0].rows(key), rows) < CLOSE
        assert torch.equal(found[1].rows(key), found[0].rows(key))
