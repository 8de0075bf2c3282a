"""Which rows of a feature lie in the memory of GPUs, and in that of which: a plan, which moves nothing."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ...errors import InvalidArgumentError


@dataclass(frozen=True)
class RowPlacement:
    """The hot rows of a tensor, divided over the GPUs of a group; the host keeps all rows.

    GPUs see one list of rows: the shares of the group's GPUs in their order, and behind them host rows.

    Attributes:
        num_rows: of the tensor.
        num_hot: how many GPUs hold.
        hot: int64 ``[num_hot]``, these rows, hottest first; None where they are the first ones.
    """

    num_rows: int
    num_hot: int
    hot: torch.Tensor | None = None

    def share(self, place: int, size: int) -> torch.Tensor | slice:
        """The rows that the GPU at a place in a group of some size holds, to index the tensor with.

        Rows are dealt in turn by their hotness, so that each GPU is read equally often; the first rows, whose hotness
        nobody gave, in equal stretches.
        """
        if self.hot is not None:
            return self.hot[place::size]
        return slice(self.num_hot * place // size, self.num_hot * (place + 1) // size)

    @property
    def on_host(self) -> slice:
        """The rows that GPUs read in host memory: all of them where the hot ones are strewn, so that none are moved."""
        return slice(0 if self.hot is not None else self.num_hot, None)

    def row_of_id(self, size: int, id2index: torch.Tensor | None = None) -> torch.Tensor | None:
        """Where ids have their rows in the list that a group of some size sees; None where each is its own row.

        Args:
            size: GPUs of the group.
            id2index: int ``[num_ids]``, rows of ids, -1 for none; None where ids are rows.

        Returns:
            ``[num_ids]``, -1 for ids without a row; int32 where that can count the list, else int64.
        """
        length = self.num_rows + (self.num_hot if self.hot is not None else 0)
        places = torch.arange(length - self.num_rows, length, dtype=torch.int32 if length < 1 << 31 else torch.int64)
        if self.hot is not None:
            dealt = torch.cat([self.hot[place::size] for place in range(size)])
            places[dealt] = torch.arange(self.num_hot, dtype=places.dtype)
        elif id2index is None:
            return None
        if id2index is None:
            return places
        rows = torch.where((id2index >= 0) & (id2index < self.num_rows), id2index.to(torch.int64), self.num_rows)
        return torch.cat([places, places.new_full((1,), -1)])[rows]


def place_rows(num_rows: int, split_ratio: float, hotness: torch.Tensor | None = None) -> RowPlacement:
    """The plan for a tensor of ``num_rows`` rows, of which GPUs hold a share.

    Args:
        num_rows: of the tensor.
        split_ratio: the share, 0 to 1.
        hotness: ``[num_rows]``, how often each row is looked up, in any unit: the highest are hot, of equals the
            first. None takes the first rows.

    Raises:
        InvalidArgumentError: ``hotness`` is not one finite number a row.
    """
    num_hot = round(num_rows * split_ratio)
    if hotness is None or num_hot in (0, num_rows):
        return RowPlacement(num_rows, num_hot)
    if tuple(hotness.shape) != (num_rows,) or not bool(torch.isfinite(hotness).all()):
        raise InvalidArgumentError(f"hotness: expected finite numbers [{num_rows}], got {list(hotness.shape)}")
    return RowPlacement(num_rows, num_hot, hotness.argsort(descending=True, stable=True)[:num_hot].clone())
