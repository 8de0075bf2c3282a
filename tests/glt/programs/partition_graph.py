"""Partitions a graph offline, and gives each partition its share of the training and test nodes (or edges)."""

import argparse
import os.path as osp

import torch

import graphlearn_dist.glt as glt


def save_parts(root_dir, name, idx, num_partitions):
    parts_dir = osp.join(root_dir, f"{name}-partitions")
    glt.utils.ensure_dir(parts_dir)
    is_edges = idx.dim() == 2
    rows = idx.T if is_edges else idx
    for pidx, part in enumerate(rows.split(rows.size(0) // num_partitions)[:num_partitions]):
        torch.save(part.T.contiguous() if is_edges else part, osp.join(parts_dir, f"partition{pidx}.pt"))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--root_dir", type=str)
    parser.add_argument("--num_partitions", type=int, default=2)
    parser.add_argument("--edge_assign", type=str, default="by_src")
    args = parser.parse_args()

    graph = torch.load(osp.join(args.root_dir, "graph.pt"), weights_only=True)
    partitioner = glt.partition.RandomPartitioner(
        output_dir=osp.join(args.root_dir, "partitions"),
        num_parts=args.num_partitions,
        num_nodes=graph["num_nodes"],
        edge_index=graph["edge_index"],
        node_feat=graph["node_feat"],
        edge_weights=graph.get("edge_weights"),
        edge_assign_strategy=args.edge_assign,
        chunk_size=10000,
    )
    partitioner.partition()
    if "label" in graph:
        glt.utils.ensure_dir(osp.join(args.root_dir, "label"))
        torch.save(graph["label"], osp.join(args.root_dir, "label", "label.pt"))
    for name in ("train", "test"):
        save_parts(args.root_dir, name, graph[f"{name}_idx"], args.num_partitions)
