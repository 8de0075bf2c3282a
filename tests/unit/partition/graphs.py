"""Random graphs with everything that is normal: isolated nodes, self loops, repeated edges."""

from __future__ import annotations

from typing import Any

import torch

EDGE_TYPES = [("user", "buys", "item"), ("item", "rev_buys", "user"), ("user", "knows", "user")]
NUM_NODES = {"user": 37, "item": 11, "unused/..type": 3}


def random_edges(num_src: int, num_dst: int, num_edges: int, seed: int) -> torch.Tensor:
    """[2, num_edges]; a tenth of the edges is repeated, and the last tenth of the sources has none."""
    generator = torch.Generator().manual_seed(seed)
    row = torch.randint(0, max(1, num_src - num_src // 10), (num_edges,), generator=generator)
    col = torch.randint(0, num_dst, (num_edges,), generator=generator)
    repeated = num_edges // 10
    if repeated:
        row[-repeated:], col[-repeated:] = row[:repeated], col[:repeated]
    return torch.stack([row, col])


def homo_inputs(num_nodes: int = 53, num_edges: int = 400, seed: int = 0) -> dict[str, Any]:
    """Node v has feature [v, v + 0.5] and label v % 7; edge e has feature [e] and weight e / 2."""
    edge_index = random_edges(num_nodes, num_nodes, num_edges, seed)
    edge_index[1, : num_edges // 20] = edge_index[0, : num_edges // 20]  # self loops
    ids = torch.arange(num_nodes)
    return {
        "num_nodes": num_nodes,
        "edge_index": edge_index,
        "node_feat": torch.stack([ids.float(), ids + 0.5], dim=1),
        "edge_feat": torch.arange(num_edges).float()[:, None],
        "edge_weights": torch.arange(num_edges) / 2,
        "node_labels": ids % 7,
        "node_split": (ids[: num_nodes // 2], ids[num_nodes // 2 :], None),
    }


def hetero_inputs(seed: int = 0) -> dict[str, Any]:
    """The same by type; the third node type has nothing at all, items have no features, one edge type no weights."""
    edges = {
        (source, relation, target): random_edges(NUM_NODES[source], NUM_NODES[target], 90, seed + i)
        for i, (source, relation, target) in enumerate(EDGE_TYPES)
    }
    users = torch.arange(NUM_NODES["user"])
    return {
        "num_nodes": NUM_NODES,
        "edge_index": edges,
        "node_feat": {"user": users[:, None].float()},
        "edge_feat": {EDGE_TYPES[0]: torch.arange(90).float()[:, None]},
        "edge_weights": {EDGE_TYPES[2]: torch.arange(90) / 2},
        "node_labels": {"item": torch.eye(NUM_NODES["item"], dtype=torch.bool)},
        "node_split": {"user": (users[:5], None, users[5:])},
    }
