"""What data sets of GraphLearn-for-PyTorch do with what they are given, for both of them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from ...data.dataset import Dataset
from ...data.schema import by_type
from ...errors import InvalidArgumentError
from ...utils.tensor import apply_to_all_tensor, convert_to_tensor
from .feature import Feature
from .graph import Graph, Topology


def like(method: Callable[..., Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A decorator for a method with the arguments and the documentation of another."""
    return functools.wraps(method)


class GivenData(Dataset):
    """Labels and splits without dimensions of extent one, splits that may overlap, and None that changes nothing."""

    _topology_class = Topology
    _graph_class = Graph
    _feature_class = Feature

    @like(Dataset.init_graph)
    def init_graph(self, edge_index: Any = None, *args: Any, **kwargs: Any) -> None:
        if edge_index is not None:
            super().init_graph(edge_index, *args, **kwargs)

    @like(Dataset.init_node_features)
    def init_node_features(self, node_feature_data: Any = None, *args: Any, **kwargs: Any) -> None:
        if node_feature_data is not None:
            super().init_node_features(node_feature_data, *args, **kwargs)

    @like(Dataset.init_edge_features)
    def init_edge_features(self, edge_feature_data: Any = None, *args: Any, **kwargs: Any) -> None:
        if edge_feature_data is not None:
            super().init_edge_features(edge_feature_data, *args, **kwargs)

    def init_node_labels(self, node_label_data: Any = None, id2idx: Any = None) -> None:
        """See ``Dataset.init_node_labels``; ``[num_nodes, 1]`` becomes ``[num_nodes]``."""
        if node_label_data is not None:
            super().init_node_labels(bare_rows(node_label_data), id2idx)

    def init_node_split(self, node_split: Any = None) -> None:
        """Sets (train, valid, test) ids, each a tensor or a dict by node type."""
        if node_split is not None:
            self.train_idx, self.val_idx, self.test_idx = (bare_ids(part) for part in node_split)

    def get_node_types(self) -> Any:
        """The node types; None of a homogeneous graph."""
        return super().get_node_types() or None

    def get_edge_types(self) -> Any:
        """The edge types, in the order in which the graph was given; None of a homogeneous one."""
        return [edge_type for edge_type in by_type(self.graph) if edge_type is not None] or None

    def __setitem__(self, key: str, value: Any) -> None:
        setattr(self, key, value)


def bare_rows(labels: Any) -> Any:
    """Labels as tensors whose rows have no dimension of extent one; None stays None."""

    def squeezed(rows: torch.Tensor) -> torch.Tensor:
        return rows.reshape([*rows.shape[:1], *(extent for extent in rows.shape[1:] if extent != 1)])

    return apply_to_all_tensor(convert_to_tensor(labels, name="node_labels"), squeezed)


def bare_ids(ids: Any) -> Any:
    """Ids as vectors, without dimensions of extent one; None stays None."""

    def squeezed(given: torch.Tensor) -> torch.Tensor:
        return given.reshape(-1) if given.numel() == max(given.shape, default=1) else given

    return apply_to_all_tensor(convert_to_tensor(ids, name="node_split"), squeezed)


def labeled_types(dataset: Dataset) -> list[Any]:
    """The node types that have labels, which are those that a random split divides.

    Raises:
        InvalidArgumentError: there are none.
    """
    if not (labels := by_type(dataset.node_labels)):
        raise InvalidArgumentError(
            "node_labels: expected labels, which say what nodes a random split divides; there are none: give them to "
            "init_node_labels first, or the ids of each split to init_node_split"
        )
    return list(labels)


def drawn_seed() -> int:
    """A seed from torch's generator, which ``torch.manual_seed`` sets."""
    return int(torch.randint(1 << 62, ()))
