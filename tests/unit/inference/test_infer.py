"""Layer-wise inference is the full-batch forward pass; its bits depend on neither blocks, threads nor partitions."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch_geometric.data import Data
from torch_geometric.nn import APPNP, GAT, GCN, GIN, EdgeCNN, GCNConv, GraphSAGE, PairNorm, SAGEConv, to_hetero
from torch_geometric.nn.aggr import LSTMAggregation
from torch_geometric.nn.models.basic_gnn import BasicGNN

from graphlearn_dist import DistEmbedding, SparseSGD
from graphlearn_dist.data import Dataset
from graphlearn_dist.errors import InvalidArgumentError, StorageError
from graphlearn_dist.inference import InferenceOptions, infer, infer_by_batches, open_results, score_pairs
from graphlearn_dist.inference import source as source_module
from graphlearn_dist.inference.source import BlockSource
from graphlearn_dist.inference.steady import SteadyRows
from graphlearn_dist.loader import NeighborLoader
from graphlearn_dist.partition import partition_pyg
from tests.support.graphs import random_graph, typed_graph, with_weights
from tests.support.inference import (
    WIDTH,
    WeightedLayer,
    basic,
    dataset_of,
    far,
    features,
    full_typed,
    partitions_of,
    pyg_of,
    typed_layers,
)
from tests.support.processes import ProcessFailure, start

GRAPH = random_graph(300, 2500, 1)
TYPED = typed_graph(130, 70, 900, 2)
SIZES = ((100_000, 1), (64, 2), (7, 1), (1, 1))
CLOSE = 1e-5

VARIANTS = ("gcn improved", "gcn, no loops", "sage, elu", "gin, norm")  # of those that are always tested
MODELS: dict[str, tuple[type[BasicGNN], dict[str, Any]]] = {
    "sage": (GraphSAGE, {}),
    "sage max, norm, lin": (GraphSAGE, {"aggr": "max", "norm": "BatchNorm", "jk": "last"}),
    "sage, project": (GraphSAGE, {"project": True}),
    "gcn": (GCN, {}),
    "gcn improved": (GCN, {"improved": True}),
    "gcn, no loops": (GCN, {"add_self_loops": False}),
    "gin": (GIN, {}),
    "gat": (GAT, {"heads": 2}),
    "edge cnn": (EdgeCNN, {}),
    "sage, elu": (GraphSAGE, {"act": "elu"}),
    "gin, norm": (GIN, {"norm": "BatchNorm", "act": "silu"}),
}


def options(block_size: int, num_threads: int, **others: Any) -> InferenceOptions:
    return InferenceOptions(block_size=block_size, num_threads=num_threads, **others)


def test_learned_rows_follow_features(tmp_path: Path) -> None:
    """Also where nodes have nothing else; what is resumed has the rows that it began with."""
    embedding = DistEmbedding(GRAPH.num_nodes[None], 5, name="a")
    learned = embedding(torch.arange(embedding.settings.num)).detach()
    bare, data = Dataset(edge_dir="in"), pyg_of(GRAPH)
    bare.init_graph(GRAPH.edges[None], num_nodes=GRAPH.num_nodes[None])
    for dataset, x in ((bare, learned), (dataset_of(GRAPH), torch.cat([data.x, learned], dim=1))):
        torch.manual_seed(0)
        model = GraphSAGE(x.size(1), 16, 2, 5).eval()
        with torch.no_grad():
            expected = model(x, data.edge_index)
        found = [infer(model, dataset, options=options(*size), embeddings=embedding).rows() for size in SIZES]
        assert far(found[0], expected) < CLOSE
        for other in found[1:]:
            assert torch.equal(other, found[0])
    with pytest.raises(InvalidArgumentError, match=r"expected features of all node types, or embeddings of them"):
        infer(model, bare)
    with pytest.raises(InvalidArgumentError, match="embeddings: expected one embedding"):
        infer(model, bare, embeddings={"user": embedding})
    infer(model, dataset, tmp_path / "out", embeddings=embedding)
    SparseSGD([embedding], lr=0.1).step()
    again = options(64, 1, resume=True)
    with pytest.raises(InvalidArgumentError, match="which has results"):  # of other rows
        infer(model, dataset, tmp_path / "out", options=again, embeddings=embedding)


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.thorough if name in VARIANTS else ()) for name in MODELS],
)
def test_basic_models(name: str) -> None:
    model = basic(MODELS[name][0], **MODELS[name][1])
    data = pyg_of(GRAPH)
    with torch.no_grad():
        expected = model(data.x, data.edge_index)
    found = [infer(model, dataset_of(GRAPH), options=options(*size)).rows() for size in SIZES]
    assert far(found[0], expected) < CLOSE
    for other in found[1:]:
        assert torch.equal(other, found[0])
    assert torch.equal(infer(model, data, options=options(50, 2)).rows(), found[0])


@pytest.mark.parametrize(
    "chosen",
    [
        {},
        pytest.param({"improved": True}, marks=pytest.mark.thorough),
        {"add_self_loops": False},
        pytest.param({"normalize": False}, marks=pytest.mark.thorough),
    ],
)
def test_degrees_with_weights(chosen: dict[str, Any]) -> None:
    graph = with_weights(GRAPH, 3, some_zero=True)
    model, data = basic(GCN, **chosen), pyg_of(graph)
    with torch.no_grad():
        expected = model(data.x, data.edge_index, data.edge_weight)
    found = [infer(model, dataset_of(graph), options=options(*size, weights=True)).rows() for size in SIZES]
    assert far(found[0], expected) < CLOSE
    for other in found[1:]:
        assert torch.equal(other, found[0])


def test_weights_of_layers(tmp_path: Path) -> None:
    graph = with_weights(GRAPH, 3, some_zero=False)
    torch.manual_seed(0)
    layers, data = [WeightedLayer(WIDTH, 8), WeightedLayer(8, 4)], pyg_of(graph)
    x = data.x
    with torch.no_grad():
        for layer in layers:
            x = layer(x, data.edge_index, data.edge_weight)
    found = infer(layers, dataset_of(graph), options=options(64, 2, weights=True)).rows()
    assert far(found, x) < CLOSE


def test_typed_layers() -> None:
    data = pyg_of(TYPED)
    layers = typed_layers(data)
    expected = full_typed(layers, data)
    found = [infer(layers, dataset_of(TYPED), options=options(*size)) for size in SIZES]
    assert set(found[0].node_types) == set(expected) == {"item", "user"}
    for key, rows in expected.items():
        assert far(found[0].rows(key), rows) < CLOSE
        assert all(torch.equal(other.rows(key), found[0].rows(key)) for other in found[1:])
    only = infer(layers, dataset_of(TYPED), options=options(64, 1, node_types=("item",)))
    assert only.node_types == ["item"]
    assert torch.equal(only.rows("item"), found[0].rows("item"))


def test_layers_of_to_hetero() -> None:
    class Block(torch.nn.Module):
        def __init__(self, width_in: int, width_out: int) -> None:
            super().__init__()
            self.conv = SAGEConv((width_in, width_in), width_out)

        def forward(self, x: Any, edge_index: Any) -> Any:
            return self.conv(x, edge_index).relu()

    data = pyg_of(TYPED)
    torch.manual_seed(0)
    layers = [to_hetero(Block(*widths), data.metadata()).eval() for widths in ((WIDTH, 8), (8, 4))]
    x = data.x_dict
    with torch.no_grad():
        for layer in layers:
            x = layer(x, data.edge_index_dict)
    found = infer(layers, dataset_of(TYPED), options=options(20, 2))
    for key, rows in x.items():
        assert far(found.rows(key), rows) < CLOSE


def test_one_row_of_a_product_does_not_depend_on_the_others() -> None:
    x, weight, bias = features(300, 77), features(10, 77, 1), features(1, 10, 2)[0]
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with SteadyRows():
        whole = F.linear(x, weight, bias)
        for first, last in ((0, 1), (5, 8), (64, 300), (299, 300)):
            assert torch.equal(F.linear(x[first:last], weight, bias), whole[first:last])
        assert torch.equal(x[7:9] @ weight.t(), (x @ weight.t())[7:9])
        stack = torch.stack([features(300, 77, seed) for seed in range(7)])
        for reduce in (torch.sum, torch.mean):
            assert torch.equal(reduce(stack[:, 5:9], dim=0), reduce(stack, dim=0)[5:9])
    torch.set_num_threads(before)
    assert far(whole, F.linear(x, weight, bias)) < CLOSE


def trained_norm(width: int) -> torch.nn.BatchNorm1d:
    """With statistics and parameters that round."""
    norm, draw = torch.nn.BatchNorm1d(width), torch.Generator().manual_seed(width)
    for values in (norm.running_mean, norm.running_var, norm.weight, norm.bias):
        assert values is not None
        values.data.uniform_(0.5, 2, generator=draw)
    return norm.eval()


NUMBERS: dict[str, Any] = {
    "elu": F.elu,
    "selu": F.selu,
    "gelu": F.gelu,
    "silu": F.silu,
    "mish": F.mish,
    "softplus": F.softplus,
    "sigmoid": torch.sigmoid,
    "in place": lambda x: x.clone().sigmoid_(),
    "tanh": torch.tanh,
    "power": lambda x: x.abs() ** 1.7,
    "powers": lambda x: torch.pow(x.abs(), x),
    "softmax": lambda x: F.softmax(x, dim=1),
    "not contiguous": lambda x: torch.sigmoid(x[:, ::2]),
    "transposed": lambda x: torch.sigmoid(x.t()).t(),
    "gru": torch.nn.GRUCell(5, 5),
    "batch norm": trained_norm(5),
    "batch norm of columns": lambda x: trained_norm(3)(x[:, :3]),
    "batch norm behind a product": torch.nn.Sequential(torch.nn.Linear(5, 6), trained_norm(6)),
    "scripted": torch.jit.script(torch.nn.Sequential(torch.nn.Linear(5, 3), torch.nn.Sigmoid())),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_one_row_of_a_function_does_not_depend_on_the_others(name: str) -> None:
    """torch has two versions of many functions: of whole vectors, and of the numbers that are left over."""
    x, function = features(999, 5), NUMBERS[name]
    with torch.no_grad(), SteadyRows():
        whole = function(x)
        for first, last in ((0, 1), (5, 8), (64, 128), (64, 300), (998, 999)):
            assert torch.equal(function(x[first:last].clone()), whole[first:last])
    with torch.no_grad():
        assert far(whole, function(x)) < CLOSE


@pytest.mark.parametrize("num_blocks_without_edges", [1, 2])
def test_a_block_without_edges(num_blocks_without_edges: int) -> None:
    """Some aggregations fail without any edge, which PyG never is in a forward pass."""
    count = 64 * (2 + num_blocks_without_edges)
    edges = torch.randint(100, (2, 800), generator=torch.Generator().manual_seed(0))
    data = Data(x=features(count), edge_index=edges[:, (edges[1] * count + edges[0]).argsort()])
    conv = FailingWithoutEdges(WIDTH, 4)
    with torch.no_grad():
        expected = conv(data.x, data.edge_index)
    found = [infer([conv], data, options=options(*size)).rows() for size in SIZES]
    assert far(found[0], expected) < CLOSE
    assert all(torch.equal(other, found[0]) for other in found[1:])


@pytest.mark.parametrize("as_layers", [False, True])
def test_medians_of_blocks_whose_first_node_has_no_edge(as_layers: bool) -> None:
    """PyG's quantiles fail there, as in a forward pass over a graph whose first node has none."""
    count, draw = 300, torch.Generator().manual_seed(0)
    ends = torch.randint(count // 2, (300,), generator=draw)
    edges = torch.stack([torch.randint(count, (301,), generator=draw), torch.cat([torch.zeros(1).long(), ends])])
    data = Data(x=features(count), edge_index=edges)
    model = basic(GraphSAGE, aggr="median")
    layers: Any = list(model.convs) if as_layers else model
    with torch.no_grad():
        expected = model.convs[1](model.convs[0](data.x, edges), edges) if as_layers else model(data.x, edges)
    found = [infer(layers, data, options=options(*size)).rows() for size in ((1000, 1), (20, 2), (1, 1))]
    assert far(found[0], expected) < CLOSE
    assert all(torch.equal(other, found[0]) for other in found[1:])


class FailingWithoutEdges(SAGEConv):
    def forward(self, x: Any, edge_index: Any) -> Any:
        assert edge_index.size(1) > 0
        return super().forward(x, edge_index)


def test_fanouts_are_drawn_by_node(tmp_path: Path) -> None:
    model = basic(GraphSAGE)
    found = [infer(model, dataset_of(GRAPH), options=options(*size, fanout=3, seed=-1)).rows() for size in SIZES]
    directory = partitions_of(GRAPH, tmp_path, "random", 2)
    found.append(infer(model, directory, options=options(40, 2, fanout=3, seed=-1)).rows())
    assert all(torch.equal(other, found[0]) for other in found)
    all_neighbors = infer(model, dataset_of(GRAPH), options=options(64, 1)).rows()
    assert not torch.equal(all_neighbors, found[0])
    assert torch.equal(infer(model, dataset_of(GRAPH), options=options(64, 1, fanout=2500)).rows(), all_neighbors)


@pytest.mark.parametrize(("kind", "num_parts"), [("range", 1), ("range", 2), ("random", 3)])
@pytest.mark.parametrize("typed", [False, True])
def test_partitions(kind: str, num_parts: int, typed: bool, tmp_path: Path) -> None:
    graph = TYPED if typed else with_weights(GRAPH, 3, some_zero=False)
    directory = partitions_of(graph, tmp_path, kind, num_parts)
    model: Any = typed_layers(pyg_of(TYPED)) if typed else basic(GCN)
    expected = infer(model, dataset_of(graph), options=options(1000, 1, weights=not typed))
    found = infer(model, directory, options=options(40, 2, weights=not typed))
    for key in expected.node_types:
        assert torch.equal(found.rows(key), expected.rows(key))


@pytest.mark.parametrize("num_parts", [1, 2])
def test_features_larger_than_memory(num_parts: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are read from the files, and nothing else is."""
    graph, model = random_graph(1000, 5000, 4), basic(GraphSAGE)
    directory = partitions_of(graph, tmp_path, "range", num_parts)
    monkeypatch.setenv("GLD_FEATURE_MEMORY", "40kB")  # of 48
    source = BlockSource(directory, -1, 0)
    features = [feature for part in source._parts.values() for feature in part.features_in_use()]
    assert len(features) == num_parts
    assert all(feature.disk_tier is not None for feature in features)
    assert source.whole_features(0) is None  # which would be read through the mapping
    found = infer(model, directory, tmp_path / "out", options=options(40, 2)).rows()
    assert torch.equal(found, infer(model, dataset_of(graph), options=options(64, 1)).rows())
    monkeypatch.setenv("GLD_FEATURE_MEMORY", "much")
    with pytest.raises(InvalidArgumentError, match="GLD_FEATURE_MEMORY"):
        infer(model, directory)
    monkeypatch.delenv("GLD_FEATURE_MEMORY")
    for memory, is_limited in ((48_000 * 2, False), (48_000 * 2 - 1, True)):  # half of the memory
        monkeypatch.setattr(source_module, "memory_left_bytes", lambda memory=memory: memory)
        opened = BlockSource(directory, -1, 0)
        features = [feature for part in opened._parts.values() for feature in part.features_in_use()]
        assert all((feature.disk_tier is not None) == is_limited for feature in features)


def test_float16_rows() -> None:
    model = basic(GraphSAGE)
    found = [infer(model, dataset_of(GRAPH), options=options(*size, dtype=torch.float16)).rows() for size in SIZES]
    assert found[0].dtype == torch.float16
    assert all(torch.equal(other, found[0]) for other in found)
    assert far(found[0], infer(model, dataset_of(GRAPH)).rows()) < 5e-3


def test_modules_and_threads_are_as_before() -> None:
    model = basic(GraphSAGE).train()
    threads = torch.get_num_threads()
    told = []
    infer(model, dataset_of(GRAPH), options=options(64, 2), progress=told.append)
    assert model.training
    assert torch.get_num_threads() == threads
    assert [(each.stage, each.done, each.total) for each in told if each.finished] == [
        ("layer 1 of 2", 300, 300),
        ("layer 2 of 2", 300, 300),
    ]


def test_inference_by_a_loader() -> None:
    model = basic(GraphSAGE)
    loader = NeighborLoader(pyg_of(GRAPH), [-1, -1], batch_size=50, shuffle=True)
    found = infer_by_batches(model, loader).rows()
    assert far(found, infer(model, dataset_of(GRAPH)).rows()) < CLOSE
    some = NeighborLoader(pyg_of(GRAPH), [-1, -1], torch.arange(5, 9), batch_size=50)
    with pytest.raises(InvalidArgumentError, match="loader: expected all nodes"):
        infer_by_batches(model, some)


# --- files -------------------------------------------------------------------------------------------------------


class Dying(torch.nn.Module):
    """A layer that kills its process in a call."""

    def __init__(self, conv: torch.nn.Module, after: int) -> None:
        super().__init__()
        self.conv, self._left = conv, after

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        self._left -= 1
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return self.conv(x, edge_index)  # type: ignore[no-any-return]


def dying_layers(after: tuple[int, int]) -> list[Dying]:
    convs = basic(GraphSAGE).convs
    return [Dying(conv, count) for conv, count in zip(convs, after, strict=True)]


def run_and_die(out: str, after: tuple[int, int], resume: bool, block_size: int) -> None:
    infer(dying_layers(after), dataset_of(GRAPH), out, options=options(block_size, 1, resume=resume))


def die(out: Path, after: tuple[int, int], *, resume: bool, block_size: int = 50) -> None:
    """Runs an inference that is killed in a call of one of its layers."""
    arguments = {"out": str(out), "after": after, "resume": resume, "block_size": block_size}
    with start("tests.unit.inference.test_infer.run_and_die", **arguments) as process:
        with pytest.raises(ProcessFailure):
            process.wait(120.0)
        assert process.poll() == -signal.SIGKILL


def test_killed_and_resumed(tmp_path: Path) -> None:
    """Each time later than before: in the first layer, at its end, and in the second one."""
    expected = infer(dying_layers((0, 0)), dataset_of(GRAPH), options=options(700, 1)).rows()
    for number, after in enumerate(((3, 0), (4, 0), (0, 1), (0, 4))):
        die(tmp_path / "out", after, resume=number > 0)
    calls = dying_layers((-1, -1))
    found = infer(calls, dataset_of(GRAPH), tmp_path / "out", options=options(50, 1, resume=True))
    assert torch.equal(found.rows(), expected)
    assert [-1 - layer._left for layer in calls] == [0, 6 - 3]  # of 6 blocks
    (tmp_path / "out" / ".partial").mkdir()  # of one that was killed after its last file
    again = infer(dying_layers((1, 1)), dataset_of(GRAPH), tmp_path / "out", options=options(50, 1, resume=True))
    assert torch.equal(again.rows(), expected)
    assert not (tmp_path / "out" / ".partial").exists()


@pytest.mark.thorough
def test_killed_twenty_times(tmp_path: Path) -> None:
    """At random calls of both layers; each call that was finished is not made again."""
    generator = random.Random(20)
    left = [60, 60]  # calls of each layer: blocks of 5 of 300 nodes
    for number in range(20):
        last = generator.randint(1, 8)  # the call from now on that is not finished
        first_layer = min(left[0], last - 1)
        after = (last, 0) if last <= left[0] else (0, last - left[0])
        die(tmp_path / "out", after, resume=number > 0, block_size=5)
        left = [left[0] - first_layer, left[1] - (last - 1 - first_layer)]
    calls = dying_layers((-1, -1))
    found = infer(calls, dataset_of(GRAPH), tmp_path / "out", options=options(5, 1, resume=True))
    expected = infer(dying_layers((0, 0)), dataset_of(GRAPH), options=options(700, 1)).rows()
    assert torch.equal(found.rows(), expected)
    assert [-1 - layer._left for layer in calls] == left
    assert left[0] == 0 < left[1]


def test_resuming_something_else(tmp_path: Path) -> None:
    class Failing(torch.nn.Module):
        def forward(self, *_: Any) -> Any:
            raise RuntimeError("no rows")

    with pytest.raises(RuntimeError, match="no rows"):
        infer([Failing()], dataset_of(GRAPH), tmp_path / "out")
    with pytest.raises(InvalidArgumentError, match=r"resume: expected .* parameters differs"):
        infer(
            list(basic(GraphSAGE).convs)[:1],
            dataset_of(GRAPH),
            tmp_path / "out",
            options=options(16384, 1, resume=True),
        )
    infer(basic(GraphSAGE), dataset_of(GRAPH), tmp_path / "out")
    with pytest.raises(InvalidArgumentError, match="out: expected a new or empty directory"):
        infer(basic(GraphSAGE), dataset_of(GRAPH), tmp_path / "out")


def leave_after_one_layer(data: Any, out: Path) -> None:
    def fail(*_: Any) -> Any:
        raise RuntimeError("no rows")

    with pytest.raises(RuntimeError, match="no rows"):
        infer([lambda x, edges: x, fail], data, out, options=options(50, 1))


def go_on(data: Any, out: Path) -> torch.Tensor:
    same = [lambda x, edges: x, lambda x, edges: x]
    return infer(same, data, out, options=options(50, 1, resume=True)).rows()


def test_resuming_with_other_partitions_of_as_many_nodes(tmp_path: Path) -> None:
    """Rows of old ones would be mixed with those of new ones, or stand for them."""
    for name, move in (("old", 0.0), ("new", 1.0)):
        data = Data(x=features(300) + move, edge_index=pyg_of(GRAPH).edge_index)
        partition_pyg(data, tmp_path / name, num_parts=1)
    leave_after_one_layer(tmp_path / "old", tmp_path / "out")
    with pytest.raises(InvalidArgumentError, match=r"resume: expected .* data differs"):
        go_on(tmp_path / "new", tmp_path / "out")
    for _ in range(2):  # the second time it is there
        assert torch.equal(go_on(tmp_path / "old", tmp_path / "out"), features(300))
    with pytest.raises(InvalidArgumentError, match="out: expected a new or empty directory"):
        go_on(tmp_path / "new", tmp_path / "out")


@pytest.mark.parametrize(
    ("name", "content"),
    [("STATE.json", b"{"), ("STATE.json", b"[]"), ("layer0-all.npy", b""), ("layer0-all.npy", None)],
)
def test_what_is_resumed_is_damaged(name: str, content: bytes | None, tmp_path: Path) -> None:
    leave_after_one_layer(dataset_of(GRAPH), tmp_path / "out")
    path = tmp_path / "out" / ".partial" / name
    if content is None:
        np.save(path, np.zeros((5, WIDTH), np.float32))
    else:
        path.write_bytes(content)
    with pytest.raises(StorageError, match=rf"{re.escape(name)}: .*; without resume=True it begins anew"):
        go_on(dataset_of(GRAPH), tmp_path / "out")


def test_files_of_one_that_was_killed_go(tmp_path: Path) -> None:
    leave_after_one_layer(dataset_of(GRAPH), tmp_path / "out")
    (tmp_path / "out" / "part-00007.npy").touch()
    infer(basic(GraphSAGE), dataset_of(GRAPH), tmp_path / "out")
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"RESULTS.json", "part-00000.npy"}


def test_one_inference_at_a_time_in_a_directory(tmp_path: Path) -> None:
    """A second one, of another model, would have left files of both."""
    refused: list[BaseException] = []

    def layer(x: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
        if not refused:
            with pytest.raises(StorageError, match=r"/out: another process held its lock") as caught:
                infer(basic(GraphSAGE), dataset_of(GRAPH), tmp_path / "out")
            refused.append(caught.value)
        return x

    rows = infer([layer], dataset_of(GRAPH), tmp_path / "out", options=options(16384, 1)).rows()
    assert refused
    assert torch.equal(rows, features(300))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("file_format", ["npy", "parquet"])
@pytest.mark.parametrize("file_bytes", [1 << 30, 1000, 1])
def test_files(dtype: torch.dtype, file_format: Any, file_bytes: int, tmp_path: Path) -> None:
    layers, data = typed_layers(pyg_of(TYPED)), dataset_of(TYPED)
    expected = infer(layers, data, options=options(64, 1, dtype=dtype))
    out = tmp_path / "out"
    infer(layers, data, out, options=options(64, 1, dtype=dtype, format=file_format, file_bytes=file_bytes))
    found = open_results(out)
    for key, count in TYPED.num_nodes.items():
        assert torch.equal(found.rows(key), expected.rows(key))
        ids = [one for batch, _ in found.batches(key) for one in batch.tolist()]
        assert [int(one) for one in ids] == list(range(count))
        row_bytes = expected.rows(key).size(1) * dtype.itemsize
        assert len(list((out / key).iterdir())) == -(-count // max(file_bytes // row_bytes, 1))


def test_scores_of_pairs() -> None:
    results = infer(typed_layers(pyg_of(TYPED)), dataset_of(TYPED))
    pairs = torch.stack([torch.randint(0, 130, (90,)), torch.randint(0, 70, (90,))])
    users, items = results.rows("user")[pairs[0]], results.rows("item")[pairs[1]]
    found = score_pairs(results, pairs, node_types=("user", "item"))
    torch.testing.assert_close(found, (users * items).sum(1))
    far_apart = score_pairs(results, pairs, node_types=("user", "item"), score=lambda a, b: (a - b).norm(dim=1))
    torch.testing.assert_close(far_apart, (users - items).norm(dim=1))
    with pytest.raises(InvalidArgumentError, match="pairs: expected 0 <= id < 70"):
        score_pairs(results, torch.tensor([[0], [70]]), node_types=("user", "item"))
    for wrong in ([[0], [1]], torch.zeros(3, 2, dtype=torch.int64), torch.zeros(2, 2), torch.ones(2, 2).bool()):
        with pytest.raises(InvalidArgumentError, match="pairs: expected"):
            score_pairs(results, wrong, node_types=("user", "item"))  # type: ignore[arg-type]


def test_a_full_disk_is_an_error(tmp_path: Path) -> None:
    """And no bus error of a mapped file; with room it goes on."""
    folder = tmp_path / "small"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", folder], capture_output=True, text=True
    )
    if mounted.returncode:
        pytest.skip(f"no file system of its own size can be made here: {mounted.stderr.strip()}")
    graph = dataset_of(random_graph(9000, 20000, 3))
    try:
        with pytest.raises(StorageError, match=r"layer0-all\.new: cannot be written: No space left on device"):
            infer(basic(GraphSAGE), graph, folder / "out")
        subprocess.run(["mount", "-o", "remount,size=8m", folder], check=True)
        found = infer(basic(GraphSAGE), graph, folder / "out", options=InferenceOptions(resume=True)).rows()
        assert torch.equal(found, infer(basic(GraphSAGE), graph).rows())
        del found
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


# --- bad input ---------------------------------------------------------------------------------------------------


def by_out_neighbors() -> Dataset:
    dataset = Dataset(edge_dir="out")
    dataset.init_graph(GRAPH.edges[None])
    dataset.init_node_features(features(300))
    return dataset


@pytest.mark.skipif(sys.version_info < (3, 11), reason="errors have no notes before Python 3.11")
def test_an_error_of_a_layer_says_where_it_was() -> None:
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied") as found:
        infer([lambda x, _: F.linear(x, torch.ones(3, WIDTH + 1))], dataset_of(GRAPH))
    assert found.value.__notes__ == [f"in layer 0 of the model, given rows of widths {{None: {WIDTH}}} by node type"]


@pytest.mark.parametrize(
    ("model", "data", "chosen", "message"),
    [
        (lambda: basic(GraphSAGE), by_out_neighbors, {}, "data: expected .* in-neighbors"),
        (lambda: basic(GraphSAGE), lambda: 5, {}, "data: expected a partition directory"),
        (lambda: basic(GraphSAGE, jk="cat"), lambda: dataset_of(GRAPH), {}, "jk=None or 'last'"),
        (lambda: basic(GraphSAGE, norm="PairNorm"), lambda: dataset_of(GRAPH), {}, "got PairNorm.*, which reads more"),
        (lambda: [PairNorm()], lambda: dataset_of(GRAPH), {}, "got PairNorm.*, which reads more of the graph"),
        (lambda: [APPNP(2, 0.1)], lambda: dataset_of(GRAPH), {}, "got APPNP.*, which reads more of the graph"),
        (lambda: [torch.nn.BatchNorm1d(WIDTH, track_running_stats=False)], lambda: dataset_of(GRAPH), {},
         "got BatchNorm1d.*, which reads more of the graph"),
        (lambda: [LSTMAggregation(WIDTH, 4)], lambda: dataset_of(GRAPH), {}, "got LSTMAggr.*, which reads more"),
        (lambda: basic(GCN), lambda: dataset_of(GRAPH), {"weights": True}, "weights: expected edge weights"),
        (lambda: basic(GIN), lambda: dataset_of(GRAPH), {"weights": True}, "weights: expected a model of GCNConvs"),
        (lambda: basic(GCN), lambda: dataset_of(GRAPH), {"fanout": 2}, "fanout: expected -1"),
        (lambda: [GCNConv(WIDTH, 4)], lambda: dataset_of(GRAPH), {}, "GCNConv, whose degrees"),
        (lambda: torch.nn.Linear(3, 4), lambda: dataset_of(GRAPH), {}, "model: expected PyG's BasicGNN"),
        (lambda: [lambda x, edges: x[:1]], lambda: dataset_of(GRAPH), {}, r"expected \[300, width\] of a layer"),
        (lambda: [lambda x, edges: None], lambda: dataset_of(GRAPH), {}, "model: expected rows of .*, got none"),
        (lambda: basic(GraphSAGE), lambda: dataset_of(GRAPH), {"node_types": ("user",)}, "node_types: unknown"),
        (lambda: basic(GraphSAGE), lambda: dataset_of(GRAPH), {"resume": True}, "out: expected a directory"),
        (lambda: basic(GraphSAGE).double(), lambda: dataset_of(GRAPH), {}, "model: expected float32, .* torch.float64"),
    ],
)  # fmt: skip
def test_bad_input(model: Any, data: Any, chosen: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        infer(model(), data(), options=InferenceOptions(**chosen))


@pytest.mark.parametrize(
    "chosen",
    [{"fanout": 0}, {"block_size": 0}, {"file_bytes": 0}, {"num_threads": 0}, {"dtype": torch.int64},
     {"format": "csv"}, {"fanout": 3, "weights": True}, {"fanout": 2.5}, {"block_size": 1.5}, {"file_bytes": "1"},
     {"num_threads": True}, {"reconnect_timeout": "1"}, {"seed": 1 << 63}, {"seed": "x"}],
)  # fmt: skip
def test_bad_options(chosen: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgumentError):
        InferenceOptions(**chosen)


UNFUSED_FIRST = """
import torch
from torch_geometric.data import Data
from torch_geometric.nn import GCN, GCNConv, GIN, GraphSAGE, SAGEConv
from graphlearn_dist.inference import infer

SAGEConv(4, 4, aggr="median"), GCNConv(4, 4, aggr="median")
draws = torch.Generator().manual_seed(0)
data = Data(torch.randn(50, 4, generator=draws), torch.randint(0, 50, (2, 400), generator=draws))
for kind in (GraphSAGE, GCN, GIN):
    model = kind(4, 8, 2, 3).eval()
    with torch.no_grad():
        assert torch.allclose(infer(model, data).rows(), model(data.x, data.edge_index), atol=1e-5)
    assert all("propagate" not in vars(conv) for conv in model.convs)
"""


def test_a_first_convolution_whose_aggregation_takes_no_sparse_matrix() -> None:
    """PyG compiles for a whole class what its first instance of a process needs; in a process of its own, so."""
    subprocess.run([sys.executable, "-c", UNFUSED_FIRST], check=True)
