"""From outputs of samplers to PyG's objects, as ``graphlearn_torch.loader.transform`` has it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import torch

from ...loader import transform
from ...sampler.convert import message_type
from ...sampler.outputs import HeteroSamplerOutput, SamplerOutput
from ...typing import EdgeType, NodeType
from .batch_form import drop_others, in_glt_form

if TYPE_CHECKING:
    from torch_geometric.data import Data, HeteroData

__all__ = [
    "to_data",
    "to_hetero_data",
]


def to_data(
    sampler_out: SamplerOutput,
    batch_labels: torch.Tensor | None = None,
    node_feats: torch.Tensor | None = None,
    edge_feats: torch.Tensor | None = None,
    **kwargs: Any,
) -> Data:
    """``graphlearn_dist.loader.transform.to_data``; ``edge_label_index`` runs from target to source."""
    data = transform.to_data(sampler_out, batch_labels, node_feats, edge_feats, **kwargs)
    if "edge_label_index" in data:
        data.edge_label_index = data.edge_label_index.flip(0)
    if "mapping" in data:
        data.metadata = data.mapping
    drop_others(data._store)
    return data


def to_hetero_data(
    hetero_sampler_out: HeteroSamplerOutput,
    batch_label_dict: dict[NodeType, torch.Tensor] | None = None,
    node_feat_dict: dict[NodeType, torch.Tensor] | None = None,
    edge_feat_dict: dict[EdgeType, torch.Tensor] | None = None,
    edge_dir: Literal["in", "out"] = "out",
    **kwargs: Any,
) -> HeteroData:
    """``graphlearn_dist.loader.transform.to_hetero_data`` with batches in the form of GraphLearn-for-PyTorch.

    Args:
        hetero_sampler_out: what the sampler gave.
        batch_label_dict: by node type, becomes ``y``.
        node_feat_dict: by node type, becomes ``x``.
        edge_feat_dict: by the edge types of the output (reversed ones where out-neighbors were sampled), becomes
            ``edge_attr``.
        edge_dir: the direction of sampling.
        **kwargs: further attributes of the whole batch.
    """
    features = {message_type(name, edge_dir): rows for name, rows in (edge_feat_dict or {}).items()}
    data = transform.to_hetero_data(hetero_sampler_out, batch_label_dict, node_feat_dict, features, edge_dir, **kwargs)
    made: HeteroData = in_glt_form(data, edge_dir, is_local=True)
    return made
