"""Rows that a partition keeps copies of are not asked for, and change nothing in what a lookup gives."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import torch

from graphlearn_dist.distributed import DistDataset
from graphlearn_dist.distributed.partitions.partition_service import PartitionService
from graphlearn_dist.distributed.sampling.feature_collector import FeatureCollector
from graphlearn_dist.errors import PartitionFormatError
from graphlearn_dist.partition import FrequencyPartitioner, layout, load_partition_layout, meta_entries
from graphlearn_dist.partition.storage import write_tensor
from tests.support.direct_peers import DirectPeers
from tests.unit.partition.graphs import homo_inputs

PARTS = 3


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    generator = torch.Generator().manual_seed(0)
    probs = [torch.rand(53, generator=generator) for _ in range(PARTS)]
    return FrequencyPartitioner(tmp_path / "g", PARTS, probs=probs, cache_ratio=0.3, **homo_inputs()).partition()


def load(directory: Path, partition_idx: int, *, through_handle: bool) -> DistDataset:
    dataset = DistDataset()
    dataset.load(directory, partition_idx)
    if not through_handle:
        return dataset
    opened = DistDataset.from_ipc_handle(dataset.share_ipc())
    opened.sharer = dataset  # type: ignore[attr-defined]  # what is shared lives as long as it does
    return opened


@pytest.mark.parametrize("through_handle", [False, True])
def test_cached_rows_are_not_asked_for(directory: Path, through_handle: bool) -> None:
    datasets = [load(directory, p, through_handle=through_handle) for p in range(PARTS)]
    services = [PartitionService(dataset) for dataset in datasets]
    inputs = homo_inputs()
    nodes = torch.randint(0, 53, (200,), generator=torch.Generator().manual_seed(1))
    edges = torch.randint(0, 400, (300,), generator=torch.Generator().manual_seed(2))
    expected = {
        "node_feature:0": inputs["node_feat"][nodes],
        "node_label:0": inputs["node_labels"][nodes],
        "edge_feature:0": inputs["edge_feat"][edges],
    }
    wanted = {"node_feature:0": nodes, "node_label:0": nodes, "edge_feature:0": edges}
    for p, dataset in enumerate(datasets):
        peers = DirectPeers(services)
        collector = FeatureCollector(dataset, [services[p]], peers)
        lookup = collector.start([wanted], [asyncio.run(collector.ask_places(wanted))])
        (outputs,) = collector.unwritten([wanted])
        asyncio.run(lookup.fill([outputs]))
        for name, rows in expected.items():
            assert torch.equal(outputs[name], rows)
        cached = load_partition_layout(directory).open_partition(p).node_caches[None].ids
        assert len(cached) == 15
        asked = [query.ids_by_store() for query in peers.asked_as("rows")]
        features = torch.cat([request["node_feature:0"] for request in asked])
        others = nodes[(dataset.node_pb[nodes] != p) & ~torch.isin(nodes, cached)]
        assert torch.equal(features.sort().values, others.sort().values)
        labels = torch.cat([request["node_label:0"] for request in asked])
        assert len(labels) == int((dataset.node_pb[nodes] != p).sum())  # labels have no cache


def test_nobody_is_asked_where_all_is_cached(directory: Path) -> None:
    datasets = [load(directory, p, through_handle=False) for p in range(PARTS)]
    cached = load_partition_layout(directory).open_partition(0).node_caches[None].ids
    services = [PartitionService(dataset) for dataset in datasets]
    peers = DirectPeers(services)
    collector = FeatureCollector(datasets[0], services[:1], peers)
    wanted = {"node_feature:0": cached}
    lookup = collector.start([wanted], [{}])
    (outputs,) = collector.unwritten([wanted])
    asyncio.run(lookup.fill([outputs]))
    assert torch.equal(outputs["node_feature:0"], homo_inputs()["node_feat"][cached])
    assert peers.asked == []


def test_a_cache_of_other_rows_is_refused(directory: Path) -> None:
    meta = layout.read_meta(directory)
    wrong = write_tensor(directory, "part0/node_feat/cache_x.npy", torch.zeros(15, 2, dtype=torch.float64))
    meta["files"] = [file if file["path"] != wrong.path else wrong.to_dict() for file in meta["files"]]
    meta_entries.write_meta(directory, meta)
    with pytest.raises(PartitionFormatError, match=r"expected ids of rows like x\.npy's"):
        load_partition_layout(directory).open_partition(0)
