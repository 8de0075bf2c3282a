"""How good scores are: accuracy, and with two classes the area under the ROC curve; in one process or over trainers."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor


class Quality(NamedTuple):
    """What scores are worth.

    Attributes:
        accuracy: fraction of the nodes whose highest score is their class.
        roc_auc: chance that a node of class 1 scores higher than one of class 0; None unless there are two classes.
    """

    accuracy: float
    roc_auc: float | None


def quality(scores: Tensor, y: Tensor) -> Quality:
    """Judge class scores, float ``[num_nodes, num_classes]``, by classes, int64 ``[num_nodes]``."""
    right = float((scores.argmax(dim=1) == y).double().mean())
    if scores.shape[1] != 2:
        return Quality(right, None)
    return Quality(right, roc_auc(scores[:, 1] - scores[:, 0], y == 1))


def roc_auc(scores: Tensor, positive: Tensor) -> float:
    """Area under the ROC curve by rank sums (Hanley and McNeil, 1982), ties counted half; nan without both classes.

    Args:
        scores: float ``[n]``.
        positive: bool ``[n]``.
    """
    _, place, counts = scores.unique(return_inverse=True, return_counts=True)
    last = counts.cumsum(0).double()
    rank = (last - (counts - 1) / 2)[place]  # equal scores share the mean of their ranks
    num_positive = int(positive.sum())
    pairs = num_positive * (len(scores) - num_positive)
    if pairs == 0:
        return float("nan")
    return float((rank[positive].sum() - num_positive * (num_positive + 1) / 2) / pairs)


def quality_over_all_trainers(scores: list[Tensor], y: list[Tensor], num_classes: int) -> Quality:
    """`quality` of all trainers' batches together, on each of them; waits for all of them.

    Args:
        scores: this trainer's batches' float32 ``[batch, num_classes]``; may be none.
        y: the int64 ``[batch]`` that go with them.
        num_classes: width of the scores.
    """
    rows = [torch.cat([s, labels[:, None]], dim=1) for s, labels in zip(scores, y, strict=True)]
    together = rows_of_all_trainers(torch.cat([torch.empty(0, num_classes + 1), *rows]))
    return quality(together[:, :-1], together[:, -1].long())


def rows_of_all_trainers(own: Tensor) -> Tensor:
    """Every trainer's rows, float32 ``[n, width]`` with an ``n`` of its own, on each of them; waits for all of them."""
    size = torch.tensor([len(own)])
    sizes = [torch.empty_like(size) for _ in range(dist.get_world_size())]
    dist.all_gather(sizes, size)
    longest = max(map(int, sizes))  # the exchange wants equal shapes
    parts = [torch.empty(longest, own.shape[1]) for _ in sizes]
    dist.all_gather(parts, F.pad(own, (0, 0, 0, longest - len(own))))
    return torch.cat([part[: int(rows)] for part, rows in zip(parts, sizes, strict=True)])
