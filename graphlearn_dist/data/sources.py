"""Graphs as people have them: PyG objects and ``.npz`` files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ..errors import InvalidArgumentError, StorageError
from .dataset import Dataset, EdgeDirection

if TYPE_CHECKING:
    from torch_geometric.data import Data, HeteroData

_SPLITS = ("train", "val", "test")


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
    """

    num_nodes: Any
    edge_index: Any
    node_features: Any = None
    node_labels: Any = None
    edge_features: Any = None
    node_split: tuple[Any, Any, Any] | None = None

    @classmethod
    def from_pyg(cls, data: Data | HeteroData) -> GraphSource:
        """From ``Data`` or ``HeteroData``: ``edge_index``, ``x``, ``y``, ``edge_attr``, ``{train,val,test}_mask``."""
        if hasattr(data, "node_types"):
            return cls._from_hetero(data)
        edge_index = data.edge_index
        if edge_index is None:
            raise InvalidArgumentError("data: expected PyG data with an edge_index, got none")
        split = tuple(_mask_ids(data.get(f"{name}_mask")) for name in _SPLITS)
        return cls(
            int(data.num_nodes),
            edge_index,
            data.get("x"),
            data.get("y"),
            data.get("edge_attr"),
            (split[0], split[1], split[2]) if any(part is not None for part in split) else None,
        )

    @classmethod
    def _from_hetero(cls, data: Any) -> GraphSource:
        def by_node(name: str) -> dict[Any, Any]:
            return {t: data[t][name] for t in data.node_types if name in data[t]}

        splits = [{t: _mask_ids(mask) for t, mask in by_node(f"{name}_mask").items()} for name in _SPLITS]
        return cls(
            {t: int(data[t].num_nodes) for t in data.node_types},
            {t: data[t].edge_index for t in data.edge_types},
            by_node("x") or None,
            by_node("y") or None,
            {t: data[t].edge_attr for t in data.edge_types if "edge_attr" in data[t]} or None,
            (splits[0], splits[1], splits[2]) if any(splits) else None,
        )

    @classmethod
    def from_npz(cls, path: str | Path) -> GraphSource:
        """From an ``.npz`` file (read without pickle) of a homogeneous graph.

        Arrays: ``edge_index`` int ``[2, E]``; optional ``num_nodes``, ``x`` ``[N, dim]``, ``y`` ``[N, ...]``,
        ``edge_attr`` ``[E, dim]``, and either ``split`` ``[N]`` (0 train, 1 validation, 2 test) or ``train_idx``,
        ``val_idx``, ``test_idx``.

        Raises:
            StorageError: the file cannot be read, or lacks ``edge_index``.
        """
        try:
            with np.load(path, allow_pickle=False) as archive:
                arrays = {name: torch.from_numpy(archive[name]) for name in archive.files if _is_numeric(archive[name])}
        except (OSError, ValueError) as error:
            raise StorageError(f"{path}: cannot be read as .npz: {error}") from error
        edges = arrays.get("edge_index")
        if edges is None:
            raise StorageError(f"{path}: expected an array edge_index, found {sorted(arrays)}")
        if edges.dim() != 2 or edges.size(0) != 2:
            raise StorageError(f"{path}: edge_index: expected shape [2, E], found {tuple(edges.shape)}")
        counts = [int(edges.max()) + 1 if edges.numel() else 0]
        counts += [arrays[name].size(0) for name in ("x", "y") if name in arrays]
        num_nodes = int(arrays["num_nodes"].reshape(-1)[0]) if "num_nodes" in arrays else max(counts)
        features, labels, attributes = (arrays.get(name) for name in ("x", "y", "edge_attr"))
        return cls(num_nodes, edges.to(torch.int64), features, labels, attributes, _npz_split(arrays))

    def to_dataset(self, edge_dir: EdgeDirection = "in") -> Dataset:
        """A ``Dataset`` held in this process; ``edge_dir="in"`` samples in-neighbors, as PyG's loaders do."""
        dataset = Dataset(edge_dir=edge_dir, node_split=self.node_split)
        dataset.init_node_features(self.node_features)
        dataset.init_edge_features(self.edge_features)
        dataset.init_node_labels(self.node_labels)
        dataset.init_graph(self.edge_index, num_nodes=self.num_nodes)
        return dataset


def _is_numeric(array: np.ndarray[Any, Any]) -> bool:
    return array.dtype.kind in "biuf"


def _mask_ids(mask: torch.Tensor | None) -> torch.Tensor | None:
    return None if mask is None else mask.nonzero().view(-1)


def _npz_split(arrays: dict[str, torch.Tensor]) -> tuple[Any, Any, Any] | None:
    if "split" in arrays and arrays["split"].dim() == 1:
        parts = [(arrays["split"] == number).nonzero().view(-1) for number in range(len(_SPLITS))]
        return parts[0], parts[1], parts[2]
    ids = [arrays[f"{name}_idx"].to(torch.int64) if f"{name}_idx" in arrays else None for name in _SPLITS]
    return (ids[0], ids[1], ids[2]) if any(part is not None for part in ids) else None
