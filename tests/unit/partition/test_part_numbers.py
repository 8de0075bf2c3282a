"""The numbers of parts: a trainer's batches of near seeds lie in the part of its number."""

from __future__ import annotations

import pytest
import torch

from graphlearn_dist.data import ZoneOrder
from graphlearn_dist.errors import InvalidArgumentError, UnknownIdError
from graphlearn_dist.partition import number_parts
from graphlearn_dist.sampler.epochs.schedule import SeedSchedule

NUM_NODES = 640
PLACE = torch.randperm(NUM_NODES, generator=torch.Generator().manual_seed(4))
ORDER = ZoneOrder(PLACE, torch.tensor([0, NUM_NODES]))


@pytest.mark.parametrize("num_parts", [1, 2, 4, 8])
@pytest.mark.parametrize("num_stretches", [8, 16])
def test_a_trainers_seeds_lie_in_the_part_of_its_number(num_parts: int, num_stretches: int) -> None:
    names = torch.randperm(num_parts, generator=torch.Generator().manual_seed(num_parts))
    parts = names[PLACE * num_parts // NUM_NODES]  # ranges of the order, with any numbers
    numbered = number_parts(parts, ORDER)
    near = torch.argsort(PLACE)
    schedule = SeedSchedule(NUM_NODES, 5, True, near=near, num_stretches=num_stretches)
    for trainer in range(num_parts):
        seeds = [schedule.positions(3, index) for index in range(trainer, schedule.num_batches, num_parts)]
        assert set(numbered[torch.cat(seeds)].tolist()) == {trainer}


def test_parts_stay_the_same_but_for_their_numbers() -> None:
    parts = torch.randint(0, 4, (NUM_NODES,), generator=torch.Generator().manual_seed(1))
    numbered = number_parts(parts, ORDER, torch.arange(0, NUM_NODES, 3))
    assert sorted({(one, other) for one, other in zip(parts.tolist(), numbered.tolist(), strict=True)}) == [
        (part, int(numbered[parts == part][0])) for part in range(4)
    ]
    assert sorted(set(numbered.tolist())) == [0, 1, 2, 3]


def test_other_numbers_of_parts_stay() -> None:
    parts = PLACE * 3 // NUM_NODES
    assert torch.equal(number_parts(parts, ORDER), parts)
    assert number_parts(torch.empty(0).long(), ZoneOrder(torch.empty(0).int(), torch.tensor([0, 0]))).tolist() == []


def test_seeds_may_be_a_mask() -> None:
    parts, seeds = PLACE * 4 // NUM_NODES, torch.arange(0, NUM_NODES, 3)
    mask = torch.zeros(NUM_NODES, dtype=torch.bool)
    mask[seeds] = True
    assert torch.equal(number_parts(parts, ORDER, mask), number_parts(parts, ORDER, seeds))
    with pytest.raises(InvalidArgumentError, match=r"seeds: expected a mask \[640\], got \[5\]"):
        number_parts(parts, ORDER, mask[:5])
    with pytest.raises(UnknownIdError, match="expected 0 to 639, got 0 to 640"):
        number_parts(parts, ORDER, torch.tensor([0, NUM_NODES]))


def test_parts_of_other_nodes_are_refused() -> None:
    parts = PLACE * 4 // NUM_NODES
    with pytest.raises(InvalidArgumentError, match="owners: expected the parts of 640 nodes, got 10"):
        number_parts(parts[:10], ORDER)
    for wrong in (parts - 1, parts + (1 << 40)):
        with pytest.raises(InvalidArgumentError, match="owners: expected parts from 0 to 4095"):
            number_parts(wrong, ORDER)
