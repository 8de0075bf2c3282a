"""Which number a part gets, where a trainer reads from the part of its own number: the one of its near seeds."""

from __future__ import annotations

import torch

from ..core import check_index_vector
from ..data.zone_order import ZoneOrder
from ..errors import InvalidArgumentError
from ..utils.turns import far_apart

_MOST_PARTS = 4096  # seeds of each stretch are counted in each part


def number_parts(owners: torch.Tensor, order: ZoneOrder, seeds: torch.Tensor | None = None) -> torch.Tensor:
    """The same parts with other numbers: part *p* has the near seeds of trainer *p*, as far as one part has them.

    With ``locality`` and ``shard=(p, num_parts)``, batches of a trainer have seeds of one part of the order where their
    number is a power of two (see ``SeedSchedule``). A trainer beside the part that owns these asks for least. Parts of
    which there is another number keep theirs.

    Args:
        owners: int ``[num_nodes]``, the part of each node, from 0.
        order: of these nodes.
        seeds: int ``[num_seeds]``, on which the loaders train, or a mask bool ``[num_nodes]``; all nodes unless given.

    Returns:
        int64 ``[num_nodes]``.

    Raises:
        InvalidArgumentError: owners or seeds of other nodes, or too many parts.
        UnknownIdError: a seed is outside the data set.
    """
    owners, num_nodes = check_index_vector(owners, "owners").long(), len(order.place)
    if len(owners) != num_nodes:
        raise InvalidArgumentError(f"owners: expected the parts of {num_nodes} nodes, got {len(owners)}")
    num_parts = int(owners.max()) + 1 if num_nodes else 1
    if num_nodes and not 0 <= int(owners.min()) <= num_parts <= _MOST_PARTS:
        raise InvalidArgumentError(
            f"owners: expected parts from 0 to {_MOST_PARTS - 1}, got {int(owners.min())} to {num_parts - 1}"
        )
    if num_parts & (num_parts - 1):
        return owners
    seeds = _seed_ids(seeds, num_nodes)
    stretch = torch.empty(len(seeds), dtype=torch.int64)
    stretch[torch.argsort(order.places_of(seeds), stable=True)] = (
        torch.arange(len(seeds)) * num_parts // max(1, len(seeds))
    )
    counts = (stretch * num_parts + owners[seeds]).bincount(minlength=num_parts**2).view(num_parts, num_parts)
    return numbers_by_seeds(counts)[owners]


def _seed_ids(seeds: torch.Tensor | None, num_nodes: int) -> torch.Tensor:
    if seeds is None:
        return torch.arange(num_nodes)
    if not isinstance(seeds, torch.Tensor) or seeds.dtype != torch.bool:
        return check_index_vector(seeds, "seeds").long()
    if seeds.shape != (num_nodes,):
        raise InvalidArgumentError(f"seeds: expected a mask [{num_nodes}], got {list(seeds.shape)}")
    return seeds.nonzero().view(-1)


def numbers_by_seeds(counts: torch.Tensor) -> torch.Tensor:
    """The new number of each part, int64 ``[num_parts]``; ``num_parts`` is a power of two.

    Args:
        counts: ``[num_parts, num_parts]``, the training seeds of each stretch of the order in each part.
    """
    num_parts, counts = len(counts), counts.clone()
    trainer_of = torch.tensor(far_apart(num_parts)).argsort()
    numbers = torch.empty(num_parts, dtype=torch.int64)
    for _ in range(num_parts):  # whoever has the most of a stretch gets it, one after the other
        found = int(counts.argmax())
        numbers[found % num_parts] = trainer_of[found // num_parts]
        counts[found // num_parts] = counts[:, found % num_parts] = -1
    return numbers
