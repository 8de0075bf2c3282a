"""Which partition has an edge, known by its id alone: shared out over ranks that partition a graph together."""

from __future__ import annotations

import torch

from ... import _C
from ...core import to_tensor
from ...errors import InvalidArgumentError
from ...partition.partition_book import RangePartitionBook

OWNER_DTYPE = torch.int32


class EdgeDirectory:
    """The owners of the edges of one type whose ids are in a range; memory is 12 bytes an edge, and one a row.

    A rank sends its edges to their owners, and their ids to the ranks of the ids' ranges. What is said of an id later,
    and its double too, thus comes to the same rank, whichever ranks have them.

    Args:
        ids: int64 ``[num_edges]``, in any order.
        owners: int32 ``[num_edges]``, their partitions.
        id_range: the ranges of all ranks, seen from this one.
        name: of the ids, for messages.

    Raises:
        InvalidArgumentError: two edges have one id.
    """

    def __init__(self, ids: torch.Tensor, owners: torch.Tensor, id_range: RangePartitionBook, name: str) -> None:
        ordered, order = ids.sort()
        _check_once(name, ordered)
        self._ids = _C.SortedIds(ordered, None)
        self._owners = owners[order]
        self._id_range = id_range
        self._asked: dict[str, torch.Tensor] = {}

    def owners_of(self, name: str, ids: torch.Tensor) -> torch.Tensor:
        """Owners of the ids (int64 ``[n]``, of the range) of rows, int32; -1 where there is no edge.

        Args:
            name: of the rows, for messages.
            ids: each comes once over all calls with the same name.

        Raises:
            InvalidArgumentError: an id comes again.
        """
        if name not in self._asked:
            self._asked[name] = torch.zeros(self._id_range.partition_size(), dtype=torch.bool)
        asked, places = self._asked[name], self._id_range.id2index[ids]
        _check_once(f"{name} ids", torch.cat([ids, ids[asked[places]]]).sort().values)
        asked[places] = True
        found = to_tensor(self._ids.find(ids))
        return torch.where(found < 0, -1, self._owners[found.clamp(min=0)]) if len(self._owners) else found.int()


def _check_once(name: str, ordered: torch.Tensor) -> None:
    repeated = ordered[1:][ordered[1:] == ordered[:-1]]
    if len(repeated):
        raise InvalidArgumentError(f"{name}: expected distinct ids, got {int(repeated[0])} twice")
