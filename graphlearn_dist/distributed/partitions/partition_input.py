"""Seeds and links that are named, looked up in a data set of which each process holds a partition."""

from __future__ import annotations

from dataclasses import replace

import torch

from ...errors import InvalidArgumentError
from ...messages import EdgeListRequest
from ...rpc.calls.remote import Remote
from ...sampler.base import (
    EdgeSamplerInput,
    NodeSamplerInput,
    RemoteAllNodesSamplerInput,
    RemoteNodeSplitSamplerInput,
    RemoteSamplerInput,
    SamplerInput,
)
from ...sampler.inputs import RemoteAllEdgesSamplerInput, edge_type_index, resolve_input
from ...typing import EdgeType
from .. import rpc
from ..dist_dataset import DistDataset
from .partition_peers import PartitionHolders
from .partition_service import PartitionService


def resolve_here(sampler_input: SamplerInput, dataset: DistDataset) -> SamplerInput:
    """Looks up and checks seeds as ``sampler.inputs.resolve_input`` does, without other partitions.

    Bad seeds are thus an error before any other process is waited for. All edges of a type stay named.

    Raises:
        InvalidArgumentError: an unknown type, or wrong dtypes, shapes or lengths.
        UnknownIdError: an id outside the graph.
    """
    if isinstance(sampler_input, RemoteAllEdgesSamplerInput):
        edge_type_index(dataset.schema, sampler_input.input_type, "edge_label_index")
        return sampler_input
    return resolve_input(sampler_input, dataset)


def resolve_among(
    sampler_input: SamplerInput, dataset: DistDataset, holders: PartitionHolders, timeout_s: float
) -> NodeSamplerInput | EdgeSamplerInput:
    """What ``resolve_here`` left named, found among all partitions; blocks while they are asked.

    Args:
        sampler_input: from ``resolve_here``.
        dataset: this process's partition.
        holders: who serves the others; they are asked over this process's endpoint.
        timeout_s: deadline of each request.

    Raises:
        InvalidArgumentError: not one label, or time, for each edge.
        PeerLostError, DeadlineExceededError: another partition did not answer.
    """
    if isinstance(sampler_input, RemoteAllEdgesSamplerInput):
        edges = _all_edges(dataset, holders, sampler_input.input_type, timeout_s)
        sampler_input = sampler_input.to_local_sampler_input(dataset, edges=edges)
    return resolve_input(sampler_input, dataset)


def _all_edges(
    dataset: DistDataset, holders: PartitionHolders, edge_type: EdgeType | None, timeout_s: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """All edges of a type over all partitions: ids, sources and targets, int64 ``[n]``, in no particular order."""
    request = EdgeListRequest(edge_type_index(dataset.schema, edge_type, "edge_label_index"))
    at_hand = {part.partition_idx: part for part in (dataset, *dataset.cached_graphs)}
    asked = [
        Remote[PartitionService](
            rpc.get_endpoint(), address, suffix=holders.suffix, timeout_s=timeout_s, fail_fast=True
        ).ask(PartitionService.edges, request)
        for partition, address in holders.addresses.items()
        if partition not in at_hand
    ]
    parts = [part.edges(edge_type) for part in at_hand.values()]
    for answer in asked:
        reply = answer.result()
        parts.append((reply.edge_ids, reply.sources, reply.targets))
    ids, sources, targets = (torch.cat(column) for column in zip(*parts, strict=True))
    return ids, sources, targets


def own_input(sampler_input: RemoteSamplerInput, dataset: DistDataset) -> NodeSamplerInput | EdgeSamplerInput:
    """What an input names in one partition: of a split, or of all nodes, those that the partition owns; else as it is.

    Raises:
        InvalidArgumentError: an unknown type, or all edges are asked for, which no partition has.
        UnknownIdError: an id outside the graph.
    """
    if isinstance(sampler_input, RemoteAllEdgesSamplerInput):
        raise InvalidArgumentError("edge_label_index: all edges of a type are one input; expected no list of them")
    found = resolve_input(sampler_input, dataset)
    if isinstance(found, NodeSamplerInput) and isinstance(
        sampler_input, (RemoteNodeSplitSamplerInput, RemoteAllNodesSamplerInput)
    ):
        owners = dataset.node_books()[found.input_type][found.node]
        return replace(found, node=found.node[owners == dataset.partition_idx])
    return found
