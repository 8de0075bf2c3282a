"""Batches in the form that GraphLearn-for-PyTorch gives them; nodes, edges and draws are this package's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal

import torch

from ...sampler.convert import message_type
from ...typing import EdgeType

if TYPE_CHECKING:
    from torch_geometric.data import Data, HeteroData

_OF_NODES = ("node", "n_id", "x", "y")
_OF_EDGES = ("e_id", "edge", "edge_attr")
_OF_BATCH = ("mapping", "input_id", "edge_index", "num_sampled_nodes", "num_sampled_edges", "batch_size", "num_nodes")
_OF_LINKS = ("edge_label_index", "edge_label", "edge_label_time", "input_id", "batch_size")
# What that library has under other names, or not at all; its programs count the attributes of a store.
_OF_ITS_OWN_NAME = ("n_id", "e_id", "input_id")
_COUNTS = ("num_sampled_nodes", "num_sampled_edges")  # of node stores, of edge stores

Transform = Callable[[Any], Any]


def in_glt_form(
    batch: Any,
    edge_dir: Literal["in", "out"],
    *,
    is_local: bool,
    with_edge: bool = True,
    edge_types: Sequence[EdgeType] | None = None,
) -> Any:
    """A batch of this package's loaders as GraphLearn-for-PyTorch's loaders give it. It is changed in place.

    - ``batch`` are the seeds' ids. Of links, in local loaders alone, they are the distinct ends: in a typed batch those
      of the target's type, in the store of that type. ``batch_size`` is their number, which stands in every homogeneous
      batch. Induced subgraphs have ``batch`` in distributed loaders, and ``metadata`` in local ones.
    - ``y`` stands with the seeds: of a typed batch in the store of their type, of links nowhere.
    - ``edge_label_index`` runs from target to source, as messages do along out-neighbors: in homogeneous batches, and
      in typed ones of out-neighbors, where links stand under the reversed edge type.
    - ``num_sampled_nodes`` and ``num_sampled_edges`` of a typed batch are dicts by type, of tensors; those of a
      homogeneous one are tensors in distributed loaders, lists in others. Homogeneous induced subgraphs have none.
    - Nodes of an induced subgraph are in the order of their ids, its edges in that of their targets.
    - Ids are ``node`` and ``edge`` alone; ``edge`` and ``edge_attr`` stand where edges were asked for. ``num_nodes``
      stands only where PyG would count the seeds.

    Disjoint batches, which that library does not have, keep the ``batch`` of PyG.

    Args:
        batch: ``Data`` or ``HeteroData``; anything else is left as it is (layers of ``as_pyg_v1``).
        edge_dir: the direction of sampling.
        is_local: whether a loader of one process gives it; see above.
        with_edge: whether edges were asked for.
        edge_types: the graph's edge types, in whose order a typed batch has its stores; None leaves them.
    """
    from torch_geometric.data import Data, HeteroData

    if isinstance(batch, HeteroData):
        if edge_types is not None:
            _order_stores(batch, [message_type(edge_type, edge_dir) for edge_type in edge_types])
        return _typed(batch, edge_dir, is_local=is_local, with_edge=with_edge)
    return _homogeneous(batch, is_local=is_local, with_edge=with_edge) if isinstance(batch, Data) else batch


def _homogeneous(batch: Data, *, is_local: bool, with_edge: bool) -> Data:
    store: Any = batch
    is_induced, is_link = "mapping" in store, "edge_label_index" in store or "src_index" in store
    if is_induced:
        _order_by_id({None: store}, {(None, None, None): store})
        if is_local:
            store.metadata = store.mapping
        for name in _COUNTS:
            store._store.pop(name, None)
    if "edge_label_index" in store:
        store.edge_label_index = store.edge_label_index.flip(0)
    if "batch" not in store and "node_mask" not in store:
        seeds = _seeds(store, int(store.num_sampled_nodes[0]) if is_link else store.batch_size)
        store.batch_size = seeds.numel()
        if not (is_induced if is_local else is_link):
            store.batch = seeds
    for name in _COUNTS:
        if not is_local and name in store:
            store[name] = torch.as_tensor(store[name])
    if is_link:
        store._store.pop("y", None)
    drop_others(batch._store, with_edge=with_edge)
    return batch


def _typed(batch: HeteroData, edge_dir: Literal["in", "out"], *, is_local: bool, with_edge: bool) -> HeteroData:
    if any("mapping" in store for store in batch.node_stores):
        nodes = dict(batch.node_items())
        _order_by_id(nodes, {key: store for key, store in batch.edge_items() if "edge_index" in store})
    for store in batch.node_stores:
        if "input_id" in store and "batch" not in store and "node_mask" not in store:
            store.batch = _seeds(store, store.batch_size)
    for store in batch.node_stores:
        if "batch_size" not in store:
            store.pop("y", None)
    if is_local:
        _fill_targets(batch)
    for name, items in zip(_COUNTS, (batch.node_items(), batch.edge_items()), strict=True):
        batch[name] = {key: torch.as_tensor(store[name]) for key, store in items if name in store}
    for edge_type, links in batch.edge_items():
        if edge_dir == "out" and ("input_id" in links or "edge_label_index" in links):
            _turn_links(batch, edge_type, links)
            break
    for store in batch.edge_stores:
        store.pop("batch_size", None)
    for store in (*batch.node_stores, *batch.edge_stores):
        for name in _COUNTS:
            store.pop(name, None)
        drop_others(store, with_edge=with_edge)
    return batch


def drop_others(store: Any, *, with_edge: bool = True) -> None:
    """Removes what that library does not have from a store of nodes, of edges, or of both."""
    for name in _OF_ITS_OWN_NAME:
        store.pop(name, None)
    if "x" in store or "batch" not in store:  # else PyG takes the length of ``batch`` for the number of nodes
        store.pop("num_nodes", None)
    if not with_edge:
        for name in ("edge", "edge_attr"):
            store.pop(name, None)


def _order_stores(batch: HeteroData, first: list[EdgeType]) -> None:
    """Orders the stores of edges: those of ``first`` in its order, then the others as they were."""
    stores = batch._edge_store_dict
    if [key for key in stores if key in first] != first:
        ordered = {key: stores[key] for key in dict.fromkeys([*first, *stores]) if key in stores}
        stores.clear()  # PyG keeps this dict, whatever is assigned
        stores.update(ordered)


def _fill_targets(batch: HeteroData) -> None:
    """Gives the targets of links, each once, to the store of their type."""
    targets = [key for key, store in batch.node_items() if "dst_pos_index" in store]
    targets += [key[2] for key, links in batch.edge_items() if "edge_label_index" in links]
    for store in (batch[key] for key in targets):
        if "batch" not in store and "num_sampled_nodes" in store and "node_mask" not in store:
            store.batch = _seeds(store, int(store.num_sampled_nodes[0]))
            store.batch_size = store.batch.numel()


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
