"""Finds an order: all nodes in groups of zones of near nodes, by KaMinPar or by streaming."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import torch

from ... import _C
from ...core import to_tensor
from ...data.zone_order import ZoneOrder
from ...errors import InvalidArgumentError, MissingLibraryError
from ...utils.system.scratch import scratch_folder
from ..layout import NodeKey
from .edge_stream import EdgeStream
from .union_graph import UnionGraph, edges_of, first_ids, induced_graphs, union_graph
from .zone_graph import SLACK, ZoneGraph, zone_graph

Orderer = Literal["kaminpar", "ldg"]
ORDERERS: tuple[str, ...] = get_args(Orderer)

_MOST_GROUPS = 8
_MOST_ZONES = 512
_NODES_OF_A_ZONE = 4  # at least, on average
_LDG_PASSES = 4
PASSES = 4  # over the edges of a stream, to find its order
_MEAN_WEIGHT = 1000
_SEED_END = 1 << 31  # of KaMinPar's seeds
_WEIGHT_END = 1 << 30  # what all nodes weigh together, in KaMinPar's 32 bits


@dataclass(frozen=True)
class FoundOrder:
    """The orders of all node types, of the same zones, and the graph of these."""

    orders: Mapping[NodeKey, ZoneOrder]
    graph: ZoneGraph


def find_order(stream: EdgeStream, by: Orderer, *, seed: int = 0, scratch_dir: Path | None = None) -> FoundOrder:
    """Divides the nodes of all types into groups (8) of zones (64 in each; fewer in a small graph).

    The zones have near-equal weights, half of them by bytes (rows and edges) and half by training seeds. The same
    graph and seed give the same order: KaMinPar runs in one thread, as with more it depends on how they take turns.

    Args:
        stream: the graph; it is read ``PASSES`` times.
        by: ``"kaminpar"`` (L. Gottesbueren et al., Deep multilevel graph partitioning, ESA 2021), which holds the graph
            in memory, or ``"ldg"``, which streams it and keeps some bytes a node.
        seed: of KaMinPar.
        scratch_dir: where files of 30 bytes an edge may lie on the way; None: where the system has such.

    Raises:
        InvalidArgumentError: an unknown ``by``, or too many nodes.
        MissingLibraryError: KaMinPar is not installed.
    """
    check_orderer(by)
    if type(seed) is not int:
        raise InvalidArgumentError(f"seed: expected an int, got {seed!r}")
    counts = {key: node.count for key, node in stream.nodes.items()}
    num_groups, num_zones = shape_of(sum(counts.values()))
    starts = first_ids(counts)
    zones_in = _kaminpar_zones(seed) if by == "kaminpar" else _ldg_zones
    with scratch_folder(scratch_dir, ".order-") as scratch:
        graph = union_graph(stream, _weights(stream, starts), scratch)
        zones = zones_in(graph, num_groups, num_zones // num_groups, scratch)
        zones = _near_first(graph, zones.long(), num_groups, num_zones)[zones.long()]
    orders = {
        key: ZoneOrder.of_zones(zones[starts[key] : starts[key] + count], num_groups, num_zones)
        for key, count in counts.items()
    }
    return FoundOrder(orders, zone_graph(stream, orders))


def check_orderer(by: str) -> None:
    """InvalidArgumentError for what finds no orders."""
    if by not in ORDERERS:
        raise InvalidArgumentError(f"by: expected one of {sorted(ORDERERS)}, got {by!r}")


def check_installed(by: str) -> None:
    """MissingLibraryError where the library is not there that an order is found with."""
    if by == "kaminpar":
        _kaminpar()


def shape_of(num_nodes: int) -> tuple[int, int]:
    """How many groups and zones a graph of so many nodes is divided into, powers of two."""
    num_zones = min(_MOST_ZONES, 1 << max(0, (num_nodes // _NODES_OF_A_ZONE).bit_length() - 1))
    return min(_MOST_GROUPS, num_zones), num_zones


def _weights(stream: EdgeStream, starts: Mapping[NodeKey, int]) -> torch.Tensor:
    """What each node of the union weighs, int64: the mean of its share of the bytes and its share of the seeds."""
    num_nodes = sum(node.count for node in stream.nodes.values())
    loads = torch.zeros(2, num_nodes, dtype=torch.float64)
    for chunk in stream.edges():
        rows = chunk.rows + starts[chunk.row_type]
        loads[0].index_add_(0, rows, torch.full((len(rows),), chunk.edge_bytes, dtype=torch.float64))
    for key, node in stream.nodes.items():
        loads[0, starts[key] : starts[key] + node.count] += node.row_bytes
        loads[1, node.seeds + starts[key]] = 1
    shares = [load / load.sum() for load in loads if float(load.sum()) > 0]
    scale = min(_MEAN_WEIGHT * num_nodes, _WEIGHT_END)
    mean = torch.stack(shares).mean(0) if shares else loads[0]
    return (mean * scale).round().long().clamp(min=1)


def _near_first(graph: UnionGraph, zones: torch.Tensor, num_groups: int, num_zones: int) -> torch.Tensor:
    """New numbers of zones, int64 ``[num_zones]``: groups, and zones in each, in the order of repeated bisections.

    So halves, quarters and eighths of the order are near too.
    """
    joined = torch.zeros(num_zones * num_zones, dtype=torch.int64)
    for rows, cols in edges_of(graph):
        joined += (zones[rows] * num_zones + zones[cols]).bincount(minlength=len(joined))
    inner = num_zones // num_groups
    edges = joined.view(num_groups, inner, num_groups, inner)
    groups = _bisected(edges.sum((1, 3)))
    by_turn = torch.cat([g * inner + _bisected(edges[g, :, g].contiguous()) for g in groups.tolist()])
    numbers = torch.empty_like(by_turn)
    numbers[by_turn] = torch.arange(num_zones)
    return numbers


def _bisected(edges: torch.Tensor) -> torch.Tensor:
    """The numbers of ``2**k`` vertices so that each half, quarter, ... has near ones, int64."""
    count = len(edges)
    if count == 1:
        return torch.zeros(1, dtype=torch.int64)
    sides = to_tensor(_C.zone_parts(edges, torch.ones(count, 1, dtype=torch.int64), 2, 0.0, 2, 0))
    halves = [(sides == side).nonzero().view(-1) for side in (0, 1)]
    return torch.cat([half[_bisected(edges[half][:, half].contiguous())] for half in halves])


Zones = Callable[[UnionGraph, int, int, Path], torch.Tensor]


def _ldg_zones(graph: UnionGraph, num_groups: int, zones_a_group: int, scratch: Path) -> torch.Tensor:
    arrays = (graph.offsets, graph.neighbors, graph.weights)
    blocks = torch.zeros(graph.num_nodes, dtype=torch.int32)
    for groups_before, blocks_in_each in ((1, num_groups), (num_groups, zones_a_group)):
        found = _C.stream_blocks(*arrays, blocks, groups_before, blocks_in_each, _LDG_PASSES, SLACK)
        blocks = torch.utils.dlpack.from_dlpack(found)
    return blocks


def _kaminpar() -> Any:
    """The library; MissingLibraryError where it is not installed."""
    try:
        import kaminpar
    except ImportError as error:
        message = f"kaminpar cannot be imported ({error}): pip install 'graphlearn_dist[partition]', or take 'ldg'"
        raise MissingLibraryError(message) from error
    return kaminpar


def _kaminpar_zones(seed: int) -> Zones:
    kaminpar = _kaminpar()

    def zones(graph: UnionGraph, num_groups: int, zones_a_group: int, scratch: Path) -> torch.Tensor:
        groups = _kaminpar_blocks(kaminpar, graph, num_groups, seed)
        found = groups * zones_a_group
        for g, inner in enumerate(induced_graphs(graph, groups, num_groups, scratch)):
            found[groups == g] += _kaminpar_blocks(kaminpar, inner, zones_a_group, seed)
        return found

    return zones


def _kaminpar_blocks(kaminpar: Any, graph: UnionGraph, num_blocks: int, seed: int) -> torch.Tensor:
    """The block of each node, int32."""
    if num_blocks == 1 or graph.num_nodes <= num_blocks or int(graph.offsets[-1]) == 0:
        return torch.arange(graph.num_nodes, dtype=torch.int32) % num_blocks
    kaminpar.reseed(seed % _SEED_END)
    opened = kaminpar.load_graph(str(graph.path), kaminpar.GraphFileFormat.PARHIP)
    blocks = kaminpar.KaMinPar(1, kaminpar.default_context()).compute_partition(opened, num_blocks, SLACK)
    return torch.tensor(blocks, dtype=torch.int32)
