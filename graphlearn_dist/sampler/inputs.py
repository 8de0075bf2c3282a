"""From what a user calls "input nodes" to seeds."""

from __future__ import annotations

from typing import Any

import torch

from ..core import check_index_tensor
from ..data.dataset import Dataset, GraphSchema
from ..errors import InvalidArgumentError
from ..typing import Split
from .base import NodeSamplerInput, RemoteNodeSplitSamplerInput, RemoteSamplerInput


def to_sampler_input(input_nodes: Any) -> NodeSamplerInput | RemoteSamplerInput:
    """Makes seeds of ids int ``[n]``, a boolean mask, a ``Split``, or ``(node type, one of these)``.

    Ids are checked against the graph where the graph is; their dtype and shape are checked here.

    Raises:
        InvalidArgumentError: none of these.
        UnknownIdError: a negative id.
    """
    if isinstance(input_nodes, (NodeSamplerInput, RemoteSamplerInput)):
        return input_nodes
    node_type = None
    if isinstance(input_nodes, tuple) and len(input_nodes) == 2 and isinstance(input_nodes[0], str):
        node_type, input_nodes = input_nodes
    if isinstance(input_nodes, Split):
        return RemoteNodeSplitSamplerInput(input_nodes, node_type)
    if isinstance(input_nodes, torch.Tensor) and input_nodes.dtype == torch.bool:
        if input_nodes.dim() != 1:
            raise InvalidArgumentError(f"input_nodes: expected a mask [num_nodes], got {tuple(input_nodes.shape)}")
        input_nodes = input_nodes.nonzero().view(-1)
    return NodeSamplerInput(check_index_tensor(input_nodes, "input_nodes", what="node id").to(torch.int64), node_type)


def resolve_input(sampler_input: NodeSamplerInput | RemoteSamplerInput, dataset: Dataset) -> NodeSamplerInput:
    """Looks up seeds that were named, and checks all of them against the graph."""
    if isinstance(sampler_input, RemoteSamplerInput):
        sampler_input = sampler_input.to_local_sampler_input(dataset)
    schema = dataset.schema
    node_type = schema.node_type_index(sampler_input.input_type, "input_nodes")
    check_index_tensor(sampler_input.node, "input_nodes", num_ids=schema.num_nodes[node_type], what="node id")
    return sampler_input


def check_direction(schema: GraphSchema, edge_dir: str) -> None:
    """Refuses a loader that wants the neighbors which this data set does not hold."""
    if schema.edge_dir != edge_dir:
        strategy = {"in": "by_dst", "out": "by_src"}[edge_dir]
        raise InvalidArgumentError(
            f"edge_dir: the data set holds {schema.edge_dir!r}-neighbors, the loader asks for {edge_dir!r}; build it "
            f"with edge_dir={edge_dir!r} (partitions: edge_assign_strategy={strategy!r})"
        )
