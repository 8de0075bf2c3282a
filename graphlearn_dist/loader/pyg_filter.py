"""From PyG's data and what a sampler gave of it to a batch, with all that PyG's loaders put there."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ..core import stack_pair
from ..data.columns import last_dimension_counts
from ..data.pyg.pyg_adjacency import adjacency_of, cut_adjacency, order_of_rows, values_of
from ..data.pyg.store_pairs import RowsById, edge_rows, is_of_edges, is_pyg_stores, takes_positions
from ..data.unified_tensor import UnifiedTensor, view_rows
from ..errors import InvalidArgumentError
from ..utils.shown import shown
from ..utils.tensor import from_array

if TYPE_CHECKING:
    from torch_geometric.data import Data, HeteroData

_OF_LINKS = ("edge_label", "edge_label_index", "edge_label_time")


class PygFilter:
    """Cuts a batch out of PyG's data: rows of nodes and edges are gathered, everything else comes as it is.

    The data are looked at for every batch, so that attributes may be set and deleted between batches, as PyG's programs
    do. Rows in host memory, of arrays and memory-mapped files too, are gathered by the core, into warm memory. A pair
    of stores is asked for the tensors that its feature store lists, in one ``multi_get_tensor``.

    Args:
        num_threads: threads of one lookup.
    """

    def __init__(self, num_threads: int = 1) -> None:
        self._num_threads = num_threads
        self._views: dict[tuple[Any, str], tuple[Any, UnifiedTensor | None]] = {}
        self._adjacencies: dict[Any, tuple[torch.Tensor, torch.Tensor]] = {}
        self._stored: dict[Any, tuple[torch.Tensor | None, int, torch.Tensor | None]] = {}
        self._by_id: dict[Any, RowsById] = {}  # by group of a feature store

    def batch(self, data: Any, out: Any, custom_cls: Any = None) -> Data | HeteroData:
        """The batch of a sampler's output (PyG's ``SamplerOutput`` or ``HeteroSamplerOutput``)."""
        is_typed = isinstance(out.node, dict)
        if is_pyg_stores(data):
            batch = self._of_stores(data, out, custom_cls, is_typed)
        else:
            batch = self._of_typed(data, out) if is_typed else self._of_single(data, out)
        if not is_typed:
            _set_ids(batch, out.node, out.edge)
            for name in ("batch", "num_sampled_nodes", "num_sampled_edges"):
                batch[name] = getattr(out, name)
            if out.orig_row is not None and out.orig_col is not None:
                batch._orig_edge_index = torch.stack([out.orig_row, out.orig_col])
            return batch
        for key, node in out.node.items():
            _set_ids(batch[key], node, None)
        for key, edge in (out.edge or {}).items():
            _set_ids(batch[key], None, edge)
        for name in ("batch", "num_sampled_nodes", "num_sampled_edges"):
            batch.set_value_dict(name, getattr(out, name))
        for key, row in (out.orig_row or {}).items():
            batch[key]._orig_edge_index = torch.stack([row, out.orig_col[key]])
        return batch

    def _of_stores(self, data: Any, out: Any, custom_cls: Any, is_typed: bool) -> Any:
        from torch_geometric.loader.utils import filter_custom_hetero_store, filter_custom_store

        cut = filter_custom_hetero_store if is_typed else filter_custom_store
        batch = cut(_OfNodes(data[0], self._by_id), data[1], out.node, out.row, out.col, out.edge, custom_cls)
        of_edges = getattr(data[0], "edge_tensor_attrs", None)  # which PyG's stores have no list of
        attrs = [] if out.edge is None else _edge_attrs(data[0], is_typed) if of_edges is None else of_edges()
        for attr in attrs:
            ids = out.edge.get(attr.group_name) if is_typed else out.edge
            attr.index = ids if of_edges is not None else self._stored_rows(data, attr.group_name, ids, is_typed)
        attrs = [attr for attr in attrs if attr.index is not None]
        for attr, rows in zip(attrs, data[0].multi_get_tensor(attrs) if attrs else (), strict=True):
            (batch[attr.group_name] if is_typed else batch)[attr.attr_name] = rows
        if of_edges is not None:  # these stores give rows of what PyG's data have columns of
            for attr in (*data[0].get_all_tensor_attrs(), *attrs):
                store = batch[attr.group_name] if is_typed else batch
                if last_dimension_counts(attr.attr_name) and attr.attr_name in store:
                    store[attr.attr_name] = store[attr.attr_name].movedim(0, -1)
        constants: Mapping[Any, Mapping[str, Any]] = getattr(
            data[0], "constant_attrs", dict
        )()  # which PyG's stores have not, either
        for key, named in constants.items():
            store = batch if key is None else batch[key]
            for name, value in named.items():
                store[name] = value
        return batch

    def _stored_rows(self, data: Any, group: Any, ids: torch.Tensor | None, is_typed: bool) -> torch.Tensor | None:
        """The rows of sampled edges in a program's own feature store."""
        features, graph = data
        # Which rows all edges have is kept while a store has the same ids of them.
        row_ids = features.get_global_id(group) if hasattr(features, "get_global_id") else None
        version = 0 if row_ids is None else row_ids._version
        known = self._stored.get(group)
        if known is None or known[0] is not row_ids or known[1] != version:
            known = row_ids, version, edge_rows(features, graph, group if is_typed else None, group)
            self._stored[group] = known
        rows = known[2]
        return ids if rows is None or ids is None else rows[ids]

    def _of_single(self, data: Any, out: Any) -> Any:
        batch = copy.copy(data)
        if (adj_t := adjacency_of(data._store)) is not None:
            out.row, out.col, out.edge = _by_row(out.row, out.col, out.edge)
            size = (out.node.numel(), out.node.numel())
            batch.adj_t = cut_adjacency(adj_t, self._values(None, adj_t), out.row, out.col, out.edge, size)
        self._fill_nodes(None, data._store, batch._store, out.node)
        self._fill_edges(None, data._store, batch._store, out.row, out.col, out.edge)
        return batch

    def _of_typed(self, data: Any, out: Any) -> Any:
        batch, nothing = copy.copy(data), torch.empty(0, dtype=torch.int64)
        for key in batch.node_types:
            self._fill_nodes(key, data[key], batch[key], out.node.setdefault(key, nothing))
        edges = out.edge if out.edge is not None else {}
        for key in batch.edge_types:
            row, col = out.row.setdefault(key, nothing), out.col.setdefault(key, nothing)
            ids = edges.setdefault(key, nothing)
            if (adj_t := adjacency_of(data[key])) is not None:
                row, col, ids = out.row[key], out.col[key], edges[key] = _by_row(row, col, ids)
                size = (len(out.node[key[2]]), len(out.node[key[0]]))
                batch[key].adj_t = cut_adjacency(adj_t, self._values(key, adj_t), row, col, ids, size)
            self._fill_edges(key, data[key], batch[key], row, col, ids)
        return batch

    def _fill_nodes(self, key: Any, store: Any, cut: Any, ids: torch.Tensor) -> None:
        for name, value in store.items():
            if name == "num_nodes":
                cut.num_nodes = ids.numel()
            elif name == "adj_t":
                continue  # which PyG cannot tell from rows
            elif store.is_node_attr(name):
                cut[name] = self._rows(key, store, name, value, ids)

    def _fill_edges(
        self, key: Any, store: Any, cut: Any, row: torch.Tensor, col: torch.Tensor, ids: torch.Tensor | None
    ) -> None:
        for name, value in store.items():
            if name == "adj_t":
                continue
            if name == "edge_index":
                cut.edge_index = stack_pair(row, col).to(value.device)
            # PyG counts edges by a split's labels where there are only these beside ``adj_t``.
            elif store.is_edge_attr(name) and not ("adj_t" in store and name in _OF_LINKS):
                cut[name] = None if ids is None else self._rows(key, store, name, value, ids)

    def _values(self, key: Any, adj_t: torch.Tensor) -> torch.Tensor:
        """Those of an ``adj_t`` by edge, kept while the data have the same one: all edges are looked at for them."""
        known = self._adjacencies.get(key)
        if known is None or known[0] is not adj_t:
            known = adj_t, values_of(adj_t)
            self._adjacencies[key] = known
        return known[1]

    def _rows(self, key: Any, store: Any, name: str, value: Any, ids: torch.Tensor) -> Any:
        dim = store._parent().__cat_dim__(name, value, store)
        view = self._view(key, name, value) if dim == 0 else None
        if view is not None:
            return view.gather(ids, num_threads=self._num_threads)
        from torch_geometric.loader.utils import index_select

        try:
            return index_select(value, ids.to(value.device) if isinstance(value, torch.Tensor) else ids, dim=dim)
        except (TypeError, ValueError, NotImplementedError) as error:  # which do not say what they are about
            of_type = "" if key is None else f" of {key}"
            raise InvalidArgumentError(
                f"data: {name!r}{of_type}: expected a dense tensor or an array of numbers, as a batch has the rows of "
                f"its own nodes or edges, got {shown(value)}: {error}"
            ) from error

    def _view(self, key: Any, name: str, value: Any) -> UnifiedTensor | None:
        """The core's view of rows, kept while the data have the same; None where the core does not gather them."""
        known = self._views.get((key, name))
        if known is None or known[0] is not value:
            known = value, _view_of(value)
            self._views[key, name] = known
        return known[1]


class _OfNodes:
    """What a feature store has of nodes: PyG asks for whatever it lists by ids of nodes.

    Args:
        features: the store.
        by_id: by group, where the store has the rows of which node; kept from one to the next.
    """

    def __init__(self, features: Any, by_id: dict[Any, RowsById]) -> None:
        self._features, self._by_id = features, by_id

    def get_all_tensor_attrs(self) -> list[Any]:
        return [attr for attr in self._features.get_all_tensor_attrs() if not is_of_edges(attr)]

    def multi_get_tensor(self, attrs: list[Any]) -> Any:
        for attr in attrs if takes_positions(self._features) else ():
            known = RowsById.of_nodes(self._features, attr.group_name, self._by_id.get(attr.group_name))
            if known is not None and isinstance(attr.index, torch.Tensor):
                self._by_id[attr.group_name] = known
                attr.index = known.find(attr.index)
        return self._features.multi_get_tensor(attrs)


def _edge_attrs(features: Any, is_typed: bool) -> list[Any]:
    """What a program's own store has of edges. PyG's batches of typed graphs have it from no store but those that know
    edges by ids."""
    if is_typed and not hasattr(features, "get_global_id"):
        return []
    return [attr for attr in features.get_all_tensor_attrs() if is_of_edges(attr)]


def _by_row(row: torch.Tensor, col: torch.Tensor, ids: torch.Tensor | None) -> tuple[Any, Any, Any]:
    """The edges in the order of an ``adj_t``, which is theirs up to that of the neighbors of a node."""
    order = order_of_rows(row, col)
    return row[order], col[order], None if ids is None else ids[order]


def _view_of(value: Any) -> UnifiedTensor | None:
    if isinstance(value, np.ndarray):
        if not value.flags.c_contiguous or value.dtype.kind not in "biufc" or not value.dtype.isnative:
            return None
        value = from_array(value, "data")
    # Rows that gradients flow back to, and those of tensors that wrap others, are torch's own business.
    if type(value) is not torch.Tensor or value.requires_grad or value.device.type != "cpu":
        return None
    if value.layout is not torch.strided or not value.is_contiguous() or value.is_conj() or value.is_neg():
        return None
    return None if value.is_quantized or value.numel() == 0 else view_rows(value)


def _set_ids(store: Any, nodes: torch.Tensor | None, edges: torch.Tensor | None) -> None:
    """Ids of the sampled nodes and edges, unless the data have an attribute of that name, whose rows then stand."""
    if nodes is not None and "n_id" not in store:
        store.n_id = nodes
    if edges is not None and "e_id" not in store:
        store.e_id = edges.to(torch.int64)


def set_seeds(batch: Any, input_type: Any, metadata: tuple[Any, ...]) -> None:
    """What a batch of nodes has besides: positions and times of the seeds, and how many they are."""
    store = batch if input_type is None else batch[input_type]
    store.input_id, store.seed_time = metadata
    store.batch_size = metadata[0].numel()


def set_links(batch: Any, input_type: Any, metadata: tuple[Any, ...], *, triplets: bool) -> None:
    """What a batch of links has besides: their positions, their ends in local ids, labels and times."""
    store = batch if input_type is None else batch[input_type]
    store.input_id = metadata[0]
    if not triplets:
        store.edge_label_index, store.edge_label, store.edge_label_time = metadata[1:]
        return
    source, target = (batch, batch) if input_type is None else (batch[input_type[0]], batch[input_type[-1]])
    source.src_index, target.dst_pos_index, target.dst_neg_index = metadata[1:4]
    source.seed_time = target.seed_time = metadata[4]
    # The data's own, such as ``RandomLinkSplit`` puts there, are not of this batch.
    if input_type is None or input_type in batch.edge_types:
        for name in ("edge_label_index", "edge_label_time"):
            store[name] = None
