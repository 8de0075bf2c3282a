"""Loaders sample the neighbors that the data set holds, unless they are told which those must be."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest
import torch

from graphlearn_dist.data import Dataset
from graphlearn_dist.distributed import DistNeighborLoader, RemoteDistSamplingWorkerOptions
from graphlearn_dist.errors import InvalidArgumentError
from graphlearn_dist.loader import NeighborLoader
from graphlearn_dist.partition import RandomPartitioner
from tests.support.jobs import running_servers
from tests.support.oracle import assert_same, pyg_tensors

NUM_NODES = 200


@pytest.mark.parametrize("direction", ["in", "out"])
def test_partitions_of_either_kind_need_no_word(direction: Literal["in", "out"], tmp_path: Path) -> None:
    """The batches are those of the local loader, whose states go on in the others, told or not."""
    edges = torch.randint(0, NUM_NODES, (2, 2000), generator=torch.Generator().manual_seed(1))
    strategy = {"in": "by_dst", "out": "by_src"}[direction]
    RandomPartitioner(tmp_path / "parts", 2, NUM_NODES, edges, edge_assign_strategy=strategy).partition()
    whole = Dataset(edge_dir=direction)
    whole.init_graph(edges, num_nodes=NUM_NODES)
    seeds = torch.arange(NUM_NODES)
    local = NeighborLoader(whole, [3, 3], seeds, batch_size=64, seed=4)
    expected = [pyg_tensors(batch) for batch in local]
    local.load_state_dict({**local.state_dict(), "epoch": 0, "next_batch": 2})
    state = local.state_dict()
    with running_servers(tmp_path / "parts", tmp_path / "parts") as job, job.client():
        options = RemoteDistSamplingWorkerOptions(server_rank=0, num_workers=1)
        settings = {"batch_size": 64, "random_seed": 4, "worker_options": options}
        for told in ({}, {"edge_dir": direction}):
            with DistNeighborLoader(None, [3, 3], seeds, **settings, **told) as loader:
                loader.load_state_dict(state)
                found = [pyg_tensors(batch) for batch in loader]
            assert len(found) == len(expected) - 2
            for one, other in zip(found, expected[2:], strict=True):
                assert_same(one, other)
        other = "out" if direction == "in" else "in"
        with pytest.raises(
            InvalidArgumentError, match=rf"holds '{direction}'-neighbors, the loader asks for '{other}'"
        ):
            DistNeighborLoader(None, [3, 3], seeds, **settings, edge_dir=other)
