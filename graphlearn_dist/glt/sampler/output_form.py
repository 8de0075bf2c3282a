"""Outputs of samplers in the form of GraphLearn-for-PyTorch."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import torch

from ...sampler.outputs import HeteroSamplerOutput, SamplerOutput

Output = SamplerOutput | HeteroSamplerOutput


def in_order_of_ids(output: Output) -> Output:
    """An induced subgraph with nodes in the order of their ids, and edges in that of the places of their targets."""
    if isinstance(output, SamplerOutput):
        order, place = _order(output.node)
        row, col, edge = _edges(output.row, output.col, output.edge, place, place)
        return replace(output, node=output.node[order], row=row, col=col, edge=edge, metadata=place[output.metadata])
    orders = {key: _order(node) for key, node in output.node.items()}
    edges = {
        key: _edges(rows, output.col[key], (output.edge or {}).get(key), orders[key[0]][1], orders[key[2]][1])
        for key, rows in output.row.items()
    }
    return replace(
        output,
        node={key: node[orders[key][0]] for key, node in output.node.items()},
        row={key: row for key, (row, _, _) in edges.items()},
        col={key: col for key, (_, col, _) in edges.items()},
        edge={key: edge for key, (_, _, edge) in edges.items() if edge is not None} or None,
        metadata=orders[output.input_type][1][output.metadata],  # type: ignore[index]
    )


def _order(nodes: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The order of the nodes by their ids, and the place of each of them in it."""
    order = torch.argsort(nodes, stable=True)
    place = torch.empty_like(order)
    place[order] = torch.arange(order.numel())
    return order, place


def _edges(
    row: torch.Tensor, col: torch.Tensor, edge: torch.Tensor | None, row_place: torch.Tensor, col_place: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    rows, cols = row_place[row], col_place[col]
    order = torch.argsort(cols, stable=True)
    return rows[order], cols[order], None if edge is None else edge[order]


def moved(output: Output, device: torch.device) -> Output:
    """The same output on another device."""
    changed = {one.name: _moved(getattr(output, one.name), device) for one in fields(output)}
    return replace(output, **{**changed, "device": device})


def _moved(value: Any, device: torch.device) -> Any:
    if isinstance(value, torch.Tensor):
        return value.to(device)
    return {key: _moved(one, device) for key, one in value.items()} if isinstance(value, dict) else value
