"""Partitioners that give each partition whole zones of an order."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import torch

from ...core import check_index_vector
from ...data.zone_order import ZoneOrder, check_order
from ...errors import InvalidArgumentError
from ...typing import NodeType
from ...utils.tensor import convert_to_tensor
from ...utils.values import label_of
from ..ingest import by_type
from ..partition_book import PartitionBook, book_of_zones
from ..partitioner import PartitionerBase
from ..storage import ArrayFile
from .edge_stream import stream_of_partitioner
from .find_order import FoundOrder, Orderer, find_order, shape_of
from .zone_graph import check_num_parts, write_zone_graph


class ZonePartitioner(PartitionerBase):
    """Assigns whole zones of an order that is known already; the directory has the order too. See PartitionerBase.

    Args:
        orders: the order of the nodes (by node type), each of as many zones.
        zone_owners: the partition of each zone, of all types, integers ``[num_zones]``.
    """

    def __init__(self, *args: Any, orders: Any, zone_owners: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._orders: dict[NodeType | None, ZoneOrder] = by_type("orders", orders, self.nodes)
        self._zone_owners = check_index_vector(convert_to_tensor(zone_owners, name="zone_owners"), "zone_owners")

    def _partition_node(self, ntype: NodeType | None = None) -> tuple[None, PartitionBook]:
        name = label_of("orders", ntype)
        order = check_order(self._orders.get(ntype), self.nodes[ntype].count, name)
        if len(self._zone_owners) != order.num_zones:
            raise InvalidArgumentError(
                f"zone_owners: expected owners of the {order.num_zones} zones of {name}, got {len(self._zone_owners)}"
            )
        return None, book_of_zones(order, self._zone_owners, self.num_parts)

    def _node_order(self, ntype: NodeType | None = None) -> ZoneOrder | None:
        return self._orders[ntype]


class _OrderingPartitioner(PartitionerBase):
    """Finds an order of the data set first, and assigns its zones so that few edges are cut."""

    _by: Orderer

    @functools.cached_property
    def _found(self) -> FoundOrder:
        check_num_parts(self.num_parts, shape_of(sum(node.count for node in self.nodes.values()))[1])
        parent = self.output_dir.absolute().parent
        parent.mkdir(parents=True, exist_ok=True)
        return find_order(stream_of_partitioner(self), self._by, seed=self.seed, scratch_dir=parent)

    @functools.cached_property
    def _owners(self) -> torch.Tensor:
        return self._found.graph.owners(self.num_parts)

    def _partition_node(self, ntype: NodeType | None = None) -> tuple[None, PartitionBook]:
        return None, book_of_zones(self._found.orders[ntype], self._owners, self.num_parts)

    def _node_order(self, ntype: NodeType | None = None) -> ZoneOrder | None:
        return self._found.orders[ntype]

    def _write_beside(self, root: Path) -> list[ArrayFile]:
        return write_zone_graph(root, self._found.graph)


class KaMinParPartitioner(_OrderingPartitioner):
    """Near nodes in one partition, by KaMinPar (the extra ``partition``), which holds the graph in memory.

    The directory has the order that was found, so that ``repartition`` changes the number of partitions by moving
    zones. See PartitionerBase.
    """

    _by = "kaminpar"


class LDGPartitioner(_OrderingPartitioner):
    """Likewise by linear deterministic greedy, in memory of some bytes a node; it cuts one and a half times as much."""

    _by = "ldg"
