"""Batches of near seeds: the check of what loaders are told, and the seeds in the order of their data set."""

from __future__ import annotations

import functools
import warnings

import torch

from ...data.dataset import Dataset
from ...errors import InvalidArgumentError
from ...typing import NodeType
from ..base import EdgeSamplerInput, NodeSamplerInput, SamplingConfig

_MOST_STRETCHES = 16  # more of them cost accuracy, see docs/locality.md


def place_nodes(sampler_input: NodeSamplerInput | EdgeSamplerInput) -> tuple[NodeType | None, torch.Tensor]:
    """The nodes that say where seeds lie, int64 ``[num_inputs]``, and their type: seeds themselves, links' sources."""
    if isinstance(sampler_input, NodeSamplerInput):
        return sampler_input.input_type, sampler_input.node
    edge_type = sampler_input.input_type
    return None if edge_type is None else edge_type[0], sampler_input.row


def order_of_seeds(
    config: SamplingConfig, sampler_input: NodeSamplerInput | EdgeSamplerInput, dataset: Dataset
) -> torch.Tensor | None:
    """The positions of a loader's input in the order of its data set, int64 ``[num_inputs]``; None without locality.

    Seeds of one place stand in the order of the input.

    Raises:
        InvalidArgumentError: the data set has no order of these nodes.
    """
    if config.locality is None:
        return None
    node_type, nodes = place_nodes(sampler_input)
    order = dataset.node_orders.get(node_type)
    if order is None:
        typed = "" if node_type is None else f" of type {node_type!r}"
        raise InvalidArgumentError(
            f"locality: expected a data set with an order of its nodes{typed}, got one without; "
            "Dataset.init_order sets it, and partition.save_node_order adds it to a partition directory"
        )
    return torch.argsort(order.places_of(nodes), stable=True)


def warn_of_locality(config: SamplingConfig) -> None:
    """Says once where seeds are so near each other that training is known to suffer."""
    if config.shuffle and config.locality is not None and config.locality > _MOST_STRETCHES:
        _say_once(config.locality)


@functools.lru_cache
def _say_once(num_stretches: int) -> None:
    warnings.warn(
        f"locality: batches of one of {num_stretches} stretches are known to cost accuracy in training; 8 stretches "
        f"did not, and {_MOST_STRETCHES} hardly: see docs/locality.md",
        UserWarning,
        stacklevel=5,
    )
