"""Accuracy and ROC-AUC of the examples, by hand and over several trainers."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
sys.path.insert(0, str(EXAMPLES))

import scoring  # noqa: E402

from tests.support.processes import run_processes  # noqa: E402


def pairs_won(scores: torch.Tensor, positive: torch.Tensor) -> float:
    """The definition: how often a positive scores above a negative, ties half."""
    difference = scores[positive][:, None] - scores[~positive][None, :]
    return float(((difference > 0).double() + 0.5 * (difference == 0)).mean())


@pytest.mark.parametrize("levels", [2, 5, 1000])
def test_roc_auc_is_the_share_of_pairs_won(levels: int) -> None:
    rng = np.random.default_rng(levels)
    positive = torch.from_numpy(rng.random(200) < 0.3)
    scores = torch.from_numpy(rng.integers(0, levels, 200)).float() + positive * levels / 8
    assert scoring.roc_auc(scores, positive) == pytest.approx(pairs_won(scores, positive))


def test_roc_auc_at_the_ends() -> None:
    positive = torch.tensor([False, False, True])
    assert scoring.roc_auc(torch.tensor([0.0, 1.0, 2.0]), positive) == 1
    assert scoring.roc_auc(torch.tensor([1.0, 2.0, 0.0]), positive) == 0
    assert scoring.roc_auc(torch.zeros(3), positive) == 0.5
    assert np.isnan(scoring.roc_auc(torch.zeros(2), torch.tensor([True, True])))


def test_only_two_classes_have_a_curve() -> None:
    scores, y = torch.eye(3), torch.tensor([0, 1, 1])
    assert scoring.quality(scores, y) == (pytest.approx(2 / 3), None)
    assert scoring.quality(torch.tensor([[0.0, 1.0], [1.0, 0.0]]), torch.tensor([1, 0])) == (1, 1)


def share_of_a_trainer(rank: int, port: int) -> list[float | None]:
    """Run in a process of its own: three trainers with 0, 1 and 3 batches of unequal size."""
    store = dist.TCPStore("127.0.0.1", port, 3, rank == 0)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=3)
    torch.manual_seed(0)
    scores, y = torch.randn(40, 2).split([10, 4, 20, 6]), torch.randint(2, (40,)).split([10, 4, 20, 6])
    own = [[], [0], [1, 2, 3]][rank]
    result = scoring.quality_over_all_trainers([scores[i] for i in own], [y[i] for i in own], 2)
    dist.barrier()
    dist.destroy_process_group()
    return list(result)


def test_trainers_together_judge_the_whole(port: int) -> None:
    function = f"tests.unit.{Path(__file__).stem}.share_of_a_trainer"
    results = run_processes([(function, {"rank": rank, "port": port}) for rank in range(3)])
    torch.manual_seed(0)
    expected = scoring.quality(torch.randn(40, 2), torch.randint(2, (40,)))
    assert results == [list(expected)] * 3
