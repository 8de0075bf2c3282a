"""Frontiers that a GPU divides among owners, and answers that it puts back: as the CPU does, bit by bit."""

from __future__ import annotations

import pytest
import torch

from graphlearn_dist import _C
from graphlearn_dist.errors import UnknownIdError
from graphlearn_dist.partition.device_routing import DeviceBook
from tests.support.device_routing import BOOKS, assert_routed_as_on_the_cpu, book_of

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not _C.cuda_is_built() or _C.cuda_device_count() == 0, reason="needs a GPU and a CUDA build"),
]
GPU = torch.device("cuda", 0)


@pytest.mark.parametrize("name", BOOKS)
def test_frontiers_are_divided_and_put_back_as_on_the_cpu(name: str) -> None:
    assert_routed_as_on_the_cpu(book_of(name), GPU)


def test_an_id_that_the_book_does_not_hold_is_named() -> None:
    with pytest.raises(UnknownIdError, match=r"ids\[1\]=1000"):
        DeviceBook(book_of("permuted"), GPU).split(torch.tensor([0, 1000], device=GPU))
