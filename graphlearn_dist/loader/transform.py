"""From a sampled batch to the PyG object a training loop holds."""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

import torch

from ..core import stack_pair
from ..data.columns import EDGE_COLUMN, NODE_COLUMN, column_store, columns_among, last_dimension_counts
from ..data.device.compressed_edges import CompressedEdges
from ..data.schema import GraphSchema
from ..messages import LinkLabels, SampledBatch
from ..sampler.convert import link_attributes, message_type
from ..sampler.device.padding import PaddedBatch
from ..sampler.outputs import HeteroSamplerOutput, SamplerOutput
from ..typing import EdgeType, NodeType

if TYPE_CHECKING:  # importing it takes as long as importing torch, and sampling workers never need it
    from torch_geometric.data import Data, HeteroData

_ONLY_NODE = "node"
_ONLY_EDGE = ("node", "to", "node")
_WEIGHT = "edge_weight"  # the attribute that PyG's ``ToSparseTensor`` makes values of


Constants = Mapping[Any, Mapping[str, Any]]
Stores = defaultdict[Any, dict[str, Any]]


def to_pyg(
    batch: SampledBatch,
    schema: GraphSchema,
    constants: Constants = MappingProxyType({}),
    *,
    as_parts: bool = False,
) -> Data | HeteroData:
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
    - With ``edge_format="adj_t"``, ``adj_t`` stands in place of ``edge_index``, as PyG's ``ToSparseTensor`` makes it: a
      sparse CSR tensor of torch ``[targets, sources]`` with values of 1 (float32) or, where the data set has it as one
      floating-point number an edge, of ``edge_weight``. ``e_id``, ``edge_attr`` and further rows of edges are in its
      order. With ``as_parts`` it is what such a matrix is made of, see ``DeviceCopies.takes_parts``.
    """
    stores = _stores_of(batch, schema, constants)
    if batch.subgraph.adjacency and not as_parts:
        for attributes in stores.values():
            if isinstance(edges := attributes.get("adj_t"), CompressedEdges):
                attributes["adj_t"] = edges.matrix()
    return _to_data(stores, schema)


def padded_to_pyg(
    padded: PaddedBatch, schema: GraphSchema, constants: Constants = MappingProxyType({})
) -> Data | HeteroData:
    """As ``to_pyg``, of a padded batch; nothing waits for a GPU.

    ``node_mask`` and ``edge_mask`` say what is real, and beside the seeds ``seed_mask`` which of the first
    ``batch_size`` nodes are seeds: all of them but in a short last batch. ``num_sampled_nodes`` and
    ``num_sampled_edges`` are tensors where the batch lies.
    """
    stores = _stores_of(padded.batch, schema, constants)
    for index, node_type in enumerate(schema.node_types):
        stores[store_of_nodes(node_type)] |= {
            "node_mask": padded.node_masks[index],
            "num_sampled_nodes": padded.num_sampled_nodes[index],
        }
    for index, edge_type in enumerate(schema.edge_types):
        stores[_message_type(schema, edge_type)] |= {
            "edge_mask": padded.edge_masks[index],
            "num_sampled_edges": padded.num_sampled_edges[index],
        }
    stores[schema.node_types[padded.batch.seed_type] or _ONLY_NODE]["seed_mask"] = padded.seed_mask
    return _to_data(stores, schema)


def store_of_nodes(node_type: NodeType | None) -> str:
    """The name of a node type in a batch."""
    return node_type or _ONLY_NODE


def _message_type(schema: GraphSchema, edge_type: EdgeType | None) -> EdgeType:
    return _ONLY_EDGE if edge_type is None else message_type(edge_type, schema.edge_dir)


def _to_data(stores: Stores, schema: GraphSchema) -> Data | HeteroData:
    """PyG's object with these attributes, none of which is None.

    They are put into PyG's dict of each store: its ``store[name] = value`` looks first for what was computed of an
    earlier value, by four calls and two exceptions, which for all attributes takes longer than all else here.
    """
    from torch_geometric.data import Data, HeteroData

    if schema.is_homogeneous:
        single = Data()
        for attributes in stores.values():
            single._store._mapping.update(attributes)
        return single
    data = HeteroData()
    for key, attributes in stores.items():
        if key is not None:
            data[key]._mapping.update(attributes)
    for name, value in stores.get(None, {}).items():
        data[name] = value
    return data


def _stores_of(batch: SampledBatch, schema: GraphSchema, constants: Constants) -> Stores:
    """A batch's attributes by node type and edge type, and those of the whole (None)."""
    stores: Stores = defaultdict(dict)
    if batch.columns or constants:
        _fill_attributes(stores, batch, schema, constants)
    for index, node_type in enumerate(schema.node_types):
        _fill_nodes(stores[node_type or _ONLY_NODE], batch, index)
    for index, edge_type in enumerate(schema.edge_types):
        _fill_edges(stores[_message_type(schema, edge_type)], batch, schema, index)
    if batch.subgraph.adjacency:
        for attributes in stores.values():
            attributes.pop("edge_index", None)  # the data set's: a batch's own names come before those
    if batch.links is not None:
        _fill_links(stores, schema.edge_types[batch.links.edge_type] or _ONLY_EDGE, batch, batch.links)
        return stores
    seeds = stores[schema.node_types[batch.seed_type] or _ONLY_NODE]
    seeds["batch_size"], seeds["input_id"] = batch.input_positions.numel(), batch.input_positions
    if batch.mapping is not None:
        seeds["mapping"] = batch.mapping
    if batch.seed_times is not None:
        seeds["seed_time"] = batch.seed_times
    return stores


def _fill_nodes(store: dict[str, Any], batch: SampledBatch, index: int) -> None:
    nodes = batch.subgraph.nodes[index]
    store["node"] = store["n_id"] = nodes
    store["num_nodes"] = nodes.numel()
    store["num_sampled_nodes"] = list(batch.subgraph.num_sampled_nodes[index])
    if (trees := batch.subgraph.trees[index]) is not None:
        store["batch"] = trees
    if (features := batch.node_features[index]) is not None:
        store["x"] = features
    if (labels := batch.node_labels[index]) is not None:
        store["y"] = labels


def _fill_edges(store: dict[str, Any], batch: SampledBatch, schema: GraphSchema, index: int) -> None:
    subgraph = batch.subgraph
    if subgraph.adjacency:
        _, neighbor_type = schema.edge_specs[index]
        weights = batch.columns.get(column_store(EDGE_COLUMN, index, _WEIGHT))
        if weights is not None and weights.dim() == 1 and weights.is_floating_point():
            del store[_WEIGHT]
        else:
            weights = None
        edges = subgraph.adjacency[index]
        num_cols = subgraph.nodes[neighbor_type].numel()
        store["adj_t"] = CompressedEdges(edges.offsets, edges.rows, weights, num_cols)
    else:
        store["edge_index"] = subgraph.edge_index[index]
    if batch.mapping is None:
        store["num_sampled_edges"] = list(subgraph.num_sampled_edges[index])
    # Where features of edges were looked up, their ids are there.
    if (edge_ids := subgraph.edge_ids[index]) is not None:
        store["edge"] = store["e_id"] = edge_ids
    if (features := batch.edge_features[index]) is not None:
        store["edge_attr"] = features


def allow_matrices() -> None:
    """Has torch say nothing, later and in another thread, about the first sparse matrix of a process."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.sparse_csr_tensor(
            torch.zeros(1, dtype=torch.int64), torch.empty(0, dtype=torch.int64), torch.empty(0), (0, 0)
        )


def _fill_attributes(stores: Stores, batch: SampledBatch, schema: GraphSchema, constants: Constants) -> None:
    """What the data set has beside features and labels; the batch's own names are filled in later, and stand."""
    for column in columns_among(frozenset(batch.columns)):
        key: Any
        if column.kind == NODE_COLUMN:
            key = schema.node_types[column.type_index] or _ONLY_NODE
        else:
            key = _message_type(schema, schema.edge_types[column.type_index])
        rows = batch.columns[column.store]
        stores[key][column.name] = rows.movedim(0, -1) if last_dimension_counts(column.name) else rows
    for key, named in constants.items():
        if key is None:
            stores[_ONLY_NODE if schema.is_homogeneous else None].update(named)
        else:
            stores[key if isinstance(key, str) else _message_type(schema, key)].update(named)


def _fill_links(stores: Stores, edge_type: EdgeType, batch: SampledBatch, links: LinkLabels) -> None:
    store = stores[edge_type]
    store["batch_size"], store["input_id"] = batch.input_positions.numel(), batch.input_positions
    if links.src_index is None:
        store |= link_attributes(links)
        if batch.seed_times is not None:
            store["edge_label_time"] = batch.seed_times
        return
    source, target = stores[edge_type[0]], stores[edge_type[2]]
    source["src_index"], target["dst_pos_index"] = links.src_index, links.dst_pos_index
    target["dst_neg_index"] = links.dst_neg_index
    if batch.seed_times is not None:
        source["seed_time"] = target["seed_time"] = batch.seed_times


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
