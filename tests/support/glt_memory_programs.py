"""A program for GraphLearn-for-PyTorch that puts its partitions together in memory and spawns its trainers.

Edges lead from v to v + 1 and v + 2; node v has feature and label v, edge e the feature e.
"""

from __future__ import annotations

from multiprocessing.reduction import ForkingPickler
from typing import Any, NamedTuple

import torch

import graphlearn_dist.glt as glt

NUM_NODES = 40
NUM_PARTS = 2
DEVICE = torch.device("cpu")
TO, AMONG = ("user", "to", "item"), ("item", "among", "item")


def homogeneous(rank: int, *, ranges: bool) -> Any:
    """One partition: of a range of nodes with range books, or of every other node with tensors as books."""
    half = NUM_NODES // NUM_PARTS
    nodes = torch.arange(rank * half, (rank + 1) * half) if ranges else torch.arange(rank, NUM_NODES, NUM_PARTS)
    rows = nodes.repeat_interleave(2)
    cols = torch.stack([(nodes + 1) % NUM_NODES, (nodes + 2) % NUM_NODES], dim=1).flatten()
    eids = rows * 2 + torch.arange(2).repeat(len(nodes))
    graph = glt.data.Graph(glt.data.Topology(torch.stack([rows, cols]), edge_ids=eids), "CPU", device=None)
    if ranges:
        node_pb: Any = glt.partition.RangePartitionBook([(0, half), (half, NUM_NODES)], partition_idx=rank)
        edge_pb: Any = glt.partition.RangePartitionBook(
            [(0, NUM_NODES), (NUM_NODES, 2 * NUM_NODES)], partition_idx=rank
        )
        node_rows, edge_rows = node_pb.id2index, edge_pb.id2index
    else:
        node_pb = torch.arange(NUM_NODES) % NUM_PARTS
        edge_pb = torch.arange(2 * NUM_NODES) // 2 % NUM_PARTS
        node_rows, edge_rows = glt.utils.id2idx(nodes), glt.utils.id2idx(eids)
    return glt.distributed.DistDataset(
        num_partitions=NUM_PARTS,
        partition_idx=rank,
        graph_partition=graph,
        node_feature_partition=glt.data.Feature(nodes[:, None].float().repeat(1, 4), node_rows, with_gpu=False),
        edge_feature_partition=glt.data.Feature(eids[:, None].float(), edge_rows, with_gpu=False),
        whole_node_labels=torch.arange(NUM_NODES),
        node_pb=node_pb,
        edge_pb=edge_pb,
    )


def typed(rank: int) -> Any:
    """One partition of a graph of users and items."""
    nodes = torch.arange(rank, NUM_NODES, NUM_PARTS)
    owners = torch.arange(NUM_NODES) % NUM_PARTS

    def graph(distance: int) -> Any:
        edges = torch.stack([nodes, (nodes + distance) % NUM_NODES])
        return glt.data.Graph(glt.data.Topology(edges, edge_ids=nodes), "CPU")

    def feature() -> Any:
        return glt.data.Feature(nodes[:, None].float(), glt.utils.id2idx(nodes), with_gpu=False)

    return glt.distributed.DistDataset(
        NUM_PARTS,
        rank,
        {TO: graph(1), AMONG: graph(2)},
        {"user": feature(), "item": feature()},
        {TO: feature()},
        {"user": torch.arange(NUM_NODES)},
        {"user": owners, "item": owners},
        {TO: owners, AMONG: owners},
    )


class OwnNodeType(str):
    """A class of the program's own for names of types."""


class OwnEdgeType(NamedTuple):
    """Likewise, of edges."""

    source: OwnNodeType
    relation: str
    target: OwnNodeType


class OwnDataset(glt.distributed.DistDataset):
    """A data set that goes to other processes in a form of its own."""

    def share_ipc(self) -> Any:
        parts = self.graph, self.node_features, self.edge_features, None, self.node_pb, self.edge_pb
        return (self.num_partitions, self.partition_idx, *parts), self.node_labels, self.label_rows


def rebuild_own_dataset(given: Any, labels: Any, label_rows: Any) -> OwnDataset:
    dataset = OwnDataset(*given)
    dataset.label_rows = label_rows
    dataset.init_node_labels(labels, id2idx=label_rows)
    return dataset


ForkingPickler.register(OwnDataset, lambda dataset: (rebuild_own_dataset, dataset.share_ipc()))


def derived(rank: int) -> Any:
    """As ``typed``: of a class and of types of the program's own, put together step by step, with labels by id."""
    nodes = torch.arange(rank, NUM_NODES, NUM_PARTS)
    owners = (torch.arange(NUM_NODES) % NUM_PARTS).to(torch.uint8)
    user, item = OwnNodeType("user"), OwnNodeType("item")
    to, among = OwnEdgeType(user, "to", item), OwnEdgeType(item, "among", item)
    rows = {kind: glt.utils.id2idx(nodes.flip(0)) for kind in (user, item)}
    dataset = OwnDataset(NUM_PARTS, rank)
    dataset.node_pb, dataset.edge_pb = {user: owners, item: owners}, {to: owners}
    edges = {to: torch.stack([nodes, (nodes + 1) % NUM_NODES]), among: torch.stack([nodes, (nodes + 2) % NUM_NODES])}
    dataset.init_graph(edges, {to: nodes, among: None}, graph_mode="CPU")
    features = nodes.flip(0)[:, None].float()
    dataset.init_node_features({user: features, item: features}, id2idx=rows, with_gpu=False)
    dataset.init_edge_features({to: nodes[:, None].float()}, id2idx={to: glt.utils.id2idx(nodes)}, with_gpu=False)
    dataset.label_rows = {user: rows[user]}
    dataset.init_node_labels({user: nodes.flip(0)}, id2idx=dataset.label_rows)
    return dataset


def train(rank: int, datasets: list[list[Any]], ports: list[int]) -> None:
    """A trainer: every loader over each of its data sets, and rows by hand."""
    glt.distributed.init_worker_group(world_size=NUM_PARTS, rank=rank, group_name="in-memory")
    glt.distributed.init_rpc("localhost", ports[0])
    for dataset in datasets[rank]:
        by_type = isinstance(dataset.node_pb, dict)
        seeds = glt.utils.default_id_filter(dataset.node_pb["user"] if by_type else dataset.node_pb, rank)
        for options in (
            glt.distributed.CollocatedDistSamplingWorkerOptions(),
            glt.distributed.MpDistSamplingWorkerOptions(
                num_workers=1,
                worker_devices=[DEVICE],
                worker_concurrency=2,
                master_addr="localhost",
                master_port=ports[1],
                channel_size="16MB",
            ),
        ):
            loader = glt.distributed.DistNeighborLoader(
                dataset,
                num_neighbors=[2, 2],
                input_nodes=("user", seeds) if by_type else seeds,
                batch_size=5,
                shuffle=True,
                with_edge=True,
                collect_features=True,
                to_device=DEVICE,
                worker_options=options,
            )
            found = [check_batch(batch) for batch in loader]
            assert torch.equal(torch.cat(found).sort().values, seeds)
            loader.shutdown()
    whole = datasets[rank][1]
    feature = glt.distributed.DistFeature(NUM_PARTS, rank, whole.node_features, whole.node_feat_pb)
    ids = torch.randperm(NUM_NODES)
    assert torch.equal(feature.async_get(ids).wait()[:, 0], ids.float())
    glt.distributed.barrier()
    glt.distributed.shutdown_rpc()


def check_batch(batch: Any) -> torch.Tensor:
    """What belongs to each node and edge of a batch; its seeds."""
    for store in batch.node_stores:
        assert torch.equal(store.x[:, 0], store.node.float())
        assert "y" not in store or torch.equal(store.y[: store.batch_size], store.node[: store.batch_size])
    for store in batch.edge_stores:
        if "edge_attr" in store:
            assert torch.equal(store.edge_attr[:, 0], store.edge.float())
    first = batch["user"] if hasattr(batch, "node_types") and batch.node_types != [None] else batch
    seeds: torch.Tensor = first.batch if "batch" in first else first.node[: first.batch_size]
    return seeds
