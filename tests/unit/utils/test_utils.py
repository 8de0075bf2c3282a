"""The small helpers under the names that user programs know, by value."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch

from graphlearn_dist.data import Dataset
from graphlearn_dist.errors import InvalidArgumentError
from graphlearn_dist.loader import NeighborLoader
from graphlearn_dist.utils import (
    assign_device,
    coo_to_csc,
    coo_to_csr,
    ensure_device,
    get_available_device,
    index_select,
    merge_dict,
    ptr2ind,
    share_memory,
    singleton,
    squeeze,
)
from graphlearn_dist.utils.coroutines import run_local
from graphlearn_dist.utils.values import shown
from tests.support.graphs import random_edges

ROW, COL = torch.tensor([2, 0, 2, 0, 2]), torch.tensor([1, 3, 0, 1, 1])
IDS, WEIGHTS = torch.tensor([10, 11, 12, 13, 14]), torch.tensor([0.0, 0.1, 0.2, 0.3, 0.4])


def test_compressed_rows_and_columns_by_hand() -> None:
    indptr, col, ids, weights = coo_to_csr(ROW, COL, IDS, WEIGHTS)
    assert (indptr.tolist(), col.tolist()) == ([0, 2, 2, 5], [1, 3, 0, 1, 1])
    assert ids is not None
    assert weights is not None
    assert ids.tolist() == [13, 11, 12, 10, 14]  # both edges 2 -> 1 in the order of the input
    assert torch.equal(weights, WEIGHTS[[3, 1, 2, 0, 4]])
    rows, colptr, ids, weights = coo_to_csc(ROW, COL, IDS, node_sizes=(4, 5))
    assert (rows.tolist(), colptr.tolist(), weights) == ([2, 0, 2, 2, 0], [0, 1, 4, 4, 5, 5], None)
    assert ids is not None
    assert ids.tolist() == [12, 13, 10, 14, 11]
    assert coo_to_csr(ROW[:0], COL[:0])[0].tolist() == [0]


def test_compressed_rows_expand_to_the_edges() -> None:
    row, col = random_edges(30, 30, 400, 1)
    indptr, found, order, _ = coo_to_csr(row, col, torch.arange(400), node_sizes=(35, 30))
    assert indptr.numel() == 36
    assert order is not None
    assert torch.equal(torch.stack([ptr2ind(indptr), found]), torch.stack([row, col])[:, order])
    assert ptr2ind(torch.tensor([0, 2, 2, 3])).tolist() == [0, 0, 2]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((ROW, COL[:3]), "col: expected shape"),
        ((ROW, COL, IDS[:3]), "edge_id: expected shape"),
        ((ROW, COL, None, WEIGHTS[:3]), "edge_weight: expected shape"),
        ((ROW, COL, None, None, (2, 9)), r"row: expected ids in \[0, 2\), got 0 to 2"),
        ((ROW, COL - 1), "col: expected ids"),
    ],
)
def test_edges_that_make_no_sense(arguments: Any, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        coo_to_csr(*arguments)


def test_singleton() -> None:
    @singleton
    class Counter:
        """Counts itself."""

        made = 0

        def __init__(self, start: int) -> None:
            type(self).made += 1
            self.start = start

    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(Counter, range(20)))
    assert all(one is found[0] for one in found)
    assert type(found[0]).made == 1
    assert Counter.__name__ == "Counter"


def test_devices() -> None:
    assert get_available_device("cpu") == torch.device("cpu")
    ensure_device("cpu")
    ensure_device(None)
    if not torch.cuda.is_available():
        assert get_available_device() == assign_device() == torch.device("cpu")
        with pytest.raises(InvalidArgumentError, match=r"device: expected .* 0 GPUs are usable, got 'cuda:0'"):
            ensure_device("cuda:0")


def test_nested_tensors() -> None:
    data = {"a": torch.zeros(1, 3), "b": [torch.ones(1), (2, torch.ones(2, 1))]}
    assert squeeze(data)["a"].shape == (3,)
    assert share_memory(data)["b"][1][1].is_shared()
    assert share_memory(data)["b"][1][0] == 2
    assert index_select({"a": torch.arange(4), "b": None}, torch.tensor([3]))["a"].tolist() == [3]
    out: dict[str, list[int]] = {"x": [0]}
    merge_dict({"x": 1, "y": 2}, out)
    assert out == {"x": [0, 1], "y": [2]}


def test_coroutines_that_wait_for_nobody() -> None:
    async def inner() -> int:
        return 3

    async def outer() -> int:
        return 1 + await inner()

    class Never:
        def __await__(self) -> Any:
            yield

    async def waits() -> None:
        await Never()

    async def fails() -> None:
        raise InvalidArgumentError("x: expected more")

    assert run_local(outer()) == 4
    with pytest.raises(RuntimeError, match="waits for another process"):
        run_local(waits())
    with pytest.raises(InvalidArgumentError, match="expected more"):
        run_local(fails())


def test_what_came_is_shown_by_its_shape_and_not_by_its_numbers() -> None:
    numbers = torch.arange(1000)
    assert shown(numbers) == "tensor(torch.int64 [1000])"
    assert shown({"a": [numbers, np.zeros((2, 3))]}) == "{'a': [tensor(torch.int64 [1000]), array(float64 [2, 3])]}"
    assert shown(torch.tensor(3)) == "tensor(3)"
    assert (shown("gpu"), shown(1.5), shown(None), shown((0, "x"))) == ("'gpu'", "1.5", "None", "(0, 'x')")
    assert max(len(shown("a" * 10_000)), len(shown(list(range(10_000)))), len(shown(10**4000))) <= 200


def test_errors_do_not_repeat_tensors() -> None:
    dataset, many = Dataset(), torch.arange(1000)
    dataset.init_graph(torch.tensor([[0, 1], [1, 0]]))
    for wrong in (many, [many], {None: many}, [many.numpy()]):
        with pytest.raises(
            InvalidArgumentError, match=r"^num_neighbors: .*got (tensor\(torch.int64|array\(int64) \[1000\]\)$"
        ):
            NeighborLoader(dataset, wrong, torch.arange(2))
    for name in ("prefetch", "seed", "locality"):
        with pytest.raises(InvalidArgumentError, match=rf"^{name}: .*got tensor\(torch.int64 \[1000\]\)$"):
            NeighborLoader(dataset, [1], torch.arange(2), **{name: many})
