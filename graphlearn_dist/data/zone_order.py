"""The order of a data set: a place for each node, such that near nodes have near places."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from ..core import check_index_vector
from ..errors import InvalidArgumentError, UnknownIdError
from ..utils.shown import shown
from . import shared_memory

_MOST_ZONES = 1 << 20  # of zones that are numbered by hand: a wrong number may be anything


@dataclass(frozen=True, eq=False)
class ZoneOrder:
    """The places of the nodes of one type, in zones of near nodes; consecutive zones make groups.

    It is a part of the data set, as edges are: batches may depend on it, and not on how nodes are partitioned.

    Attributes:
        place: int32 or int64 ``[num_nodes]``, a permutation: where each node stands, by id.
        bounds: int64 ``[num_zones + 1]``: zone *z* has the places ``[bounds[z], bounds[z + 1])``.
        num_groups: of equally many consecutive zones.

    Raises:
        InvalidArgumentError: the parts do not fit each other.
    """

    place: torch.Tensor
    bounds: torch.Tensor
    num_groups: int = 1

    def __post_init__(self) -> None:
        for name, given in (("place", self.place), ("bounds", self.bounds)):
            if not isinstance(given, torch.Tensor):
                raise InvalidArgumentError(f"{name}: expected a torch.Tensor, got {type(given).__name__}")
        if self.place.dim() != 1 or self.place.dtype not in (torch.int32, torch.int64):
            raise InvalidArgumentError(
                f"place: expected int32 or int64 [num_nodes], got {self.place.dtype} {list(self.place.shape)}"
            )
        bounds = self.bounds
        if bounds.dim() != 1 or bounds.dtype != torch.int64 or len(bounds) < 2:
            raise InvalidArgumentError(
                f"bounds: expected int64 [num_zones + 1], got {bounds.dtype} {list(bounds.shape)}"
            )
        ends = int(bounds[0]), int(bounds[-1])
        if ends != (0, len(self.place)) or bool((bounds[1:] < bounds[:-1]).any()):
            raise InvalidArgumentError(f"bounds: expected to ascend from 0 to {len(self.place)}, got {bounds}")
        if type(self.num_groups) is not int or self.num_groups < 1 or self.num_zones % self.num_groups:
            raise InvalidArgumentError(
                f"num_groups: expected a divisor of the {self.num_zones} zones, got {shown(self.num_groups)}"
            )

    @classmethod
    def of_zones(cls, zones: torch.Tensor, num_groups: int = 1, num_zones: int = 0) -> ZoneOrder:
        """The order in which the zones stand by number, and the nodes of each by id.

        Args:
            zones: int32 or int64 ``[num_nodes]``, the zone of each node, such as the blocks of a graph partitioner.
            num_groups: of equally many consecutive zones.
            num_zones: number of zones, where the last ones may have no nodes of this type; 0: up to the last that has.

        Raises:
            InvalidArgumentError: a zone is negative or none of ``num_zones``, or a part does not fit.
        """
        zones = check_index_vector(zones, "zones")
        if type(num_zones) is not int or not 0 <= num_zones <= _MOST_ZONES:
            raise InvalidArgumentError(f"num_zones: expected 0 to {_MOST_ZONES:,}, got {shown(num_zones)}")
        low, high = (int(zones.min()), int(zones.max())) if len(zones) else (0, 0)
        if low < 0 or high >= (num_zones or _MOST_ZONES):
            raise InvalidArgumentError(
                f"zones: expected 0 to {(num_zones or _MOST_ZONES) - 1:,}, got {low if low < 0 else high:,}"
            )
        by_zone = torch.argsort(zones, stable=True)
        place = torch.empty(len(zones), dtype=torch.int32 if len(zones) < 1 << 31 else torch.int64)
        place[by_zone] = torch.arange(len(zones), dtype=place.dtype)
        return cls(place, torch.nn.functional.pad(zones.bincount(minlength=num_zones).cumsum(0), (1, 0)), num_groups)

    def share_memory(self) -> ZoneOrder:
        """The same in memory that other processes can map; itself where it lies so already."""
        place, bounds = shared_memory.share(self.place), shared_memory.share(self.bounds)
        is_shared = place is self.place and bounds is self.bounds
        return self if is_shared else ZoneOrder(place, bounds, self.num_groups)

    def is_same(self, other: ZoneOrder) -> bool:
        """Whether the other has the same places and zones."""
        return torch.equal(self.place, other.place) and torch.equal(self.bounds, other.bounds)

    @property
    def is_permutation(self) -> bool:
        """Whether each node has a place of its own; reads all places."""
        count, place = len(self.place), self.place
        if count == 0:
            return True
        if int(place.min()) < 0 or int(place.max()) >= count:
            return False
        is_taken = torch.zeros(count, dtype=torch.bool)
        is_taken[place.long()] = True
        return bool(is_taken.all())

    @property
    def num_zones(self) -> int:
        """Number of zones."""
        return len(self.bounds) - 1

    def places_of(self, ids: torch.Tensor) -> torch.Tensor:
        """int64 ``[n]``: where nodes (int ``[n]``) stand; UnknownIdError for an id outside the data set."""
        if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < len(self.place):
            raise UnknownIdError(f"ids: expected 0 to {len(self.place) - 1}, got {int(ids.min())} to {int(ids.max())}")
        return self.place[ids.to(torch.int64)].to(torch.int64)

    def zone_of(self, ids: torch.Tensor) -> torch.Tensor:
        """int64 ``[n]``: the zones of nodes (int ``[n]``)."""
        return torch.searchsorted(self.bounds, self.places_of(ids), right=True) - 1


def check_order(order: Any, num_nodes: int, name: str = "order") -> ZoneOrder:
    """What a program gives as the order of so many nodes; InvalidArgumentError, about ``name``, where it is none."""
    if not isinstance(order, ZoneOrder):
        raise InvalidArgumentError(f"{name}: expected a ZoneOrder, got {type(order).__name__}")
    if len(order.place) != num_nodes:
        raise InvalidArgumentError(f"{name}: expected places of {num_nodes} nodes, got {len(order.place)}")
    if not order.is_permutation:
        raise InvalidArgumentError(f"{name}: expected each place from 0 to {num_nodes - 1} once, got others")
    return order
