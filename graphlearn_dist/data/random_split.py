"""Random splits as a function of a seed."""

from __future__ import annotations

import torch

from ..errors import InvalidArgumentError


def random_split(
    num_total: int, num_val: float | int, num_test: float | int, *, seed: int = 0
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Splits ``range(num_total)`` into (train, valid, test) ids, int64, each ascending.

    Args:
        num_total: how many ids.
        num_val: how many (int) or which share (float below 1) for validation.
        num_test: likewise for the test.
        seed: the split is a function of it.

    Raises:
        InvalidArgumentError: the parts do not fit.
    """
    counts = [round(num_total * part) if isinstance(part, float) else part for part in (num_val, num_test)]
    if min(counts) < 0 or sum(counts) > num_total:
        raise InvalidArgumentError(
            f"num_val, num_test: expected parts of {num_total} ids, got {num_val} and {num_test}"
        )
    order = torch.randperm(num_total, generator=torch.Generator().manual_seed(seed))
    val, test, train = torch.split(order, [counts[0], counts[1], num_total - sum(counts)])
    return train.sort().values, val.sort().values, test.sort().values
