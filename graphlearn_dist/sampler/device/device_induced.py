"""The edges among the nodes of a batch, found by a GPU: those of the CPU, bit by bit."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ... import _C
from ...data.schema import GraphSchema
from ...errors import UnknownIdError
from ...utils.device import device_number
from ...utils.device_exchange import Reading
from ..tasks import InducedEdges


def induced_on_device(
    graphs: Sequence[_C.DeviceCsr],
    schema: GraphSchema,
    nodes: Sequence[torch.Tensor],
    device: torch.device,
    stream: int,
    *,
    with_edge_ids: bool,
) -> tuple[InducedEdges, ...]:
    """By edge type, all edges between nodes.

    The host waits once, for the numbers of edges, and makes room for those alone.

    Args:
        graphs: by edge type of the schema, in memory that the device reads.
        schema: types and counts of the graph.
        nodes: by node type int ``[n]``, global ids, on the device; of those that repeat the first stands for all.
        device: the GPU. On the CPU device the host runs the kernels' bodies, one after the other.
        stream: handle of the caller's current stream, on which all is done; 0 on the host.
        with_edge_ids: give edge ids.

    Raises:
        UnknownIdError: a node is outside the graph.
    """
    plan = _C.DeviceInducedPlan(schema.num_nodes, [ids.numel() for ids in nodes], schema.edge_specs)

    def empty(count: int) -> torch.Tensor:
        return torch.empty(count, dtype=torch.int64, device=device)

    result, scratch = empty(plan.num_bytes // 8), empty(plan.num_scratch_bytes // 8)
    inputs = (list(graphs), list(nodes), result, scratch)
    where = (device_number(device), stream)
    plan.count(*inputs, *where)
    found = Reading(result[: len(graphs) + len(nodes)]).wait()
    totals, bad = found[: len(graphs)], found[len(graphs) :]
    _check_members(nodes, bad)
    cols = [empty(total) for total in totals]
    edge_ids = [empty(total) if with_edge_ids else None for total in totals]
    plan.write(*inputs, cols, edge_ids, *where)
    counts = [
        result[first : first + nodes[seed_type].numel()]
        for first, (seed_type, _) in zip(plan.counts, schema.edge_specs, strict=True)
    ]
    return tuple(map(InducedEdges, counts, cols, edge_ids))


def _check_members(nodes: Sequence[torch.Tensor], bad: Sequence[int]) -> None:
    for ids, position in zip(nodes, bad, strict=True):
        if position >= 0:
            raise UnknownIdError(f"nodes: node id {int(ids[position])}, at position {position}, is outside the graph")
