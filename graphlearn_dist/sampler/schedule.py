"""Which input nodes make up which batch: a formula of (seed, epoch, batch index), without a shuffled list."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from .. import _C
from ..core import to_tensor
from ..errors import InvalidArgumentError

# The shuffle draws from a stream of its own: no sampling hop has this number.
_SHUFFLE_HOP = (1 << 31) - 1


@dataclass(frozen=True)
class SeedSchedule:
    """The batches of every epoch.

    Batch ``i`` of an epoch holds positions ``[i * batch_size, (i + 1) * batch_size)`` of the epoch's order of the input
    nodes. With ``shuffle`` that order is a keyed permutation of (seed, epoch): any batch's seeds are computed alone,
    by any process.

    Attributes:
        num_inputs: length of the list of input nodes.
        batch_size: seeds of a batch; the last one may have fewer.
        shuffle: permute in every epoch.
        drop_last: leave out the last batch if it is not full.
        seed: seed of the permutation.
    """

    num_inputs: int
    batch_size: int
    shuffle: bool = False
    drop_last: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise InvalidArgumentError(f"batch_size: expected at least 1, got {self.batch_size}")
        if self.num_inputs < 0:
            raise InvalidArgumentError(f"num_inputs: expected at least 0, got {self.num_inputs}")

    @property
    def num_batches(self) -> int:
        """Batches of one epoch."""
        full, rest = divmod(self.num_inputs, self.batch_size)
        return full if self.drop_last or rest == 0 else full + 1

    def positions(self, epoch: int, index: int) -> torch.Tensor:
        """Positions, within the list of input nodes, of the seeds of one batch; int64 ``[num_seeds]``.

        Raises:
            InvalidArgumentError: there is no such batch.
        """
        if not 0 <= index < self.num_batches:
            raise InvalidArgumentError(f"index: expected a batch in [0, {self.num_batches}), got {index}")
        begin = index * self.batch_size
        order = torch.arange(begin, min(begin + self.batch_size, self.num_inputs))
        if not self.shuffle:
            return order
        key = _C.draw_key(self.seed, epoch, 0, _SHUFFLE_HOP, 0)
        return to_tensor(_C.permute(order, self.num_inputs, key))
