"""The model that every example trains: GraphSAGE with mean aggregation."""

from __future__ import annotations

import itertools

import torch
import torch.nn.functional as F
from torch import Tensor
from torch_geometric.nn import SAGEConv


class GraphSAGE(torch.nn.Module):
    """GraphSAGE (Hamilton et al., 2017) with mean aggregation and layer norm between the layers.

    Layer norm and not batch norm: it has no running statistics, so that the same model trains on the whole graph, on
    sampled batches of any size, and under data parallelism without buffers to keep equal.

    Args:
        in_channels: width of the input features.
        hidden_channels: width of the layers between.
        out_channels: number of classes.
        num_layers: convolutions, each looking one hop further.
        dropout: probability of dropping a hidden value, in training only.
        use_edges: False ignores the graph (each node sees itself only): the baseline without edges.
    """

    def __init__(
        self,
        in_channels: int,
        hidden_channels: int,
        out_channels: int,
        num_layers: int = 2,
        dropout: float = 0.3,
        *,
        use_edges: bool = True,
    ) -> None:
        super().__init__()
        widths = [in_channels] + [hidden_channels] * (num_layers - 1) + [out_channels]
        pairs = list(itertools.pairwise(widths))
        layer = SAGEConv if use_edges else torch.nn.Linear
        self.use_edges = use_edges
        self.convs = torch.nn.ModuleList(layer(width_in, width_out) for width_in, width_out in pairs)
        self.norms = torch.nn.ModuleList(torch.nn.LayerNorm(width_out) for _, width_out in pairs[:-1])
        self.dropout = dropout

    def forward(self, x: Tensor, edge_index: Tensor | None = None) -> Tensor:
        """Class scores, float32 ``[num_nodes, out_channels]``.

        Args:
            x: float32 ``[num_nodes, in_channels]``.
            edge_index: int64 ``[2, num_edges]``, source and target rows of `x`; or a sparse ``[targets, sources]``
                matrix (CSR).
        """
        for i, conv in enumerate(self.convs):
            x = conv(x, edge_index) if self.use_edges else conv(x)
            if i < len(self.norms):
                x = F.dropout(F.relu(self.norms[i](x)), self.dropout, self.training)
        return x
