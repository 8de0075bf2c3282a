"""Graphs as people have them: PyG objects and ``.npz`` files."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ..errors import InvalidArgumentError, StorageError
from ..utils.paths import to_path
from ..utils.shown import shown
from .dataset import Dataset
from .pyg.pyg_levels import Levels, read_levels
from .pyg.store_pairs import data_of_stores, is_pyg_data, is_pyg_stores
from .schema import EdgeDirection, bare

if TYPE_CHECKING:
    from torch_geometric.data import Data, FeatureStore, GraphStore, HeteroData

_SPLITS = ("train", "val", "test")
# The arrays of an .npz file, and the kinds of numpy's dtypes that they may have.
_KIND_NAMES = {"b": "booleans", "i": "integers", "u": "integers", "f": "floating-point numbers"}
_NPZ_KINDS = {
    **dict.fromkeys(("edge_index", "num_nodes", "edge_time", "node_time", "split"), "iu"),
    **dict.fromkeys((f"{name}_idx" for name in _SPLITS), "iub"),
    **dict.fromkeys((f"{name}_mask" for name in _SPLITS), "b"),
    **dict.fromkeys(("x", "y", "edge_attr"), "biuf"),
    "edge_weight": "iuf",
}


@dataclass(frozen=True)
class GraphSource:
    """A whole graph in memory. Bare values for a homogeneous graph, dicts by type for a typed one.

    Attributes:
        num_nodes: nodes (by node type).
        edge_index: int ``[2, E]``, sources and targets (by edge type).
        node_features: ``[num_nodes, dim]`` (by node type), or None.
        node_labels: ``[num_nodes, ...]`` (by node type), or None.
        edge_features: ``[E, dim]`` (by edge type), or None.
        node_split: (train, val, test) ids, each int64 ``[n]`` or None (by node type); or None.
        edge_weights: ``[E]`` (by edge type), or None.
        edge_times: int ``[E]`` (by edge type), or None.
        node_times: int ``[num_nodes]`` (by node type), or None.
        node_attrs, edge_attrs, constants: other attributes, see ``Dataset.init_attrs``.

    What is in them is checked where they are used, by ``Dataset`` or a partitioner.
    """

    num_nodes: Any
    edge_index: Any
    node_features: Any = None
    node_labels: Any = None
    edge_features: Any = None
    node_split: tuple[Any, ...] | None = None
    edge_weights: Any = None
    edge_times: Any = None
    node_times: Any = None
    node_attrs: Any = None
    edge_attrs: Any = None
    constants: Any = None

    @classmethod
    def from_pyg(
        cls,
        data: Data | HeteroData | tuple[FeatureStore, GraphStore],
        *,
        weight_attr: str | None = None,
        time_attr: str | None = None,
        split_index: int | None = None,
        attrs: Collection[str] | None = None,
    ) -> GraphSource:
        """From ``Data``, ``HeteroData`` or ``(FeatureStore, GraphStore)``: ``edge_index``, ``x``, ``y``, ``edge_attr``,
        ``{train,val,test}_mask``, and all other attributes, which batches carry as they do from PyG's loaders.

        Args:
            data: the graph. Of a pair of stores, everything that they list is read, once and now.
            attrs: which attributes come along into batches; all of them unless given.
            weight_attr: as of PyG's loaders, the attribute that holds edge weights, such as ``"edge_weight"``; of a
                typed graph, some edge types may lack it.
            time_attr: likewise the attribute that holds times, of nodes (``"time"``) or of edges (``"edge_time"``), but
                not of both.
            split_index: which column of masks ``[num_nodes, num_splits]`` (WebKB's) is the split; without it such masks
                are none.

        Raises:
            InvalidArgumentError: the data are none of these, or the edges of a kind that is not read, or there is no
                such attribute, or it is none of numbers.
        """
        data = _single_object(data)
        named = [f"{name}_mask" for name in _SPLITS] + [name for name in (weight_attr, time_attr) if name is not None]
        levels = read_levels(data, None if attrs is None else {*attrs, *named})
        if attrs is not None and (unknown := set(attrs) - set(data.keys())):
            raise _no_rows("attrs", "attribute of the data", sorted(unknown)[0], levels, data)
        edge_index = edges_by_type(data, levels)
        for edges in levels.edges.values():
            edges.pop("edge_index", None)
        weights, edge_times, node_times = weights_and_times(data, levels, weight_attr, time_attr)
        splits = [_mask_ids(levels.of_nodes(f"{name}_mask"), split_index) for name in _SPLITS]
        return cls(
            bare(levels.num_nodes),
            bare(edge_index),
            bare(levels.of_nodes("x")),
            bare(levels.of_nodes("y")),
            bare(levels.of_edges("edge_attr")),
            (bare(splits[0]), bare(splits[1]), bare(splits[2])) if any(splits) else None,
            bare(weights),
            bare(edge_times),
            bare(node_times),
            _others(levels.nodes, {"x", "y"}, attrs),
            _others(levels.edges, {"edge_attr"}, attrs),
            _others(levels.constants, set(), attrs),
        )

    @classmethod
    def from_npz(cls, path: str | Path) -> GraphSource:
        """From an ``.npz`` file (read without pickle) of a homogeneous graph.

        Arrays: ``edge_index`` int ``[2, E]``; optional ``num_nodes``, ``x`` ``[N, dim]``, ``y`` ``[N, ...]``,
        ``edge_attr`` ``[E, dim]``, ``edge_weight`` ``[E]``, ``edge_time`` int ``[E]`` or ``node_time`` int ``[N]``, and
        either ``split`` int ``[N]`` (0 train, 1 validation, 2 test) or ``train_idx``, ``val_idx``, ``test_idx``: ids
        int ``[n]``, or masks bool ``[N]``, which may be called ``train_mask`` and so on, too. Others are left alone.

        Raises:
            StorageError: the file cannot be read, lacks ``edge_index``, or holds one of these in another form.
        """
        to_path("path", path)
        try:
            with np.load(path, allow_pickle=False) as archive:
                arrays = {name: archive[name] for name in archive.files if name in _NPZ_KINDS}
        except Exception as error:  # damaged or foreign: readers of archives have errors of many kinds for that
            raise StorageError(f"{path}: cannot be read as .npz: {error!r:.300}") from error
        return cls._from_arrays(path, {name: _npz_array(path, name, array) for name, array in arrays.items()})

    @classmethod
    def _from_arrays(cls, path: str | Path, arrays: dict[str, torch.Tensor]) -> GraphSource:
        edges = arrays.get("edge_index")
        if edges is None:
            raise StorageError(f"{path}: expected an array edge_index, found {sorted(arrays)}")
        if edges.dim() != 2 or edges.size(0) != 2:
            raise StorageError(f"{path}: edge_index: expected shape [2, E], found {tuple(edges.shape)}")
        counts = [int(edges.max()) + 1 if edges.numel() else 0]
        counts += [
            len(arrays[name]) for name in ("x", "y", "node_time", "split") if name in arrays and arrays[name].dim()
        ]
        counts += [mask.numel() for mask in arrays.values() if mask.dtype == torch.bool and mask.dim() == 1]
        if "num_nodes" in arrays and arrays["num_nodes"].numel() != 1:
            raise StorageError(f"{path}: num_nodes: expected one number, found {tuple(arrays['num_nodes'].shape)}")
        num_nodes = int(arrays["num_nodes"]) if "num_nodes" in arrays else max(counts)
        features, labels, attributes = (arrays.get(name) for name in ("x", "y", "edge_attr"))
        weights_and_times = (arrays.get(name) for name in ("edge_weight", "edge_time", "node_time"))
        split = _npz_split(path, arrays, num_nodes)
        return cls(num_nodes, edges, features, labels, attributes, split, *weights_and_times)

    def to_dataset(self, edge_dir: EdgeDirection = "in", *, allow_nonfinite: bool = False) -> Dataset:
        """A ``Dataset`` held in this process; ``edge_dir="in"`` samples in-neighbors, as PyG's loaders do.

        Raises:
            InvalidArgumentError: something does not fit, or features are not finite without ``allow_nonfinite``.
        """
        dataset = Dataset(edge_dir=edge_dir, node_split=self.node_split)
        dataset.init_node_features(self.node_features, allow_nonfinite=allow_nonfinite)
        dataset.init_edge_features(self.edge_features, allow_nonfinite=allow_nonfinite)
        dataset.init_node_labels(self.node_labels)
        dataset.init_graph(
            self.edge_index,
            edge_weights=self.edge_weights,
            num_nodes=self.num_nodes,
            edge_times=self.edge_times,
            node_times=self.node_times,
        )
        dataset.init_attrs(self.node_attrs, self.edge_attrs, self.constants)
        return dataset


def _single_object(data: Any) -> Any:
    """PyG's data as ``Data`` or ``HeteroData``."""
    if not is_pyg_data(data):
        raise InvalidArgumentError(
            f"data: expected PyG's Data, HeteroData or (FeatureStore, GraphStore), got {shown(data)}"
        )
    return data_of_stores(*data) if is_pyg_stores(data) else data


def edges_by_type(data: Any, levels: Levels) -> dict[Any, torch.Tensor]:
    """By edge type, the edges ``[2, num_edges]`` of a PyG object; those of a type without any are none.

    Raises:
        InvalidArgumentError: there are edges of a kind that is not read.
    """
    edges = {}
    for key, named in levels.edges.items():
        store = data if key is None else data[key]
        if "edge_index" not in named and any(name in store for name in ("adj", "adj_t")):
            raise InvalidArgumentError(
                f"data: expected edges as edge_index, or as adj_t that is a sparse tensor of torch, got "
                f"another adj_t or adj{'' if key is None else f' of type {key}'}"
            )
        edges[key] = named.get("edge_index", torch.empty(2, 0, dtype=torch.int64))
    return edges


def weights_and_times(
    data: Any, levels: Levels, weight_attr: str | None, time_attr: str | None
) -> tuple[dict[Any, torch.Tensor], dict[Any, torch.Tensor], dict[Any, torch.Tensor]]:
    """By type, the weights of edges, the times of edges and the times of nodes of a PyG object (see ``from_pyg``)."""
    weights = levels.of_edges(weight_attr)
    if weight_attr is not None and not weights:
        raise _no_rows("weight_attr", "weight for each edge", weight_attr, levels, data)
    edge_times, node_times = levels.of_edges(time_attr), levels.of_nodes(time_attr)
    if time_attr is not None and not edge_times and not node_times:
        raise _no_rows("time_attr", "time for each node or for each edge", time_attr, levels, data)
    if edge_times and node_times:
        raise InvalidArgumentError(
            f"time_attr: expected times of nodes or of edges, got {shown(time_attr)} for {[*node_times, *edge_times]}"
        )
    return weights, edge_times, node_times


def _no_rows(argument: str, what: str, name: str, levels: Levels, data: Any) -> InvalidArgumentError:
    if any(name in constants for constants in levels.constants.values()):
        return InvalidArgumentError(f"{argument}: expected one {what}, got {shown(name)} for neither nodes nor edges")
    if any(name in named for named in levels.nodes.values()):  # times may be of either
        return InvalidArgumentError(f"{argument}: expected one {what}, got {name!r}, which nodes have")
    return InvalidArgumentError(f"{argument}: no attribute {name!r}; the data has {sorted(data.keys())}")


def _npz_array(path: str | Path, name: str, array: np.ndarray[Any, Any]) -> torch.Tensor:
    """An array of the kinds that its name may have; integers as int64, but those of features and labels."""
    kinds = _NPZ_KINDS[name]
    if array.dtype.kind not in kinds:
        expected = " or ".join(dict.fromkeys(_KIND_NAMES[kind] for kind in kinds))
        raise StorageError(f"{path}: {name}: expected {expected}, found {array.dtype}")
    if "f" not in kinds and array.dtype.kind in "iu":
        if array.dtype == np.uint64 and array.size and array.max() > np.iinfo(np.int64).max:
            raise StorageError(f"{path}: {name}: expected integers below 2^63, found {array.max()}")
        array = array.astype(np.int64, copy=False)
    return torch.from_numpy(array)


def _others(
    by_type: Mapping[Any, Mapping[str, Any]], taken: set[str], attrs: Collection[str] | None
) -> dict[Any, dict[str, Any]]:
    """The attributes that have no place of their own, of the types that have any."""
    others = {
        key: {name: value for name, value in named.items() if name not in taken and (attrs is None or name in attrs)}
        for key, named in by_type.items()
    }
    return {key: named for key, named in others.items() if named}


def _mask_ids(masks: dict[Any, torch.Tensor], split_index: int | None) -> dict[Any, torch.Tensor]:
    """The ids that masks select, by type; nothing of masks that hold several splits where none of these is chosen."""
    ids = {}
    for key, mask in masks.items():
        if mask.dim() == 2 and mask.size(1) == 1:
            mask = mask[:, 0]
        elif mask.dim() == 2 and split_index is not None:
            if isinstance(split_index, bool) or not 0 <= split_index < mask.size(1):
                raise InvalidArgumentError(
                    f"split_index: expected 0 to {mask.size(1) - 1}, a column of the masks, got {split_index}"
                )
            mask = mask[:, split_index]
        if mask.dim() == 1:
            ids[key] = mask.nonzero().view(-1)
    return ids


def _npz_split(
    path: str | Path, arrays: dict[str, torch.Tensor], num_nodes: int
) -> tuple[torch.Tensor | None, ...] | None:
    if "split" in arrays:
        if arrays["split"].shape != (num_nodes,):
            raise StorageError(f"{path}: split: expected [{num_nodes}], found {list(arrays['split'].shape)}")
        return tuple((arrays["split"] == number).nonzero().view(-1) for number in range(len(_SPLITS)))
    ids: list[torch.Tensor | None] = []
    for split in _SPLITS:
        names = [name for name in (f"{split}_idx", f"{split}_mask") if name in arrays]
        if len(names) > 1:
            raise StorageError(f"{path}: expected one of {' and '.join(names)}, found both")
        name = names[0] if names else ""
        part = arrays.get(name)
        if part is not None and part.dtype == torch.bool:
            if part.shape != (num_nodes,):
                raise StorageError(f"{path}: {name}: expected a mask [{num_nodes}], found {list(part.shape)}")
            part = part.nonzero().view(-1)
        ids.append(part)
    return tuple(ids) if any(part is not None for part in ids) else None
