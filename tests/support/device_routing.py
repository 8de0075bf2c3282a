"""Partition books of all kinds, and frontiers routed by kernels compared with those of the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from graphlearn_dist import _C
from graphlearn_dist.core import to_optional_tensor, to_tensor
from graphlearn_dist.data import ZoneOrder
from graphlearn_dist.partition.device_routing import DeviceBook, NeighborAnswer, RoutedIds, stitch_on_device
from graphlearn_dist.partition.partition_book import (
    PermutedPartitionBook,
    RangePartitionBook,
    TablePartitionBook,
    ZonePartitionBook,
)

HOST = torch.device("cpu")
NUM_IDS = 1000
_OWNERS = torch.randint(0, 6, (NUM_IDS,), generator=torch.Generator().manual_seed(5))


def _table(dtype: torch.dtype, row_dtype: torch.dtype) -> TablePartitionBook:
    rows = TablePartitionBook.from_owners(_OWNERS, 6).rows
    return TablePartitionBook(_OWNERS.to(dtype), rows.to(row_dtype), 6)


BOOKS: dict[str, Callable[[], Any]] = {
    "range": lambda: RangePartitionBook([(0, 10), (10, 10), (10, 900), (900, 1000)], 0),
    "whole": lambda: RangePartitionBook([(0, 1000)], 0),
    "permuted": lambda: PermutedPartitionBook(NUM_IDS, 5, 77),
    "zones": lambda: ZonePartitionBook(
        ZoneOrder(torch.argsort(_OWNERS, stable=True), torch.tensor([0, 100, 101, 700, NUM_IDS])),
        torch.tensor([1, 3, 0, 1]),
        4,
    ),
    "table8": lambda: _table(torch.uint8, torch.int32),
    "table16": lambda: _table(torch.uint16, torch.int64),
    "table32": lambda: _table(torch.int32, torch.int32),
}


def book_of(name: str) -> Any:
    """One of ``BOOKS``."""
    return BOOKS[name]()


def answers_for(routed: RoutedIds, *, with_edge_ids: bool, narrow: bool) -> list[NeighborAnswer | None]:
    """Node v has v % 4 neighbors, of which the i-th is v * 1000 + i; if ``narrow``, every other owner's are int32."""
    answers: list[NeighborAnswer | None] = []
    for part, ids in enumerate(routed.ids.cpu().tensor_split(routed.offsets[1:-1])):
        counts = ids % 4
        ends = counts.cumsum(0)
        neighbors = ids.repeat_interleave(counts) * 1000 + torch.arange(int(counts.sum()))
        neighbors -= (ends - counts).repeat_interleave(counts)
        dtype = torch.int32 if narrow and part % 2 == 0 else torch.int64
        found = counts.to(dtype), neighbors.to(dtype), (neighbors * 3).to(dtype) if with_edge_ids else None
        device = routed.ids.device
        placed = found[0].to(device), found[1].to(device), None if found[2] is None else found[2].to(device)
        answers.append(placed if ids.numel() else None)
    return answers


def assert_routed_as_on_the_cpu(book: Any, device: torch.device) -> None:
    """Frontiers of several sizes and both dtypes are divided, and the owners' answers put back, as by the CPU."""
    placed = DeviceBook(book, device)
    for count, dtype in ((0, torch.int64), (7, torch.int32), (9000, torch.int64)):
        ids = torch.randint(0, NUM_IDS, (count,), generator=torch.Generator().manual_seed(count)).to(dtype)
        routed = placed.split(ids.to(device))
        expected = map(to_tensor, _C.split_by_owner(book.native, ids))
        for found, wanted in zip((routed.ids, routed.rows, routed.positions, routed.offsets), expected, strict=True):
            assert torch.equal(found.cpu(), wanted)
        for with_edge_ids in (False, True):
            for narrow in (False, True):
                answers = answers_for(routed, with_edge_ids=with_edge_ids, narrow=narrow)
                assert_stitched_as_on_the_cpu(routed, answers)


def assert_stitched_as_on_the_cpu(routed: RoutedIds, answers: list[NeighborAnswer | None]) -> None:
    """Counts, neighbors and edge ids are equal, in dtype too."""
    on_host = [
        None if answer is None else tuple(None if values is None else values.cpu() for values in answer)
        for answer in answers
    ]
    expected = _C.stitch_neighbors(routed.positions.cpu(), routed.offsets, on_host)
    for found, wanted in zip(stitch_on_device(routed, answers), map(to_optional_tensor, expected), strict=True):
        assert (found is None) == (wanted is None)
        if found is not None and wanted is not None:
            assert found.dtype == wanted.dtype
            assert torch.equal(found.cpu(), wanted)
