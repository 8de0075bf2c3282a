"""Graphs as people have them: PyG objects and ``.npz`` files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ..errors import InvalidArgumentError, StorageError
from .dataset import Dataset
from .schema import EdgeDirection

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
        edge_weights: ``[E]`` (by edge type), or None.
        edge_times: int ``[E]`` (by edge type), or None.
        node_times: int ``[num_nodes]`` (by node type), or None.

    What is in them is checked where they are used, by ``Dataset`` or a partitioner.
    """

    num_nodes: Any
    edge_index: Any
    node_features: Any = None
    node_labels: Any = None
    edge_features: Any = None
    node_split: tuple[Any, Any, Any] | None = None
    edge_weights: Any = None
    edge_times: Any = None
    node_times: Any = None

    @classmethod
    def from_pyg(
        cls, data: Data | HeteroData, *, weight_attr: str | None = None, time_attr: str | None = None
    ) -> GraphSource:
        """From ``Data`` or ``HeteroData``: ``edge_index``, ``x``, ``y``, ``edge_attr``, ``{train,val,test}_mask``.

        Args:
            data: the graph.
            weight_attr: as of PyG's loaders, the attribute that holds edge weights, such as ``"edge_weight"``; of a
                typed graph, some edge types may lack it.
            time_attr: likewise the attribute that holds times, of nodes (``"time"``) or of edges (``"edge_time"``), but
                not of both.

        Raises:
            InvalidArgumentError: there are no edges, or no such attribute.
        """
        if hasattr(data, "node_types"):
            return cls._from_hetero(data, weight_attr, time_attr)
        edge_index = data.edge_index
        if edge_index is None:
            raise InvalidArgumentError("data: expected PyG data with an edge_index, got none")
        for argument, name in (("weight_attr", weight_attr), ("time_attr", time_attr)):
            if name is not None and name not in data:
                raise _no_attribute(argument, name, data)
        times = None if time_attr is None else data[time_attr]
        of_nodes = time_attr is not None and data.is_node_attr(time_attr)
        if time_attr is not None and not of_nodes and not data.is_edge_attr(time_attr):
            raise InvalidArgumentError(
                f"time_attr: expected one time for each node or for each edge, got {time_attr!r} for neither"
            )
        split = tuple(_mask_ids(data.get(f"{name}_mask")) for name in _SPLITS)
        return cls(
            int(data.num_nodes),
            edge_index,
            data.get("x"),
            data.get("y"),
            data.get("edge_attr"),
            (split[0], split[1], split[2]) if any(part is not None for part in split) else None,
            None if weight_attr is None else data[weight_attr],
            None if of_nodes else times,
            times if of_nodes else None,
        )

    @classmethod
    def _from_hetero(cls, data: Any, weight_attr: str | None, time_attr: str | None) -> GraphSource:
        def by_node(name: str | None) -> dict[Any, Any]:
            return {t: data[t][name] for t in data.node_types if name in data[t]}

        def by_edge(name: str | None) -> dict[Any, Any]:
            return {t: data[t][name] for t in data.edge_types if name in data[t]}

        weights, edge_times, node_times = by_edge(weight_attr), by_edge(time_attr), by_node(time_attr)
        if weight_attr is not None and not weights:
            raise _no_attribute("weight_attr", weight_attr, data)
        if time_attr is not None and not edge_times and not node_times:
            raise _no_attribute("time_attr", time_attr, data)
        if edge_times and node_times:
            raise InvalidArgumentError(
                f"time_attr: expected times of nodes or of edges, got {time_attr!r} for {[*node_times, *edge_times]}"
            )
        splits = [{t: _mask_ids(mask) for t, mask in by_node(f"{name}_mask").items()} for name in _SPLITS]
        return cls(
            {t: int(data[t].num_nodes) for t in data.node_types},
            {t: data[t].edge_index for t in data.edge_types},
            by_node("x") or None,
            by_node("y") or None,
            by_edge("edge_attr") or None,
            (splits[0], splits[1], splits[2]) if any(splits) else None,
            weights or None,
            edge_times or None,
            node_times or None,
        )

    @classmethod
    def from_npz(cls, path: str | Path) -> GraphSource:
        """From an ``.npz`` file (read without pickle) of a homogeneous graph.

        Arrays: ``edge_index`` int ``[2, E]``; optional ``num_nodes``, ``x`` ``[N, dim]``, ``y`` ``[N, ...]``,
        ``edge_attr`` ``[E, dim]``, ``edge_weight`` ``[E]``, ``edge_time`` int ``[E]`` or ``node_time`` int ``[N]``, and
        either ``split`` ``[N]`` (0 train, 1 validation, 2 test) or ``train_idx``, ``val_idx``, ``test_idx``.

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
        counts += [len(arrays[name]) for name in ("x", "y", "node_time") if name in arrays and arrays[name].dim()]
        num_nodes = int(arrays["num_nodes"].reshape(-1)[0]) if "num_nodes" in arrays else max(counts)
        features, labels, attributes = (arrays.get(name) for name in ("x", "y", "edge_attr"))
        weights_and_times = (arrays.get(name) for name in ("edge_weight", "edge_time", "node_time"))
        edges = edges.to(torch.int64)
        return cls(num_nodes, edges, features, labels, attributes, _npz_split(arrays), *weights_and_times)

    def to_dataset(self, edge_dir: EdgeDirection = "in") -> Dataset:
        """A ``Dataset`` held in this process; ``edge_dir="in"`` samples in-neighbors, as PyG's loaders do."""
        dataset = Dataset(edge_dir=edge_dir, node_split=self.node_split)
        dataset.init_node_features(self.node_features)
        dataset.init_edge_features(self.edge_features)
        dataset.init_node_labels(self.node_labels)
        dataset.init_graph(
            self.edge_index,
            edge_weights=self.edge_weights,
            num_nodes=self.num_nodes,
            edge_times=self.edge_times,
            node_times=self.node_times,
        )
        return dataset


def _no_attribute(argument: str, name: str, data: Any) -> InvalidArgumentError:
    return InvalidArgumentError(f"{argument}: no attribute {name!r}; the data has {sorted(data.keys())}")


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
