"""From a sampled batch to the PyG object a training loop holds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ..data.dataset import GraphSchema
from ..messages import SampledBatch
from ..typing import reverse_edge_type

if TYPE_CHECKING:  # importing it takes as long as importing torch, and sampling workers never need it
    from torch_geometric.data import Data, HeteroData

_ONLY_NODE = "node"
_ONLY_EDGE = ("node", "to", "node")


def to_pyg(batch: SampledBatch, schema: GraphSchema, *, with_edge_ids: bool) -> Data | HeteroData:
    """Makes ``Data`` of a homogeneous batch and ``HeteroData`` of any other.

    In PyG's convention: ``edge_index`` int64 ``[2, E]`` runs from neighbor to seed in local ids, ``n_id`` and ``e_id``
    are global ids, the first ``batch_size`` nodes are the seeds, ``input_id`` are their positions in the loader's list
    of input nodes, ``num_sampled_nodes``/``num_sampled_edges`` count per hop. GLT's names ``node``, ``edge`` and
    ``batch`` (the seeds) stand beside them.
    """
    typed = _to_hetero_data(batch, schema, with_edge_ids=with_edge_ids)
    return _single_type(typed, batch) if schema.is_homogeneous else typed


def _to_hetero_data(batch: SampledBatch, schema: GraphSchema, *, with_edge_ids: bool) -> HeteroData:
    from torch_geometric.data import HeteroData

    data = HeteroData()
    for index, node_type in enumerate(schema.node_types):
        _fill_nodes(data[node_type or _ONLY_NODE], batch, index)
    seeds = data[schema.node_types[batch.seed_type] or _ONLY_NODE]
    seeds.batch_size = batch.input_positions.numel()
    seeds.input_id = batch.input_positions
    seeds.batch = seeds.n_id[: seeds.batch_size]
    for index, edge_type in enumerate(schema.edge_types):
        _fill_edges(data[_message_type(edge_type, schema)], batch, index, with_edge_ids=with_edge_ids)
    return data


def _message_type(edge_type: Any, schema: GraphSchema) -> Any:
    """The edge type under which messages flow from neighbor to seed."""
    if edge_type is None:
        return _ONLY_EDGE
    if schema.edge_dir == "in":
        return edge_type
    return reverse_edge_type(edge_type)


def _fill_nodes(store: Any, batch: SampledBatch, index: int) -> None:
    store.n_id = store.node = batch.subgraph.nodes[index]
    store.num_nodes = store.n_id.numel()
    store.num_sampled_nodes = list(batch.subgraph.num_sampled_nodes[index])
    if (features := batch.node_features[index]) is not None:
        store.x = features
    if (labels := batch.node_labels[index]) is not None:
        store.y = labels


def _fill_edges(store: Any, batch: SampledBatch, index: int, *, with_edge_ids: bool) -> None:
    subgraph = batch.subgraph
    store.edge_index = torch.stack([subgraph.rows[index], subgraph.cols[index]])
    store.num_sampled_edges = list(subgraph.num_sampled_edges[index])
    if with_edge_ids and (edge_ids := subgraph.edge_ids[index]) is not None:
        store.e_id = store.edge = edge_ids
    if (features := batch.edge_features[index]) is not None:
        store.edge_attr = features


def _single_type(typed: HeteroData, batch: SampledBatch) -> Data:
    """The one node type and the one edge type of a typed batch, as plain ``Data``."""
    from torch_geometric.data import Data

    nodes, edges = typed[_ONLY_NODE], typed[_ONLY_EDGE]
    data = Data()
    for store in (nodes, edges):
        for key, value in store.items():
            data[key] = value
    return data
