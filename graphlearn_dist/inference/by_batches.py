"""Inference by a loader over all nodes: for fan-outs of several hops, and for graphs with times."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from ..errors import InvalidArgumentError
from .results import Results


def infer_by_batches(
    model: Callable[..., Any], loader: Iterable[Any], *, apply: Callable[[Any], torch.Tensor] | None = None
) -> Results:
    """Computes the rows of the nodes of a loader from its batches, whose hops are the model's layers.

    A node is computed once for each batch that reaches it, so that this takes longer than ``infer`` by the overlap of
    the neighborhoods; but the sampling is the loader's, with its fan-outs, weights and times.

    Args:
        model: is called with a batch's ``x`` and ``edge_index``, of typed graphs by type.
        loader: over all nodes of one type, each once; ``shuffle`` changes nothing.
        apply: makes the rows of a batch's seeds, ``[batch_size, width]``, of the batch, in place of the model.

    Returns:
        The rows of the nodes by id.

    Raises:
        InvalidArgumentError: the loader has no batch, or its seeds are not all nodes, each once.
    """
    was_training = isinstance(model, torch.nn.Module) and model.training
    if isinstance(model, torch.nn.Module):
        model.eval()
    ids, rows, node_type = [], [], None
    try:
        with torch.inference_mode():
            for batch in loader:
                node_type, seeds = _seeds_of(batch)
                ids.append(seeds.n_id[: seeds.batch_size].clone())
                found = _apply(model, batch, node_type) if apply is None else apply(batch)
                rows.append(found[: seeds.batch_size].clone())
    finally:
        if was_training:
            model.train()  # type: ignore[attr-defined]
    if not ids:
        raise InvalidArgumentError("loader: expected batches, got none")
    order = torch.cat(ids).sort()
    if not torch.equal(order.values, torch.arange(len(order.values))):
        raise InvalidArgumentError(f"loader: expected all nodes as seeds, each once, got {len(order.values)} others")
    return Results.in_memory({node_type: torch.cat(rows)[order.indices]})


def _seeds_of(batch: Any) -> tuple[Any, Any]:
    """(node type or None, its store) of a batch's seeds."""
    if not hasattr(batch, "node_types"):
        return None, batch
    for node_type in batch.node_types:
        if "batch_size" in batch[node_type]:
            return node_type, batch[node_type]
    raise InvalidArgumentError("loader: expected batches of seed nodes, got one without")


def _apply(model: Callable[..., Any], batch: Any, node_type: Any) -> Any:
    edges = "adj_t" if any("adj_t" in store for store in batch.edge_stores) else "edge_index"
    if node_type is None:
        return model(batch.x, batch[edges])
    return model(batch.x_dict, batch.collect(edges))[node_type]
