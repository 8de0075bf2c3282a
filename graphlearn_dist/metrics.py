"""How well links are ranked: mean reciprocal rank and hits, in one process or over all trainers; ties as in OGB."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
import torch.distributed as dist

from .errors import InvalidArgumentError

Ties = Literal["mean", "last"]


def link_ranks(positive: torch.Tensor, negative: torch.Tensor, *, ties: Ties = "mean") -> torch.Tensor:
    """The place of each link among its negatives, from 1 for the best.

    OGB judges ties in two ways (``ogb.linkproppred.Evaluator``). For the mean reciprocal rank, and hits beside it, a
    link stands in the middle of the negatives of equal score: the mean of its places with all of them behind it and
    before it. For hits alone, where all links have the same negatives, it stands behind them.

    Args:
        positive: scores of links, float ``[n]``.
        negative: scores of the negatives of each, float ``[n, k]``, or of the same ones for all, float ``[k]``.
        ties: ``"mean"``, or ``"last"``, behind negatives of equal score.

    Returns:
        float64 ``[n]``: multiples of 1/2.

    Raises:
        InvalidArgumentError: shapes that do not fit together, or scores that are not numbers.
    """
    for name, scores in (("positive", positive), ("negative", negative)):
        _check_numbers(scores, name)
    if positive.dim() != 1 or negative.dim() not in (1, 2) or (negative.dim() == 2 and len(negative) != len(positive)):
        raise InvalidArgumentError(
            f"positive, negative: expected scores [n] and [n, k] or [k], got {[*positive.shape]}, {[*negative.shape]}"
        )
    _check_ties(ties)
    for name, scores in (("positive", positive), ("negative", negative)):
        if bool(scores.isnan().any()):
            raise InvalidArgumentError(f"{name}: expected numbers, got nan, which has no place among others")
    if negative.dim() == 1:  # no table of all pairs
        ordered, wanted = negative.sort().values, positive.contiguous()
        before = len(ordered) - torch.searchsorted(ordered, wanted, right=True)
        behind = len(ordered) - torch.searchsorted(ordered, wanted)
    else:
        before, behind = (negative > positive[:, None]).sum(dim=1), (negative >= positive[:, None]).sum(dim=1)
    return (before + behind).double() / 2 + 1 if ties == "mean" else behind.double() + 1


def mean_reciprocal_rank(ranks: torch.Tensor) -> float:
    """Mean of one over each rank (see ``link_ranks``), float ``[n]``; nan of none."""
    _check_numbers(ranks, "ranks")
    return float(ranks.double().reciprocal().mean())


def hits_at_k(ranks: torch.Tensor, k: int) -> float:
    """Share of the ranks (see ``link_ranks``), float ``[n]``, that are at most ``k``, from 1; nan of none.

    Raises:
        InvalidArgumentError: a ``k`` that is none.
    """
    _check_k(k, "k")
    _check_numbers(ranks, "ranks")
    return float((ranks <= k).double().mean())


class LinkMetrics:
    """Mean reciprocal rank and hits of links that come batch by batch, on any number of trainers.

    How often each rank came is counted, so that the same links give the same bits whatever batches and trainers they
    came by.

    Args:
        ks: of which hits are wanted.
        ties: see ``link_ranks``.

    Raises:
        InvalidArgumentError: a ``k`` that is no integer from 1 on, or no such ``ties``.
    """

    def __init__(self, ks: Sequence[int] = (1, 3, 10), *, ties: Ties = "mean") -> None:
        if not isinstance(ks, Sequence):
            raise InvalidArgumentError(f"ks: expected a sequence of integers, got {ks!r}")
        for k in ks:
            _check_k(k, "ks")
        _check_ties(ties)
        self._ks = tuple(ks)
        self._ties = ties
        self._counts = torch.zeros(0, dtype=torch.int64)  # by twice the rank

    def add(self, positive: torch.Tensor, negative: torch.Tensor) -> None:
        """Links, and their negatives; see ``link_ranks``."""
        twice = (2 * link_ranks(positive.detach(), negative.detach(), ties=self._ties)).long().cpu()
        length = max(len(self._counts), int(twice.max()) + 1 if twice.numel() else 0)
        self._counts = _padded(self._counts, length) + torch.bincount(twice, minlength=length)

    def compute(self) -> dict[str, float]:
        """``{"mrr": ..., "hits@1": ...}`` of what was added on all trainers of ``torch.distributed``; waits for them.

        Values are nan where nothing was added.
        """
        counts = self._counts
        if dist.is_available() and dist.is_initialized():
            device = "cuda" if dist.get_backend() == "nccl" else "cpu"
            length = torch.tensor(len(counts), device=device)
            dist.all_reduce(length, dist.ReduceOp.MAX)
            counts = _padded(counts, int(length)).to(device)
            dist.all_reduce(counts)
            counts = counts.cpu()
        ranks, total = torch.arange(len(counts)).double() / 2, counts.sum().double()
        there = counts.nonzero().view(-1)
        found = {"mrr": float((counts[there] / ranks[there]).sum() / total)}
        return found | {f"hits@{k}": float(counts[ranks <= k].sum() / total) for k in self._ks}


def _check_numbers(values: object, name: str) -> None:
    if not isinstance(values, torch.Tensor):
        raise InvalidArgumentError(f"{name}: expected a torch.Tensor of numbers, got {type(values).__name__}")
    if values.is_complex() or values.dtype == torch.bool:
        raise InvalidArgumentError(f"{name}: expected real numbers, got {values.dtype}")


def _check_ties(ties: object) -> None:
    if ties not in ("mean", "last"):
        raise InvalidArgumentError(f"ties: expected 'mean' or 'last', got {ties!r}")


def _check_k(k: int, name: str) -> None:
    if not isinstance(k, int) or isinstance(k, bool) or k < 1:
        raise InvalidArgumentError(f"{name}: expected integers from 1, got {k!r}")


def _padded(counts: torch.Tensor, length: int) -> torch.Tensor:
    return torch.nn.functional.pad(counts, (0, length - len(counts)))
