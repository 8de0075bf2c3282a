"""Partitioning scripts in the shape that GraphLearn-for-PyTorch gave them: its users' differ in the import line."""

from __future__ import annotations

import os
from typing import Any

import torch

import graphlearn_dist.glt as glt

NUM_PARTS = 2


def partition_random(root: str, graph: dict[str, Any], *, graph_caching: bool = False) -> None:
    """Everything in one call, as for ogbn-products; raw files lie in the same directory."""
    partitioner = glt.partition.RandomPartitioner(
        output_dir=root,
        num_parts=NUM_PARTS,
        num_nodes=graph["num_nodes"],
        edge_index=graph["edge_index"],
        node_feat=graph["node_feat"],
        node_feat_dtype=torch.float32,
        edge_feat=graph["edge_feat"],
        edge_weights=graph["edge_weights"],
        edge_assign_strategy="by_src",
        chunk_size=100,
    )
    partitioner.partition(graph_caching=graph_caching)


def partition_by_frequency(root: str, graph: dict[str, Any]) -> None:
    """By how likely each node is in the batches of each trainer's seeds, with caches of others' hot rows."""
    dataset = glt.data.Dataset()
    dataset.init_graph(edge_index=graph["edge_index"], layout="COO", graph_mode="CPU")
    seeds = graph["seeds"].split(len(graph["seeds"]) // NUM_PARTS)
    sampler = glt.sampler.NeighborSampler(dataset.get_graph(), [4, 3], device=torch.device("cpu"))
    probs = [sampler.sample_prob(glt.sampler.NodeSamplerInput(own), graph["num_nodes"]) for own in seeds[:NUM_PARTS]]
    partitioner = glt.partition.FrequencyPartitioner(
        output_dir=root,
        num_parts=NUM_PARTS,
        num_nodes=graph["num_nodes"],
        edge_index=graph["edge_index"],
        probs=probs,
        node_feat=graph["node_feat"],
        edge_feat=graph["edge_feat"],
        edge_weights=graph["edge_weights"],
        edge_assign_strategy="by_src",
        chunk_size=100,
        cache_ratio=0.2,
    )
    partitioner.partition()


def partition_in_two_stages(root: str, graph: dict[str, Any]) -> None:
    """The topology first, and then each partition's features in chunks, as for graphs of many machines."""
    partitioner = glt.partition.RandomPartitioner(
        root,
        NUM_PARTS,
        graph["num_nodes"],
        graph["edge_index"],
        edge_weights=graph["edge_weights"],
        edge_assign_strategy="by_src",
    )
    partitioner.partition(with_feature=False)
    for partition_idx in range(NUM_PARTS):
        glt.partition.build_partition_feature(
            root_dir=root,
            partition_idx=partition_idx,
            chunk_size=64,
            node_feat=graph["node_feat"],
            node_feat_dtype=torch.float32,
            edge_feat=graph["edge_feat"],
            edge_feat_dtype=torch.float32,
        )


def partition_slices(root: str, graph: dict[str, Any], rank: int, port: int) -> None:
    """One of the processes that hold a slice each; none of them makes a worker group itself."""
    typed = isinstance(graph["num_nodes"], dict)

    def own(values: Any, along: int = 0) -> Any:
        if isinstance(values, dict):
            return {key: own(value, along) for key, value in values.items()}
        return values.tensor_split(NUM_PARTS, along)[rank]

    def ids(values: Any, along: int = 0) -> Any:
        if isinstance(values, dict):
            return {key: ids(value, along) for key, value in values.items()}
        return torch.arange(values.size(along)).tensor_split(NUM_PARTS)[rank]

    os.environ.update(MASTER_ADDR="localhost", MASTER_PORT=str(port))
    assert typed == isinstance(graph["edge_index"], dict)
    partitioner = glt.distributed.DistRandomPartitioner(
        root,
        num_nodes=graph["num_nodes"],
        edge_index=own(graph["edge_index"], 1),
        edge_ids=ids(graph["edge_index"], 1),
        node_feat=own(graph["node_feat"]),
        node_feat_ids=ids(graph["node_feat"]),
        edge_feat=own(graph["edge_feat"]),
        edge_feat_ids=ids(graph["edge_feat"]),
        num_parts=NUM_PARTS,
        current_partition_idx=rank,
        chunk_size=100,
    )
    partitioner.partition()


def load(root: str, rank: int, *, graph_caching: bool = False, label_file: Any = None) -> Any:
    """A trainer's partition."""
    dataset = glt.distributed.DistDataset()
    dataset.load(
        root_dir=root,
        partition_idx=rank,
        graph_mode="CPU",
        feature_with_gpu=False,
        graph_caching=graph_caching,
        whole_node_label_file=label_file,
    )
    return dataset
