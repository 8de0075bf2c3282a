"""Batches of near seeds: which seeds they have, whatever the numbers; none comes twice, and none is left out."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from graphlearn_dist.sampler.epochs.schedule import SeedSchedule


@st.composite
def schedules(draw: st.DrawFn, **fixed: Any) -> SeedSchedule:
    num_inputs = draw(st.integers(0, 200))
    settings = {
        "batch_size": draw(st.integers(1, 40)),
        "shuffle": draw(st.booleans()),
        "drop_last": draw(st.booleans()),
        "seed": draw(st.integers(-(1 << 63), (1 << 63) - 1)),
        "num_stretches": draw(st.integers(1, 20)),
    }
    near = torch.randperm(num_inputs, generator=torch.Generator().manual_seed(draw(st.integers(0, 9))))
    return SeedSchedule(num_inputs, near=near, **{**settings, **fixed})


def epoch_of(schedule: SeedSchedule, epoch: int) -> list[torch.Tensor]:
    return [schedule.positions(epoch, index) for index in range(schedule.num_batches)]


@given(schedules(drop_last=False), st.integers(0, 3))
def test_every_seed_comes_once(schedule: SeedSchedule, epoch: int) -> None:
    batches = epoch_of(schedule, epoch)
    assert all(len(batch) == schedule.batch_size for batch in batches[:-1])
    assert sorted(itertools.chain(*(batch.tolist() for batch in batches))) == list(range(schedule.num_inputs))


@given(schedules(drop_last=True), st.integers(0, 3))
def test_without_the_last_batch_all_are_full_and_no_seed_comes_twice(schedule: SeedSchedule, epoch: int) -> None:
    batches = epoch_of(schedule, epoch)
    assert len(batches) == schedule.num_inputs // schedule.batch_size
    assert all(len(batch) == schedule.batch_size for batch in batches)
    flat = list(itertools.chain(*(batch.tolist() for batch in batches)))
    assert len(set(flat)) == len(flat)


@given(schedules(), st.integers(0, 3))
def test_stretches(schedule: SeedSchedule, epoch: int) -> None:
    """Batches of one turn have the seeds of one stretch, none of another; stretches are near equal, and are always
    the same, but for what the last batch has not."""
    place = torch.empty(schedule.num_inputs, dtype=torch.int64)
    place[schedule.near] = torch.arange(schedule.num_inputs)
    batches = epoch_of(schedule, epoch)
    turns = [batches[turn :: schedule.num_stretches] for turn in range(min(schedule.num_stretches, len(batches)))]
    spans = [place[torch.cat(turn)].sort().values for turn in turns]
    ends = sorted((int(span[0]), int(span[-1])) for span in spans)
    assert all(one[1] < other[0] for one, other in itertools.pairwise(ends))
    if not schedule.drop_last:
        assert all(torch.equal(span, torch.arange(int(span[0]), int(span[-1]) + 1)) for span in spans)
    counts = [len(turn) for turn in turns]
    assert max(counts, default=0) - min(counts, default=0) <= 1


@pytest.mark.parametrize("num_stretches", [2, 4, 8, 64])
def test_consecutive_batches_are_far_apart(num_stretches: int) -> None:
    """Of every 2, 4, 8, ... that begin at a multiple, each has another half, quarter, eighth of the seeds."""
    count = 64 * 10
    schedule = SeedSchedule(count, 5, True, near=torch.arange(count), num_stretches=num_stretches)
    seeds = [batch.tolist() for batch in epoch_of(schedule, 0)]
    for together in (2, 4, 8, 64):
        if together <= num_stretches:
            for start in range(0, len(seeds), together):
                parts = [{seed * together // count for seed in batch} for batch in seeds[start : start + together]]
                assert all(len(part) == 1 for part in parts)
                assert len(set.union(*parts)) == together


def test_epochs_and_stretches_have_orders_of_their_own() -> None:
    schedule = SeedSchedule(4000, 1000, True, near=torch.arange(4000), num_stretches=4, seed=3)
    orders = [tuple((batch % 1000).tolist()) for epoch in range(3) for batch in epoch_of(schedule, epoch)]
    assert len(set(orders)) == len(orders) == 12


def test_without_shuffle_a_stretch_is_in_order() -> None:
    near = torch.tensor([3, 1, 4, 0, 5, 9, 2, 6, 8, 7])
    schedule = SeedSchedule(10, 2, near=near, num_stretches=2)
    assert [batch.tolist() for batch in epoch_of(schedule, 0)] == [[3, 1], [2, 6], [4, 0], [8, 7], [5, 9]]
    assert [batch.tolist() for batch in epoch_of(schedule, 7)] == [[3, 1], [2, 6], [4, 0], [8, 7], [5, 9]]


def test_the_bits_stay_what_they_are() -> None:
    """States of loaders that were saved name these batches: whoever changes them changes the version of states."""
    schedule = SeedSchedule(23, 4, True, near=torch.arange(23), num_stretches=3, seed=5)
    assert [batch.tolist() for batch in epoch_of(schedule, 2)] == [
        [5, 3, 0, 4],
        [18, 22, 20, 16],
        [12, 13, 9, 8],
        [7, 6, 2, 1],
        [17, 19, 15, 21],
        [10, 14, 11],
    ]


@given(schedules(), st.integers(1, 4))
def test_owners(schedule: SeedSchedule, num_owners: int) -> None:
    """Each turn's owner has the most seeds of its batches."""
    owners = torch.arange(schedule.num_inputs) * num_owners // max(1, schedule.num_inputs)
    found = schedule.owners(owners)
    assert len(found) == schedule.num_stretches
    whole = SeedSchedule(schedule.num_inputs, schedule.batch_size, near=schedule.near, num_stretches=len(found))
    batches = epoch_of(whole, 0)
    for turn, owner in enumerate(found[: len(batches)]):
        counts = owners[torch.cat(batches[turn :: len(found)])].bincount(minlength=num_owners)
        assert counts[owner] == counts.max()
