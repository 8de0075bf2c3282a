"""Frontiers divided and put back by the GPU's kernels, whose bodies the host runs here: as on the CPU, bit by bit."""

from __future__ import annotations

import pytest
import torch

from graphlearn_dist.errors import InvalidArgumentError, UnknownIdError
from graphlearn_dist.partition.device_routing import DeviceBook, RoutedIds, stitch_on_device
from tests.support.device_routing import BOOKS, HOST, answers_for, assert_routed_as_on_the_cpu, book_of


@pytest.mark.parametrize("name", BOOKS)
def test_frontiers_are_divided_and_put_back_as_on_the_cpu(name: str) -> None:
    assert_routed_as_on_the_cpu(book_of(name), HOST)


@pytest.mark.parametrize("name", BOOKS)
def test_an_id_that_the_book_does_not_hold_is_named(name: str) -> None:
    book = DeviceBook(book_of(name), HOST)
    for bad in (1000, -1):
        with pytest.raises(UnknownIdError, match=rf"ids\[1\]={bad}: the partition book holds no such id"):
            book.split(torch.tensor([0, bad, -2]))
    with pytest.raises(InvalidArgumentError, match="ids: expected"):
        book.split(torch.tensor([0.5]))


def test_answers_that_do_not_add_up_are_named() -> None:
    ids = torch.tensor([3, 900, 4, 901])
    routed = DeviceBook(book_of("range"), HOST).split(ids)
    good = answers_for(routed, with_edge_ids=True, narrow=False)

    def changed(part: int, name: str, value: torch.Tensor) -> list[object]:
        fields = dict(zip(("counts", "neighbors", "edge_ids"), good[part] or (), strict=True))
        return [*good[:part], tuple((fields | {name: value}).values()), *good[part + 1 :]]

    last = len(good) - 1
    for parts, match in [
        (changed(0, "counts", torch.tensor([3])), "partition 0 was asked for 2 ids and answered for 1"),
        (changed(0, "counts", torch.tensor([0, -1])), "count at place 1 of the buckets is negative"),
        (changed(last, "counts", torch.tensor([0, 9])), "count at place 3 of the buckets is negative, or above"),
        (changed(last, "counts", torch.tensor([0, 0])), rf"parts\[{last}\]: its counts do not add up"),
        (changed(0, "edge_ids", torch.tensor([3])), "edge ids for"),
        ([None, *good[1:]], "no answer from partition 0"),
    ]:
        with pytest.raises(InvalidArgumentError, match=match):
            stitch_on_device(routed, parts)
    twice = RoutedIds(routed.ids, routed.rows, torch.tensor([0, 0, 1, 3]), routed.offsets)
    with pytest.raises(InvalidArgumentError, match=r"expected each of 0 to 3 once, got 0"):
        stitch_on_device(twice, good)
