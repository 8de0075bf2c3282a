"""Partitions of other processes of the host: mapped where they are what their holder sees, asked for otherwise."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from graphlearn_dist.distributed import DistNeighborLoader, RemoteDistSamplingWorkerOptions
from graphlearn_dist.distributed.dist_dataset import DistDataset
from graphlearn_dist.distributed.partitions.host_partitions import describe_partition, open_partition
from tests.support.graphs import make_dataset, random_graph
from tests.support.jobs import NUM_NODES, load, make_partitions, running_servers

pytestmark = pytest.mark.usefixtures("over_unix_sockets")


def test_a_partition_is_mapped_where_it_is_the_same_file(tmp_path: Path) -> None:
    directory = make_partitions(tmp_path / "graph", 2)
    shared = describe_partition(load(directory, 1).share_ipc())
    assert shared.files
    mapped = open_partition(shared)
    assert mapped is not None
    assert mapped.partition_idx == 1
    assert torch.equal(mapped.graph.topo.indices, load(directory, 1).graph.topo.indices)
    # the same paths, and other files there: what another container may see
    shutil.copytree(directory, tmp_path / "copy")
    shutil.rmtree(directory)
    assert open_partition(shared) is None
    shutil.move(tmp_path / "copy", directory)
    assert open_partition(shared) is None


def test_private_memory_is_shared_once() -> None:
    whole = DistDataset.from_dataset(make_dataset(random_graph(50, 300, seed=1)))
    shared = describe_partition(whole.share_ipc())
    mapped = open_partition(shared)
    assert mapped is not None
    assert torch.equal(mapped.node_features[torch.arange(50)], whole.node_features[torch.arange(50)])
    gone = replace(shared, files=tuple((f"{path}0", device, inode) for path, device, inode in shared.files))
    assert open_partition(gone) is None


def test_a_holder_that_sleeps_is_not_missed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is read in place needs nobody's answer."""
    monkeypatch.setenv("GLD_SHARE_PARTITIONS", "1")
    halves = make_partitions(tmp_path / "halves", 2)
    with running_servers(halves, halves) as job, job.client():
        options = RemoteDistSamplingWorkerOptions(server_rank=0, num_workers=1)
        with DistNeighborLoader(
            None, [4, 4], torch.arange(NUM_NODES), 30, edge_dir="in", collect_features=True, worker_options=options
        ) as loader:
            for epoch in range(2):
                for batch in loader:
                    assert torch.equal(batch.x[:, 0], batch.n_id.float())
                    assert batch.edge_index.size(1) == 4 * sum(batch.num_sampled_nodes[:2])
                if epoch == 0:
                    job.servers[1].freeze()
        job.servers[1].kill()
