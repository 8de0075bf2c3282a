"""Features that lie in other partitions than their nodes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from graphlearn_dist.distributed import DistDataset
from graphlearn_dist.distributed.partitions.partition_service import PartitionService
from graphlearn_dist.distributed.sampling.feature_collector import FeatureCollector
from graphlearn_dist.partition import RangePartitioner
from tests.support.direct_peers import DirectPeers

NUM_NODES = 211


@pytest.mark.parametrize("at_hand", [(0,), (1,), (0, 1), (1, 0)])
@pytest.mark.parametrize("owner", [0, 1])
def test_one_partition_has_those_of_all(tmp_path: Path, owner: int, at_hand: tuple[int, ...]) -> None:
    """It is no partition's own view of books that all of them share: nothing is a copy."""
    ids = torch.arange(NUM_NODES)
    RangePartitioner(
        str(tmp_path),
        2,
        NUM_NODES,
        torch.stack([ids.roll(1), ids]),
        node_feat=ids.float().view(-1, 1).repeat(1, 3),
        node_labels=ids,
        node_feat_pb=torch.full((NUM_NODES,), owner),
    ).partition()
    datasets = [DistDataset(), DistDataset()]
    for partition, dataset in enumerate(datasets):
        dataset.load(str(tmp_path), partition)
    services = [PartitionService(dataset) for dataset in datasets]
    mine = [services[partition] for partition in at_hand]
    collector = FeatureCollector(datasets[at_hand[0]], mine, DirectPeers(services))
    wanted = torch.cat([ids.flip(0), ids])
    for name, rows in collector.look_up(dict.fromkeys(collector.store_names, wanted)).items():
        expected = wanted if rows.dim() == 1 else wanted.float().view(-1, 1).repeat(1, 3)
        assert torch.equal(rows, expected), name
    assert not any(dataset.row_caches() for dataset in datasets)
