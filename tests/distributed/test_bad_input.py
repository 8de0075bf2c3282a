"""What every mode refuses, and in the same words: unknown types, seeds outside the graph, contradicting options; and
what none of them refuses: features where there are none."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from graphlearn_dist.distributed import (
    CollocatedDistSamplingWorkerOptions,
    DistDataset,
    DistLinkNeighborLoader,
    DistNeighborLoader,
    DistSubGraphLoader,
    MpDistSamplingWorkerOptions,
    RemoteDistSamplingWorkerOptions,
)
from graphlearn_dist.errors import InvalidArgumentError, UnknownIdError
from graphlearn_dist.partition import RangePartitioner
from graphlearn_dist.sampler import EdgeSamplerInput, NodeSamplerInput
from graphlearn_dist.typing import Split
from tests.support.graphs import TestGraph
from tests.support.jobs import load, running_servers
from tests.support.oracle import GRAPHS

GRAPH: TestGraph = GRAPHS["typed"]()
EDGE_TYPE = ("user", "buys", "item")
SEEDS = torch.arange(8)
PAIRS = torch.stack([SEEDS, SEEDS])
NUM_USERS = GRAPH.num_nodes["user"]
MODES: dict[str, Any] = {
    "collocated": CollocatedDistSamplingWorkerOptions(),
    "mp": MpDistSamplingWorkerOptions(channel_size="16MB"),
    "remote": RemoteDistSamplingWorkerOptions(0, buffer_size="16MB"),
}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DistDataset]:
    """A typed graph without weights, times, splits, labels or features but those of users; a server has it too."""
    root = tmp_path_factory.mktemp("graph") / "g"
    features = {"user": torch.arange(NUM_USERS).float()[:, None]}
    RangePartitioner(root, 1, GRAPH.num_nodes, GRAPH.edges, features, edge_assign_strategy="by_dst").partition()
    with running_servers(Path(root)) as job, job.client():
        yield load(root)


def open_loader(data: DistDataset, mode: str, kind: str, arguments: dict[str, Any]) -> Any:
    """A loader of nodes, links or subgraphs in one of the modes."""
    given = {"edge_dir": "in", "worker_options": MODES[mode], "num_neighbors": [2], **arguments}
    held = None if mode == "remote" else data
    match kind:
        case "links":
            return DistLinkNeighborLoader(held, **{"edge_label_index": (EDGE_TYPE, PAIRS), **given})
        case "subgraph":
            return DistSubGraphLoader(held, **{"input_nodes": ("user", SEEDS), **given})
        case _:
            return DistNeighborLoader(held, **{"input_nodes": ("user", SEEDS), **given})


BAD: list[tuple[str, dict[str, Any], type[Exception], str]] = [
    ("node", {"input_nodes": ("paper", SEEDS)}, InvalidArgumentError, "input_nodes: unknown node type 'paper'"),
    ("node", {"input_nodes": "paper"}, InvalidArgumentError, "input_nodes: unknown node type 'paper'"),
    ("node", {"input_nodes": SEEDS}, InvalidArgumentError, "input_nodes: unknown node type None"),
    ("subgraph", {"input_nodes": ("paper", SEEDS)}, InvalidArgumentError, "input_nodes: unknown node type 'paper'"),
    (
        "links",
        {"edge_label_index": (("user", "eats", "item"), PAIRS)},
        InvalidArgumentError,
        "edge_label_index: .*eats",
    ),
    (
        "links",
        {"edge_label_index": (("user", "item"), PAIRS)},
        InvalidArgumentError,
        r"edge_label_index: expected an edge type .*got \('user', 'item'\)",
    ),
    ("links", {"edge_label_index": ("user", "eats", "item")}, InvalidArgumentError, "edge_label_index: .*eats"),
    ("links", {"edge_label_index": None}, InvalidArgumentError, "edge_label_index: unknown edge type None"),
    ("node", {"num_neighbors": {("user", "eats", "item"): [2]}}, InvalidArgumentError, "num_neighbors: .*eats"),
    ("node", {"input_nodes": ("user", SEEDS + NUM_USERS)}, UnknownIdError, f"node id {NUM_USERS + 7} is outside"),
    ("node", {"input_nodes": ("user", SEEDS - 1)}, UnknownIdError, "node id -1 is outside"),
    ("subgraph", {"input_nodes": ("user", SEEDS + NUM_USERS)}, UnknownIdError, "input_nodes: node id"),
    ("links", {"edge_label_index": (EDGE_TYPE, PAIRS + NUM_USERS)}, UnknownIdError, "edge_label_index: node id"),
    ("node", {"input_nodes": ("user", Split.train)}, InvalidArgumentError, "the data set has no 'train' split"),
    ("node", {"input_nodes": ("user", "/nowhere.npy")}, InvalidArgumentError, "node_path: expected a .npy file"),
    ("node", {"input_nodes": ("user", "train")}, InvalidArgumentError, r"got 'train'; for the split .* Split\.train"),
    ("node", {"edge_dir": "out"}, InvalidArgumentError, "edge_dir: the data set holds 'in'-neighbors"),
    ("node", {"with_weight": True}, InvalidArgumentError, "with_weight: expected edge weights"),
    ("node", {"input_time": SEEDS}, InvalidArgumentError, "input_time: expected edge times"),
    ("node", {"input_time": SEEDS[:3]}, InvalidArgumentError, "input_time: expected one time for each of 8 seeds"),
    ("node", {"input_nodes": "user", "input_time": SEEDS}, InvalidArgumentError, "input_time: expected None unless"),
    (
        "node",
        {"input_nodes": NodeSamplerInput(SEEDS, "user"), "input_time": SEEDS},
        InvalidArgumentError,
        "input_time: expected None beside a NodeSamplerInput",
    ),
    ("node", {"strategy": "labor", "replace": True}, InvalidArgumentError, "strategy: 'labor' draws without"),
    (
        "links",
        {"edge_label": SEEDS, "neg_sampling": "triplet"},
        InvalidArgumentError,
        "edge_label: expected None with triplet negatives",
    ),
    (
        "links",
        {"edge_label_index": EdgeSamplerInput(SEEDS, SEEDS, input_type=EDGE_TYPE), "neg_sampling": "binary"},
        InvalidArgumentError,
        "neg_sampling: expected None beside an EdgeSamplerInput",
    ),
    ("links", {"neg_sampling": {"mode": "binary", "ratio": 1}}, InvalidArgumentError, "neg_sampling: .*'ratio'"),
    ("links", {"neg_sampling": ()}, InvalidArgumentError, "neg_sampling: expected a NegativeSampling, a mode, or"),
    ("node", {"with_edge": "no"}, InvalidArgumentError, "with_edge: expected True or False, got 'no'"),
    ("links", {"shuffle": SEEDS}, InvalidArgumentError, "shuffle: expected True or False, got tensor"),
    ("subgraph", {"replace": 2}, InvalidArgumentError, "replace: expected True or False, got 2"),
    ("node", {"batch_size": True}, InvalidArgumentError, "batch_size: expected an integer, got True"),
    ("node", {"batch_size": 1 << 70}, InvalidArgumentError, "batch_size: expected an int of 64 bits"),
    ("node", {"shard": 3}, InvalidArgumentError, r"shard: expected two integers \(index, count\) or None, got 3"),
    ("node", {"shard": (1,)}, InvalidArgumentError, r"shard: expected two integers .* got \(1,\)"),
    ("node", {"shard": (0, 1.5)}, InvalidArgumentError, r"shard: expected two integers .* got \(0, 1\.5\)"),
    ("node", {"transform": 3}, InvalidArgumentError, "transform: expected something to call or None, got int"),
    ("node", {"to_device": "gpu"}, InvalidArgumentError, "device: expected 'cpu' or a GPU that is there"),
]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("kind", "arguments", "error", "message"), BAD, ids=[case[3] for case in BAD])
def test_what_every_mode_refuses(
    data: DistDataset, mode: str, kind: str, arguments: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        open_loader(data, mode, kind, arguments)


@pytest.mark.parametrize("mode", MODES)
def test_numbers_and_flags_of_numpy(data: DistDataset, mode: str) -> None:
    """They are such as Python's, wherever they have to travel, and fan-outs may be any sequence."""
    given = {"batch_size": np.int64(3), "shuffle": np.bool_(False), "shard": (np.int64(1), 2), "drop_last": None}
    given["num_neighbors"] = range(1, 3)
    with open_loader(data, mode, "node", given) as loader:
        assert [batch["user"].n_id[: batch["user"].batch_size].tolist() for batch in loader] == [[3, 4, 5]]


@pytest.mark.parametrize("mode", MODES)
def test_features_where_there_are_none(data: DistDataset, mode: str) -> None:
    """They are no error, and no attribute either."""
    with open_loader(data, mode, "node", {"collect_features": True, "batch_size": 8, "num_neighbors": [3]}) as loader:
        (batch,) = loader
    assert torch.equal(batch["user"].x[:, 0].long(), batch["user"].n_id)
    assert "x" not in batch["item"]
    assert all("y" not in batch[node_type] for node_type in batch.node_types)
    assert all("edge_attr" not in batch[edge_type] for edge_type in batch.edge_types)


def test_where_it_is_sampled_and_what_is_given(data: DistDataset) -> None:
    """Data and mode contradict each other."""
    with pytest.raises(InvalidArgumentError, match="data: expected None with RemoteDistSamplingWorkerOptions"):
        DistNeighborLoader(data, [2], ("user", SEEDS), worker_options=MODES["remote"])
    for options in (MODES["collocated"], MODES["mp"], None):
        with pytest.raises(InvalidArgumentError, match="data: expected a DistDataset unless servers sample"):
            DistNeighborLoader(None, [2], ("user", SEEDS), worker_options=options)
    with pytest.raises(InvalidArgumentError, match="server_rank: expected 0 to 0, got 1"):
        DistNeighborLoader(None, [2], ("user", SEEDS), worker_options=replace(MODES["remote"], server_rank=1))
