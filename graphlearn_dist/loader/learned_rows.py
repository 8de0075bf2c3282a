"""Learned rows in batches, as features are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import torch

from ..data.schema import GraphSchema
from ..errors import InvalidArgumentError
from ..typing import NodeType
from ..utils.shown import shown
from .transform import store_of_nodes

LearnedRows: TypeAlias = Callable[[torch.Tensor], torch.Tensor]
Embeddings: TypeAlias = LearnedRows | Mapping[NodeType | None, LearnedRows]


def with_learned_rows(
    embeddings: Embeddings | None, schema: GraphSchema, transform: Callable[[Any], Any] | None
) -> Callable[[Any], Any] | None:
    """What is called with each batch when it is handed out: looks up learned rows, then calls ``transform``.

    Rows are looked up at that moment, never ahead: they are those after all steps until then. They become ``x`` of
    their nodes; where these have features, the rows follow them in each row of ``x``.

    Args:
        embeddings: what gives rows ``[n, dim]`` of ids int64 ``[n]``, such as a ``DistEmbedding``; by node type, or one
            for a homogeneous graph.
        schema: of the data set.
        transform: what comes after it.

    Raises:
        InvalidArgumentError: there is no such node type, or an embedding has another number of rows than its nodes.
    """
    if embeddings is None:
        return transform
    by_type = embeddings_by_type(embeddings, schema)
    stores = {store_of_nodes(node_type): rows for node_type, rows in by_type.items()}

    def attach(batch: Any) -> Any:
        for key, rows in stores.items():
            store = batch if schema.is_homogeneous else batch[key]
            learned = rows(store.n_id)
            features = store.get("x")
            store.x = learned if features is None else torch.cat([features.to(learned.dtype), learned], dim=-1)
        return batch if transform is None else transform(batch)

    return attach


def embeddings_by_type(embeddings: Embeddings | None, schema: GraphSchema) -> dict[NodeType | None, LearnedRows]:
    """Learned rows by node type, checked; raises as ``with_learned_rows``."""
    if embeddings is None:
        return {}
    by_type: dict[NodeType | None, LearnedRows] = (
        dict(embeddings) if isinstance(embeddings, Mapping) else {None: embeddings}
    )
    for node_type, rows in by_type.items():
        _check(node_type, rows, schema)
    return by_type


def _check(node_type: NodeType | None, rows: Any, schema: GraphSchema) -> None:
    if node_type not in schema.node_types:
        raise InvalidArgumentError(
            f"embeddings: expected node types among {[*schema.node_types]}, got {shown(node_type)}"
            if not schema.is_homogeneous
            else f"embeddings: expected one embedding, or {{None: it}}, got node type {node_type!r}"
        )
    if not callable(rows):
        raise InvalidArgumentError(f"embeddings: expected something that gives rows of ids, got {type(rows).__name__}")
    count, nodes = (
        getattr(getattr(rows, "settings", None), "num", None),
        schema.num_nodes[schema.node_types.index(node_type)],
    )
    if count not in (None, nodes):
        raise InvalidArgumentError(f"embeddings: expected {nodes} rows, one a node, got {count} for {node_type!r}")
