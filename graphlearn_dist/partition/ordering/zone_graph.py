"""The graph of an order's zones: so small that it is partitioned in an instant, for any number of parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from ... import _C
from ...core import to_tensor
from ...data.zone_order import ZoneOrder
from ...errors import InvalidArgumentError, PartitionFormatError
from ..layout import NodeKey, PartitionLayout, array_path
from ..part_numbers import numbers_by_seeds
from ..storage import ArrayFile, open_array, write_tensor
from .edge_stream import EdgeStream

_MOST_ZONES = 8192  # their graph is a matrix
_MOST = float(1 << 61)  # that counts come to in all: sums of them fit into their type
_TRIES = 6
SLACK = 0.03
_PRICE_OF_PIECES = 1.05  # of its cut: then a trainer's batches are all made by one server


@dataclass(frozen=True, eq=False)
class ZoneGraph:
    """What the zones of a data set are joined by, and what is in them, over all types.

    Attributes:
        edges: int64 ``[num_zones, num_zones]``, symmetric: how many edges join two zones; the diagonal has twice those
            within a zone.
        weights: int64 ``[num_zones, 2]``: bytes of rows and edges, training seeds.
    """

    edges: torch.Tensor
    weights: torch.Tensor

    @property
    def num_zones(self) -> int:
        """Number of zones."""
        return len(self.weights)

    def owners(self, num_parts: int, *, slack: float = SLACK) -> torch.Tensor:
        """The partition of each zone, int64 ``[num_zones]``: few cut edges, bytes and seeds near equal.

        Of 2, 4, 8, ... partitions each is a piece of the order where that cuts hardly more edges, and partition *p* has
        the near seeds of trainer *p* (see ``number_parts``).

        Args:
            num_parts: number of partitions, at most that of zones.
            slack: how much more than its share a partition may have, where that can be had.

        Raises:
            InvalidArgumentError: more partitions than zones.
        """
        check_num_parts(num_parts, self.num_zones)
        found = to_tensor(_C.zone_parts(self.edges, self.weights, num_parts, slack, _TRIES, 0))
        if num_parts & (num_parts - 1):
            return found
        pieces = _pieces(self.weights.double() / self.weights.sum(0).clamp(min=1), num_parts)
        allowed = [max(1 + slack, most) for most in self.balance(found, num_parts)]
        is_even = all(most <= limit for most, limit in zip(self.balance(pieces, num_parts), allowed, strict=True))
        has_all = bool(pieces.bincount(minlength=num_parts).all())
        if is_even and has_all and self.cut(pieces) <= _PRICE_OF_PIECES * self.cut(found):
            found = pieces
        return self._numbered(found, num_parts)

    def _numbered(self, owners: torch.Tensor, num_parts: int) -> torch.Tensor:
        seeds = self.weights[:, 1] if bool(self.weights[:, 1].any()) else self.weights[:, 0]
        counts = torch.zeros(num_parts, num_parts, dtype=torch.int64)
        counts.index_put_((_pieces(seeds[:, None].double(), num_parts), owners), seeds, accumulate=True)
        return numbers_by_seeds(counts)[owners]

    def cut(self, owners: torch.Tensor) -> float:
        """The share of edges whose ends have different owners (int64 ``[num_zones]``)."""
        total = int(self.edges.sum())
        return int(self.edges[owners[:, None] != owners[None, :]].sum()) / total if total else 0.0

    def balance(self, owners: torch.Tensor, num_parts: int) -> tuple[float, float]:
        """Bytes and training seeds of the partition that has most of them, in shares: 1 is even."""
        loads = torch.zeros(num_parts, 2, dtype=torch.int64).index_add_(0, owners, self.weights)
        totals = loads.sum(0)
        most = [int(loads[:, i].max()) * num_parts / int(totals[i]) if int(totals[i]) else 1.0 for i in (0, 1)]
        return most[0], most[1]


def check_num_parts(num_parts: int, num_zones: int) -> None:
    """InvalidArgumentError unless so many zones are enough for so many partitions."""
    if type(num_parts) is not int or not 1 <= num_parts <= num_zones:
        raise InvalidArgumentError(
            f"num_parts: expected 1 to {num_zones}, the number of zones of the order, got {num_parts!r}"
        )


def _pieces(weights: torch.Tensor, num_pieces: int) -> torch.Tensor:
    """The piece of the order that each zone is in, int64 ``[num_zones]``, of near-equal weight.

    Args:
        weights: float64 ``[num_zones, n]``; what counts is the sum over the last dimension.
        num_pieces: number of pieces.
    """
    each = weights.sum(1)
    middles = (each.cumsum(0) - each / 2) / each.sum().clamp(min=torch.finfo(each.dtype).tiny)
    return (middles * num_pieces).long().clamp(max=num_pieces - 1)


def zone_graph(stream: EdgeStream, orders: Mapping[NodeKey, ZoneOrder]) -> ZoneGraph:
    """Counts what joins the zones of all types' orders and what is in them, in one pass over the edges.

    Raises:
        InvalidArgumentError: a type has no order, or orders have different numbers of zones.
    """
    counts = {key: orders[key].num_zones if key in orders else 0 for key in stream.nodes}
    if len(set(counts.values())) != 1 or 0 in counts.values():
        raise InvalidArgumentError(f"orders: expected one for each node type, of as many zones, got zones {counts}")
    num_zones = next(iter(counts.values()))
    if num_zones > _MOST_ZONES:
        raise InvalidArgumentError(
            f"orders: expected at most {_MOST_ZONES:,} zones to be shared out, got {num_zones:,}"
        )
    zones = {key: order.zone_of(torch.arange(len(order.place))).to(torch.int32) for key, order in orders.items()}
    edges = torch.zeros(num_zones * num_zones, dtype=torch.int64)
    weights = torch.zeros(num_zones, 2, dtype=torch.int64)
    for chunk in stream.edges():
        rows, cols = zones[chunk.row_type][chunk.rows].long(), zones[chunk.col_type][chunk.cols]
        weights[:, 0] += rows.bincount(minlength=num_zones) * chunk.edge_bytes
        edges += (rows * num_zones + cols).bincount(minlength=len(edges))
    for key, node in stream.nodes.items():
        weights[:, 0] += orders[key].bounds.diff() * node.row_bytes
        weights[:, 1] += orders[key].zone_of(node.seeds).bincount(minlength=num_zones)
    both = edges.view(num_zones, num_zones)
    return ZoneGraph(both + both.T, weights)


def write_zone_graph(root: Path, graph: ZoneGraph) -> list[ArrayFile]:
    """Writes it beside the orders."""
    arrays: Sequence[tuple[str, torch.Tensor]] = (("edges", graph.edges), ("weights", graph.weights))
    return [write_tensor(root, array_path("zones", None, name), array) for name, array in arrays]


def read_zone_graph(layout: PartitionLayout, num_zones: int) -> ZoneGraph | None:
    """That of a partition directory, whose orders have so many zones; None where it has none.

    Raises:
        PartitionFormatError: it is damaged.
    """
    files = [layout.files.get(array_path("zones", None, name)) for name in ("edges", "weights")]
    if files[0] is None or files[1] is None:
        return None
    edges, weights = (open_array(layout.root, file, verify=True) for file in files if file is not None)
    forms = [(edges.shape, edges.dtype), (weights.shape, weights.dtype)]
    if forms != [((num_zones, num_zones), torch.int64), ((num_zones, 2), torch.int64)]:
        raise PartitionFormatError(
            f"{layout.root / 'zones'}: expected edges and weights int64 [{num_zones}, {num_zones}] and "
            f"[{num_zones}, 2], found {forms}"
        )
    counts = [edges, weights]
    if not torch.equal(edges, edges.T) or any(int(c.min()) < 0 or float(c.double().sum()) > _MOST for c in counts):
        raise PartitionFormatError(f"{layout.root / 'zones'}: expected counts from 0 on, of edges symmetric")
    return ZoneGraph(edges, weights)
