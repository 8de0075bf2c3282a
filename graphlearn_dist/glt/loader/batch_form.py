"""Batches in the form that GraphLearn-for-PyTorch gives them; nodes, edges and draws are this package's."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

import torch

from ...sampler.convert import message_type

if TYPE_CHECKING:
    from torch_geometric.data import Data, HeteroData

_OF_NODES = ("node", "n_id", "x", "y")
_OF_EDGES = ("e_id", "edge", "edge_attr")
_OF_BATCH = ("mapping", "input_id", "edge_index", "num_sampled_nodes", "num_sampled_edges", "batch_size", "num_nodes")
_OF_LINKS = ("edge_label_index", "edge_label", "edge_label_time", "input_id", "batch_size")
# What that library has under other names, or not at all; its programs count the attributes of a store.
_OF_ITS_OWN_NAME = ("n_id", "e_id", "input_id")

Transform = Callable[[Any], Any]


def in_glt_form(batch: Any, edge_dir: Literal["in", "out"], *, counts_as_tensors: bool) -> Any:
    """A batch of this package's loaders as GraphLearn-for-PyTorch's loaders give it. It is changed in place.

    - ``batch`` are the seeds' ids; of links their distinct ends, in a homogeneous batch.
    - ``edge_label_index`` runs from target to source, as messages do along out-neighbors: in homogeneous batches, and
      in typed ones of out-neighbors, where links stand under the reversed edge type.
    - ``num_sampled_nodes`` and ``num_sampled_edges`` of a typed batch are dicts by type, of tensors; those of a
      homogeneous one are tensors in distributed loaders, lists in others.
    - Nodes of an induced subgraph are in the order of their ids, its edges in that of their targets.
    - Ids are ``node`` and ``edge`` alone, and ``num_nodes`` stands only where there are no features to count.

    Disjoint batches, which that library does not have, keep the ``batch`` of PyG.

    Args:
        batch: ``Data`` or ``HeteroData``; anything else is left as it is (layers of ``as_pyg_v1``).
        edge_dir: the direction of sampling.
        counts_as_tensors: see above.
    """
    from torch_geometric.data import Data, HeteroData

    if isinstance(batch, HeteroData):
        return _typed(batch, edge_dir)
    return _homogeneous(batch, as_tensors=counts_as_tensors) if isinstance(batch, Data) else batch


def _homogeneous(batch: Data, *, as_tensors: bool) -> Data:
    store: Any = batch
    if "mapping" in store:
        _order_by_id({None: store}, {(None, None, None): store})
        store.metadata = store.mapping
    is_link = "edge_label_index" in store or "src_index" in store
    if "edge_label_index" in store:
        store.edge_label_index = store.edge_label_index.flip(0)
    if "batch" not in store and "node_mask" not in store:
        store.batch = _seeds(store, int(store.num_sampled_nodes[0]) if is_link else store.batch_size)
        store.batch_size = store.batch.numel()
    for name in ("num_sampled_nodes", "num_sampled_edges"):
        if as_tensors and name in store:
            store[name] = torch.as_tensor(store[name])
    _drop_others(batch._store, of_nodes=True)
    return batch


def _typed(batch: HeteroData, edge_dir: Literal["in", "out"]) -> HeteroData:
    if any("mapping" in store for store in batch.node_stores):
        nodes = dict(batch.node_items())
        _order_by_id(nodes, {key: store for key, store in batch.edge_items() if "edge_index" in store})
    for name, items in (("num_sampled_nodes", batch.node_items()), ("num_sampled_edges", batch.edge_items())):
        batch[name] = {key: torch.as_tensor(store[name]) for key, store in items if name in store}
    for store in batch.node_stores:
        if "input_id" in store and "batch" not in store and "node_mask" not in store:
            store.batch = _seeds(store, store.batch_size)
    for edge_type, links in batch.edge_items():
        if edge_dir == "out" and ("input_id" in links or "edge_label_index" in links):
            _turn_links(batch, edge_type, links)
            break
    for of_nodes, stores in ((True, batch.node_stores), (False, batch.edge_stores)):
        for store in stores:
            for name in ("num_sampled_nodes", "num_sampled_edges"):
                store.pop(name, None)
            _drop_others(store, of_nodes=of_nodes)
    return batch


def _drop_others(store: Any, *, of_nodes: bool) -> None:
    for name in _OF_ITS_OWN_NAME:
        store.pop(name, None)
    if of_nodes and "x" in store:
        store.pop("num_nodes", None)
    if not of_nodes and "edge_label_index" in store:
        store.pop("batch_size", None)


def _turn_links(batch: HeteroData, edge_type: Any, links: Any) -> None:
    """Puts links under the edge type along which messages run where out-neighbors are sampled."""
    if "edge_label_index" in links:
        links.edge_label_index = links.edge_label_index.flip(0)
    turned = message_type(edge_type, "out")
    if turned != edge_type:
        for name in _OF_LINKS:
            if name in links:
                batch[turned][name] = links[name]
                del links[name]
        if len(links) == 0:
            del batch[edge_type]


def _seeds(store: Any, count: int) -> torch.Tensor:
    seeds: torch.Tensor = store.node[store.mapping] if "mapping" in store else store.node[:count]
    return seeds


def _order_by_id(nodes: dict[Any, Any], edges: dict[Any, Any]) -> None:
    """Orders the nodes of an induced subgraph by their ids, and its edges by the places of their targets."""
    places = {}
    edge_names = {id(store): _names(store, _OF_EDGES, store.is_edge_attr) for store in edges.values()}
    for node_type, store in nodes.items():
        order = torch.argsort(store.node, stable=True)
        places[node_type] = torch.empty_like(order)
        places[node_type][order] = torch.arange(order.numel(), device=order.device)
        of_edges = edge_names.get(id(store), ())
        for name in _names(store, _OF_NODES, store.is_node_attr):
            if name not in of_edges:
                store[name] = store[name][order]
        if "mapping" in store:
            store.mapping = places[node_type][store.mapping]
    for (source, _, target), store in edges.items():
        rows, cols = places[source][store.edge_index[0]], places[target][store.edge_index[1]]
        order = torch.argsort(cols, stable=True)
        store.edge_index = torch.stack([rows[order], cols[order]])
        for name in edge_names[id(store)]:
            store[name] = store[name][order]


def _names(store: Any, known: tuple[str, ...], belongs: Callable[[str], bool]) -> list[str]:
    """What a store has for each node, or each edge: under known names, and what else PyG takes for such."""
    others = {*_OF_NODES, *_OF_EDGES, *_OF_BATCH}
    return [name for name in store.keys() if name in known or (name not in others and belongs(name))]  # noqa: SIM118
