"""Inference of features that are four times as large as what a control group lets its process have."""

from __future__ import annotations

import gc
from pathlib import Path

import torch
from torch_geometric.data import Data
from torch_geometric.nn import GraphSAGE

from graphlearn_dist.inference import InferenceOptions, infer, open_results
from graphlearn_dist.partition import RangePartitioner
from tests.support.control_groups import enter, forget_pages, memory_group, peak_bytes
from tests.support.processes import start

HERE = "tests.distributed.test_inference_memory"
DEADLINE_S = 300.0  # only ever reached by a hang
NUM_NODES, WIDTH, DEGREE = 160_000, 1000, 2
LIMIT = 160_000_000  # bytes; what a process has that has inferred before is not counted


def model() -> GraphSAGE:
    torch.manual_seed(0)
    return GraphSAGE(WIDTH, 16, 2, 16).eval()


def infer_in_group(group: str, directory: str) -> None:
    infer(model(), Data(x=torch.zeros(2, WIDTH), edge_index=torch.tensor([[0, 1], [1, 0]])))  # loads what is needed
    gc.freeze()  # a collection would write to all that this fork shares with its parent, and so have it counted
    enter(Path(group))
    options = InferenceOptions(num_threads=2)  # blocks that do not fit are computed in pieces
    infer(model(), f"{directory}/partitions", f"{directory}/out", options=options)


def test_features_four_times_as_large_as_the_memory(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(NUM_NODES, WIDTH, generator=generator)
    assert features.nbytes >= 4 * LIMIT
    targets = torch.arange(NUM_NODES).repeat_interleave(DEGREE)
    edges = torch.stack([torch.randint(NUM_NODES, targets.shape, generator=generator), targets])
    RangePartitioner(
        str(tmp_path / "partitions"), 1, NUM_NODES, edges, node_feat=features, edge_assign_strategy="by_dst"
    ).partition()
    with memory_group(LIMIT) as group:
        forget_pages(tmp_path)
        with start(f"{HERE}.infer_in_group", group=str(group), directory=str(tmp_path)) as process:
            process.wait(DEADLINE_S)
        assert peak_bytes(group) <= LIMIT
    expected = infer(model(), tmp_path / "partitions").rows()
    assert torch.equal(open_results(tmp_path / "out").rows(), expected)
