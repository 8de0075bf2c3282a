"""Which server makes which batch; no server is needed to decide it."""

from __future__ import annotations

import pytest

from graphlearn_dist.distributed.producers.batch_makers import BatchMakers
from graphlearn_dist.sampler.epochs.schedule import BatchIndices

INDICES = BatchIndices(6, 20, 2, (1, 3))  # 1, 3, 6, 8, 10, 12, 14, 16, 18


@pytest.mark.parametrize(
    ("owners", "partitions", "expected"),
    [
        ((), (0, 1), [0, 1, 0, 1, 0, 1, 0, 1, 0]),  # any seeds: in turn
        ((0, 1, 0), (0, 1), [1, 0, 0, 0, 1, 0, 0, 1, 0]),  # by index modulo 3: 1 0 0 2 1 0 2 1 0
        ((0, 1, 0), (1, 0), [0, 1, 1, 1, 0, 1, 1, 0, 1]),
        ((0, 1, 0), (1, 1, 0), [0, 2, 2, 2, 1, 2, 2, 0, 2]),  # two hold the same: in turn
        ((2, 1, 2), (0, 1), [1, 0, 1, 0, 1, 1, 0, 1, 1]),  # nobody holds partition 2: all in turn
        ((1, 0, 2), (0,), [0] * 9),
    ],
)
def test_makers(owners: tuple[int, ...], partitions: tuple[int, ...], expected: list[int]) -> None:
    found = BatchMakers(INDICES, partitions, owners)
    assert found.busy == sorted(set(expected))
    assert [found.maker_of(position) for position in range(len(INDICES))] == expected
    for place in range(len(partitions)):
        own = [position for position, maker in enumerate(expected) if maker == place]
        for start in range(len(INDICES) + 1):
            left = [position for position in own if position >= start]
            assert list(found.share_of(place, start)) == [INDICES[position] for position in left]
            if left:
                assert found.next_of(place, start) == left[0]
            else:
                assert found.next_of(place, start) >= len(INDICES)


@pytest.mark.parametrize(("group", "count"), [(1, 2), (2, 1), (2, 3), (4, 2), (8, 3)])
def test_groups_are_made_in_turn(group: int, count: int) -> None:
    found = BatchMakers(INDICES, range(count), group=group)
    makers = [position // group % count for position in range(len(INDICES))]
    assert [found.maker_of(position) for position in range(len(INDICES))] == makers
    assert found.busy == sorted(set(makers))
    for position in range(len(INDICES)):
        own = found.group_of(position)
        end = position + len(own)
        assert list(own) == list(range(position, end))
        assert position < end <= len(INDICES)
        assert end == len(INDICES) or end % group == 0
        assert end - position <= group
    for place in range(count):
        own = [position for position, maker in enumerate(makers) if maker == place]
        for start in range(len(INDICES) + 1):
            left = [position for position in own if position >= start]
            assert list(found.share_of(place, start)) == [INDICES[position] for position in left]
            assert found.next_of(place, start) == (left[0] if left else len(INDICES))


@pytest.mark.parametrize("group", [1, 2, 3, 8])
def test_groups_of_near_seeds_have_one_maker(group: int) -> None:
    """Asker and maker agree about them, from whichever position on."""
    makers = [1, 0, 0, 0, 1, 0, 0, 1, 0]
    found = BatchMakers(INDICES, (0, 1), (0, 1, 0), group)
    for position, maker in enumerate(makers):
        own = [each for each, other in enumerate(makers) if other == maker]
        at = own.index(position)
        assert list(found.group_of(position)) == own[at : (at // group + 1) * group]
        for start in range(position + 1):
            named = found.share_of(maker, start).rest_of_group(INDICES[position])
            assert list(named) == [INDICES[each] for each in found.group_of(position)]


def test_nothing_to_make() -> None:
    found = BatchMakers(BatchIndices(0, 0), (0, 1), (0, 1))
    assert found.busy == [0]
    assert [list(found.share_of(place)) for place in (0, 1)] == [[], []]
    assert found.next_of(0, 0) == 0
