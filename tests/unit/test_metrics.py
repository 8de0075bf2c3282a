"""Ranks of links against their definition, and OGB's numbers; the same bits over any batches and trainers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from graphlearn_dist.errors import InvalidArgumentError
from graphlearn_dist.metrics import LinkMetrics, hits_at_k, link_ranks, mean_reciprocal_rank
from tests.support.processes import run_processes


def scores(num_links: int, num_negatives: int, levels: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Scores with many ties where there are few levels."""
    draw = torch.Generator().manual_seed(seed)
    drawn = torch.randint(0, levels, (num_links, 1 + num_negatives), generator=draw).float()
    return drawn[:, 0], drawn[:, 1:]


def rank_of(positive: float, negative: list[float], ties: str) -> float:
    """The definition: the places it may have among equal ones."""
    before = sum(one > positive for one in negative)
    equal = sum(one == positive for one in negative)
    return 1 + before + (equal if ties == "last" else equal / 2)


@pytest.mark.parametrize("ties", ["mean", "last"])
@pytest.mark.parametrize("levels", [1, 3, 1000])
def test_ranks(levels: int, ties: Any) -> None:
    positive, negative = scores(50, 20, levels, 1)
    wanted = [rank_of(p, row, ties) for p, row in zip(positive.tolist(), negative.tolist(), strict=True)]
    assert link_ranks(positive, negative, ties=ties).tolist() == wanted
    shared = [rank_of(p, negative[0].tolist(), ties) for p in positive.tolist()]
    assert link_ranks(positive, negative[0], ties=ties).tolist() == shared


def test_by_hand() -> None:
    """OGB's evaluator gives (1 + 1/2 + 1/2.5) / 3 for these: alone in front, second, and tied for second and third."""
    positive, negative = torch.tensor([3.0, 2.0, 2.0]), torch.tensor([[1.0, 2.0], [3.0, 1.0], [3.0, 2.0]])
    ranks = link_ranks(positive, negative)
    assert ranks.tolist() == [1, 2, 2.5]
    assert mean_reciprocal_rank(ranks) == pytest.approx((1 + 1 / 2 + 1 / 2.5) / 3, abs=1e-15)
    assert [hits_at_k(ranks, k) for k in (1, 2, 3)] == pytest.approx([1 / 3, 2 / 3, 1])


def test_hits_of_shared_negatives_are_those_of_ogb() -> None:
    """A hit scores higher than the k-th best negative; all are hits where there are fewer negatives than k."""
    for levels in (2, 5, 100):
        positive, negative = scores(80, 30, levels, levels)
        for k in (1, 10, 30, 31):
            wanted = 1.0 if k > 30 else float((positive > negative[0].topk(k).values[-1]).double().mean())
            assert hits_at_k(link_ranks(positive, negative[0], ties="last"), k) == pytest.approx(wanted)


def metrics_of(batches: range) -> LinkMetrics:
    """Of some of the batches of seven links."""
    metrics = LinkMetrics((1, 5))
    positive, negative = scores(100, 12, 7, 3)
    for index in batches:
        metrics.add(positive[7 * index : 7 * index + 7], negative[7 * index : 7 * index + 7])
    return metrics


def share_of_a_trainer(rank: int, port: int) -> dict[str, float]:
    """Run in a process of its own: one of three trainers, the last of which has no batch."""
    store = dist.TCPStore("127.0.0.1", port, 3, rank == 0)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=3)
    found = metrics_of(range(rank, 15 if rank < 2 else 0, 2)).compute()
    dist.barrier()
    dist.destroy_process_group()
    return found


def test_the_same_bits_over_batches_and_trainers(port: int) -> None:
    positive, negative = scores(100, 12, 7, 3)
    alone, ranks = metrics_of(range(15)).compute(), link_ranks(positive, negative)
    assert alone["mrr"] == pytest.approx(mean_reciprocal_rank(ranks), abs=1e-12)
    assert alone["hits@5"] == pytest.approx(hits_at_k(ranks, 5), abs=1e-12)
    whole = LinkMetrics((1, 5))
    whole.add(positive, negative)
    assert whole.compute() == alone
    function = f"tests.unit.{Path(__file__).stem}.share_of_a_trainer"
    assert run_processes([(function, {"rank": rank, "port": port}) for rank in range(3)]) == [alone] * 3


def test_nothing_was_added() -> None:
    assert all(value != value for value in LinkMetrics().compute().values())


@pytest.mark.parametrize(
    ("positive", "negative", "error"),
    [
        (torch.ones(3), torch.ones(2, 4), r"expected scores \[n\] and \[n, k\] or \[k\], got \[3\], \[2, 4\]"),
        (torch.tensor([float("nan")]), torch.ones(1, 2), "positive: expected numbers, got nan"),
        (torch.ones(1), torch.tensor([[float("nan")]]), "negative: expected numbers, got nan"),
    ],
)
def test_refused(positive: torch.Tensor, negative: torch.Tensor, error: str) -> None:
    with pytest.raises(InvalidArgumentError, match=error):
        link_ranks(positive, negative)
    with pytest.raises(InvalidArgumentError, match="ties: expected 'mean' or 'last'"):
        link_ranks(torch.ones(1), torch.ones(1), ties="first")  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="ks: expected integers from 1, got 0"):
        LinkMetrics((0,))
    with pytest.raises(InvalidArgumentError, match="ks: expected a sequence of integers, got 3"):
        LinkMetrics(3)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="k: expected integers from 1, got 0"):
        hits_at_k(torch.ones(1), 0)
    with pytest.raises(InvalidArgumentError, match=r"negative: expected a torch\.Tensor of numbers, got list"):
        link_ranks(torch.ones(1), [0.5])  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match=r"positive: expected real numbers, got torch\.bool"):
        link_ranks(torch.ones(1).bool(), torch.ones(1))
    with pytest.raises(InvalidArgumentError, match="ties: expected 'mean' or 'last'"):
        LinkMetrics(ties="first")  # type: ignore[arg-type]
    for metric in (mean_reciprocal_rank, lambda ranks: hits_at_k(ranks, 1)):
        with pytest.raises(InvalidArgumentError, match=r"ranks: expected a torch\.Tensor of numbers, got list"):
            metric([1.0])  # type: ignore[arg-type]
