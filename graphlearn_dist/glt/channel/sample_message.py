"""A sampled batch as the flat dict of tensors that GraphLearn-for-PyTorch sends through its channels."""

from __future__ import annotations

from typing import Any

import torch

from ...data.schema import GraphSchema
from ...messages import SampledBatch
from ...sampler.convert import link_attributes, seeds_of
from ...typing import as_str, reverse_edge_type


def to_sample_message(batch: SampledBatch, schema: GraphSchema) -> dict[str, torch.Tensor]:
    """The message of a batch.

    ``rows`` are places of the nodes that were sampled for, ``cols`` those of their neighbors; loaders turn them
    around. Names of a typed batch begin with the type, which for in-neighbors is the reversed edge type.
    """
    message = {"#IS_HETERO": torch.tensor([int(not schema.is_homogeneous)])}
    metadata = link_attributes(batch.links) if batch.links is not None else {}
    if batch.mapping is not None:
        metadata["mapping"] = batch.mapping
    message |= {f"#META.{name}": value for name, value in metadata.items()}
    for index, node_type in enumerate(schema.node_types):
        if schema.is_homogeneous or batch.subgraph.nodes[index].numel():
            message |= _named(node_type, _of_nodes(batch, index))
    for index, edge_type in enumerate(schema.edge_types):
        if schema.is_homogeneous or batch.subgraph.edge_index[index].numel():
            name = edge_type if edge_type is None or schema.edge_dir == "out" else reverse_edge_type(edge_type)
            message |= _named(name, _of_edges(batch, index))
    return message


def _named(type_name: Any, values: dict[str, Any]) -> dict[str, torch.Tensor]:
    prefix = "" if type_name is None else f"{as_str(type_name)}."
    return {f"{prefix}{name}": value for name, value in values.items() if value is not None}


def _of_nodes(batch: SampledBatch, index: int) -> dict[str, Any]:
    subgraph = batch.subgraph
    is_seed_type = index == batch.seed_type and batch.links is None
    return {
        "ids": subgraph.nodes[index],
        "nfeats": batch.node_features[index],
        "nlabels": batch.node_labels[index],
        "num_sampled_nodes": torch.tensor(subgraph.num_sampled_nodes[index]),
        "batch": seeds_of(batch) if is_seed_type else None,
    }


def _of_edges(batch: SampledBatch, index: int) -> dict[str, Any]:
    subgraph = batch.subgraph
    return {
        "rows": subgraph.edge_index[index][1],
        "cols": subgraph.edge_index[index][0],
        "eids": subgraph.edge_ids[index],
        "efeats": batch.edge_features[index],
        "num_sampled_edges": torch.tensor(subgraph.num_sampled_edges[index]),
    }
