"""From a sampled batch to the PyG object a training loop holds."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

import torch

from ..core import stack_pair
from ..data.columns import NODE_COLUMN, columns_among, last_dimension_counts
from ..data.schema import GraphSchema
from ..messages import LinkLabels, SampledBatch
from ..sampler.convert import link_attributes, message_type
from ..sampler.outputs import HeteroSamplerOutput, SamplerOutput
from ..sampler.padding import PaddedBatch
from ..typing import EdgeType, NodeType

if TYPE_CHECKING:  # importing it takes as long as importing torch, and sampling workers never need it
    from torch_geometric.data import Data, HeteroData

_ONLY_NODE = "node"
_ONLY_EDGE = ("node", "to", "node")


Constants = Mapping[Any, Mapping[str, Any]]


def to_pyg(batch: SampledBatch, schema: GraphSchema, constants: Constants = MappingProxyType({})) -> Data | HeteroData:
    """Makes ``Data`` of a homogeneous batch and ``HeteroData`` of any other.

    In PyG's convention: ``edge_index`` int64 ``[2, E]`` runs from neighbor to seed in local ids, ``n_id`` and ``e_id``
    are global ids, ``num_sampled_nodes``/``num_sampled_edges`` count per hop. GLT's names ``node`` and ``edge`` stand
    beside them.

    - Nodes: the first ``batch_size`` nodes are the seeds, ``input_id`` are their positions in the loader's list of
      input nodes, or where that is a mask their ids. ``batch`` is there in disjoint batches only: the seed that each
      node belongs to, by its position in the batch.
    - Links: ``input_id``, ``batch_size`` and ``edge_label_index``, ``edge_label``, ``edge_label_time``, from source to
      target whatever the direction of sampling, stand in the batch, or where it is typed in the store of the links' own
      edge type; triplets are ``src_index``, ``dst_pos_index``, ``dst_neg_index`` and ``seed_time`` in the stores of
      their nodes.
    - Further attributes of the data set (``Dataset.init_attrs``) stand under their names, rows of the batch's nodes and
      edges, constants as they are; names above are the batch's own.
    - Induced subgraphs: ``mapping`` are the local ids of the seeds; edges belong to no hop.
    """
    typed = _to_hetero_data(batch, schema, constants)
    return _single_type(typed) if schema.is_homogeneous else typed


def padded_to_pyg(
    padded: PaddedBatch, schema: GraphSchema, constants: Constants = MappingProxyType({})
) -> Data | HeteroData:
    """As ``to_pyg``, of a padded batch; nothing waits for a GPU.

    ``node_mask`` and ``edge_mask`` say what is real, and beside the seeds ``seed_mask`` which of the first
    ``batch_size`` nodes are seeds: all of them but in a short last batch. ``num_sampled_nodes`` and
    ``num_sampled_edges`` are tensors where the batch lies.
    """
    typed = _to_hetero_data(padded.batch, schema, constants)
    for index, node_type in enumerate(schema.node_types):
        store = typed[node_type or _ONLY_NODE]
        store.node_mask, store.num_sampled_nodes = padded.node_masks[index], padded.num_sampled_nodes[index]
    for index, edge_type in enumerate(schema.edge_types):
        store = typed[_message_type(schema, edge_type)]
        store.edge_mask, store.num_sampled_edges = padded.edge_masks[index], padded.num_sampled_edges[index]
    seeds = typed[schema.node_types[padded.batch.seed_type] or _ONLY_NODE]
    seeds.seed_mask = padded.seed_mask
    return _single_type(typed) if schema.is_homogeneous else typed


def _message_type(schema: GraphSchema, edge_type: EdgeType | None) -> EdgeType:
    return _ONLY_EDGE if edge_type is None else message_type(edge_type, schema.edge_dir)


def _to_hetero_data(batch: SampledBatch, schema: GraphSchema, constants: Constants) -> HeteroData:
    from torch_geometric.data import HeteroData

    data = HeteroData()
    if batch.columns or constants:
        _fill_attributes(data, batch, schema, constants)
    for index, node_type in enumerate(schema.node_types):
        _fill_nodes(data[node_type or _ONLY_NODE], batch, index)
    for index, edge_type in enumerate(schema.edge_types):
        _fill_edges(data[_message_type(schema, edge_type)], batch, index)
    if batch.links is None:
        _fill_seeds(data[schema.node_types[batch.seed_type] or _ONLY_NODE], batch)
    else:
        _fill_links(data, schema.edge_types[batch.links.edge_type] or _ONLY_EDGE, batch, batch.links)
    return data


def _fill_attributes(data: HeteroData, batch: SampledBatch, schema: GraphSchema, constants: Constants) -> None:
    """What the data set has beside features and labels; the batch's own names are filled in later, and stand."""
    for column in columns_among(frozenset(batch.columns)):
        if column.kind == NODE_COLUMN:
            store = data[schema.node_types[column.type_index] or _ONLY_NODE]
        else:
            store = data[_message_type(schema, schema.edge_types[column.type_index])]
        rows = batch.columns[column.store]
        store[column.name] = rows.movedim(0, -1) if last_dimension_counts(column.name) else rows
    for key, named in constants.items():
        if key is None:
            store = data[_ONLY_NODE] if schema.is_homogeneous else data
        else:
            store = data[key if isinstance(key, str) else _message_type(schema, key)]
        for name, value in named.items():
            store[name] = value


def _fill_nodes(store: Any, batch: SampledBatch, index: int) -> None:
    store.n_id = store.node = batch.subgraph.nodes[index]
    store.num_nodes = store.n_id.numel()
    store.num_sampled_nodes = list(batch.subgraph.num_sampled_nodes[index])
    if (trees := batch.subgraph.trees[index]) is not None:
        store.batch = trees
    if (features := batch.node_features[index]) is not None:
        store.x = features
    if (labels := batch.node_labels[index]) is not None:
        store.y = labels


def _fill_edges(store: Any, batch: SampledBatch, index: int) -> None:
    subgraph = batch.subgraph
    store.edge_index = subgraph.edge_index[index]
    if batch.mapping is None:
        store.num_sampled_edges = list(subgraph.num_sampled_edges[index])
    # Where features of edges were looked up, their ids are there.
    if (edge_ids := subgraph.edge_ids[index]) is not None:
        store.e_id = store.edge = edge_ids
    if (features := batch.edge_features[index]) is not None:
        store.edge_attr = features


def _fill_seeds(store: Any, batch: SampledBatch) -> None:
    store.batch_size = batch.input_positions.numel()
    store.input_id = batch.input_positions
    if batch.mapping is not None:
        store.mapping = batch.mapping
    if batch.seed_times is not None:
        store.seed_time = batch.seed_times


def _fill_links(data: HeteroData, edge_type: EdgeType, batch: SampledBatch, links: LinkLabels) -> None:
    store = data[edge_type]
    store.batch_size = batch.input_positions.numel()
    store.input_id = batch.input_positions
    if links.src_index is None:
        store.update(link_attributes(links))
        if batch.seed_times is not None:
            store.edge_label_time = batch.seed_times
        return
    source, target = data[edge_type[0]], data[edge_type[2]]
    source.src_index, target.dst_pos_index = links.src_index, links.dst_pos_index
    target.dst_neg_index = links.dst_neg_index
    if batch.seed_times is not None:
        source.seed_time = target.seed_time = batch.seed_times


def _single_type(typed: HeteroData) -> Data:
    """The one node type and the one edge type of a typed batch, as plain ``Data``."""
    from torch_geometric.data import Data

    data = Data()
    for store in (typed[_ONLY_NODE], typed[_ONLY_EDGE]):
        for key, value in store.items():
            data[key] = value
    return data


def to_data(
    sampler_out: SamplerOutput,
    batch_labels: torch.Tensor | None = None,
    node_feats: torch.Tensor | None = None,
    edge_feats: torch.Tensor | None = None,
    **kwargs: Any,
) -> Data:
    """A sampler's output with looked-up rows as ``Data``; names as in ``to_pyg``.

    Args:
        sampler_out: what the sampler gave.
        batch_labels: ``[num_nodes, ...]``, becomes ``y``.
        node_feats: ``[num_nodes, dim]``, becomes ``x``.
        edge_feats: ``[num_edges, dim]``, becomes ``edge_attr``.
        **kwargs: further attributes.
    """
    from torch_geometric.data import Data

    out = sampler_out
    data = Data(x=node_feats, edge_index=stack_pair(out.row, out.col), edge_attr=edge_feats, y=batch_labels)
    data.n_id = data.node = out.node
    data.num_nodes = out.node.numel()
    attributes: dict[str, Any] = {"e_id": out.edge, "edge": out.edge, "batch": out.batch}
    attributes |= {"num_sampled_nodes": out.num_sampled_nodes, "num_sampled_edges": out.num_sampled_edges}
    if out.batch is not None:
        data.batch_size = out.batch.numel()
    attributes |= out.metadata if isinstance(out.metadata, dict) else {"mapping": out.metadata}
    for name, value in (attributes | kwargs).items():
        if value is not None:
            data[name] = value
    return data


def to_hetero_data(
    hetero_sampler_out: HeteroSamplerOutput,
    batch_label_dict: dict[NodeType, torch.Tensor] | None = None,
    node_feat_dict: dict[NodeType, torch.Tensor] | None = None,
    edge_feat_dict: dict[EdgeType, torch.Tensor] | None = None,
    edge_dir: Literal["in", "out"] = "out",
    **kwargs: Any,
) -> HeteroData:
    """A sampler's output with looked-up rows as ``HeteroData``; names as in ``to_pyg``.

    Args:
        hetero_sampler_out: what the sampler gave.
        batch_label_dict: by node type ``[num_nodes, ...]``, becomes ``y``.
        node_feat_dict: by node type ``[num_nodes, dim]``, becomes ``x``.
        edge_feat_dict: by the graph's edge type ``[num_edges, dim]``, becomes ``edge_attr``.
        edge_dir: the direction of sampling.
        **kwargs: further attributes of the whole batch.
    """
    from torch_geometric.data import HeteroData

    out, data = hetero_sampler_out, HeteroData()
    features = {message_type(name, edge_dir): rows for name, rows in (edge_feat_dict or {}).items()}
    for name, edge_index in out.get_edge_index().items():
        data[name].edge_index = edge_index
    unreached = torch.empty(0, dtype=torch.int64, device=out.device)
    for key, node in (dict.fromkeys(out.num_sampled_nodes or (), unreached) | out.node).items():
        data[key].n_id = data[key].node = node
        data[key].num_nodes = node.numel()
    by_name: dict[str, Any] = {"x": node_feat_dict, "y": batch_label_dict, "edge_attr": features, "e_id": out.edge}
    by_name |= {"edge": out.edge, "batch": out.batch}
    by_name |= {"num_sampled_nodes": out.num_sampled_nodes, "num_sampled_edges": out.num_sampled_edges}
    for attribute, values in by_name.items():
        for key, value in (values or {}).items():
            data[key][attribute] = value
    _fill_metadata(data, out)
    for attribute, value in kwargs.items():
        data[attribute] = value
    return data


def _fill_metadata(data: HeteroData, out: HeteroSamplerOutput) -> None:
    """What a batch of links, or an induced subgraph, holds besides, in the stores it belongs to."""
    if isinstance(out.input_type, str) and out.batch is not None:
        data[out.input_type].batch_size = out.batch[out.input_type].numel()
    if isinstance(out.metadata, dict) and out.input_type is not None:
        source, target = out.input_type[0], out.input_type[2]
        places = {"src_index": source, "dst_pos_index": target, "dst_neg_index": target}
        for name, value in out.metadata.items():
            data[places.get(name, out.input_type)][name] = value
    elif out.metadata is not None:
        data[out.input_type].mapping = out.metadata
