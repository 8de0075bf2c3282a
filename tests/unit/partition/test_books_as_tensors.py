"""Books where a program reads a tensor of owners, and tensors where it gives a book."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest
import torch

from graphlearn_dist.data import Feature, Graph, Topology
from graphlearn_dist.distributed import DistFeature, DistGraph
from graphlearn_dist.errors import InvalidArgumentError, UnknownIdError
from graphlearn_dist.partition import (
    GLTPartitionBook,
    OwnedEdgesBook,
    PermutedPartitionBook,
    RangePartitionBook,
    TablePartitionBook,
    cat_feature_cache,
)
from graphlearn_dist.partition.partition_book import as_book
from graphlearn_dist.typing import FeaturePartitionData

OWNERS = torch.tensor([0, 0, 1, 2, 2, 2, 1])
BOOKS: dict[str, tuple[Any, torch.Tensor]] = {
    "range": (RangePartitionBook([(0, 2), (2, 3), (3, 7)], 1), torch.tensor([0, 0, 1, 2, 2, 2, 2])),
    "table": (TablePartitionBook.from_owners(OWNERS, 3), OWNERS),
    "tensor": (GLTPartitionBook(OWNERS), OWNERS),
    "permuted": (PermutedPartitionBook(7, 3, key=5), PermutedPartitionBook(7, 3, key=5)[torch.arange(7)]),
    "edges": (
        OwnedEdgesBook(7, [2, 2, 3], 0, {p: torch.where(p == OWNERS)[0] for p in (0, 1, 2)}),
        OWNERS,
    ),
}


@pytest.mark.parametrize("name", BOOKS)
def test_reads_as_a_tensor(name: str) -> None:
    book, owners = BOOKS[name]
    assert (len(book), book.shape, book.size(0), book.size(), book.dim(), book.numel()) == (7, (7,), 7, (7,), 1, 7)
    for made in (torch.as_tensor(book), book.as_tensor(), torch.from_numpy(np.asarray(book)), book.clone(), book[:]):
        assert type(made) in (torch.Tensor, GLTPartitionBook)
        assert torch.equal(torch.Tensor(made.tolist()).long(), owners)
    assert book.tolist() == owners.tolist() == [int(owner) for owner in book]
    assert (book.dtype, book.device, int(book.max())) == (torch.int64, torch.device("cpu"), 2)
    for one, other in (
        (book == 1, owners == 1),
        (book != 1, owners != 1),
        (book < 2, owners < 2),
        (book >= 1, owners >= 1),
    ):
        assert torch.equal(one, other)
    assert torch.equal(owners == book, torch.ones(7, dtype=torch.bool))
    assert torch.equal(torch.where(book == 2)[0], (owners == 2).nonzero().view(-1))
    assert torch.equal(torch.bincount(book), owners.bincount())
    assert torch.equal(torch.cat([book, book]), torch.cat([owners, owners]))
    assert torch.equal(torch.masked_select(torch.arange(7), book == 0), (owners == 0).nonzero().view(-1))
    assert bool(book)
    assert len({book, book}) == 1
    with pytest.raises(AttributeError, match="no_such_method"):
        _ = book.no_such_method


@pytest.mark.parametrize("name", BOOKS)
def test_indexing(name: str) -> None:
    book, owners = BOOKS[name]
    for index in (torch.tensor([6, 0, 3, 3]), slice(2, 5), owners == 2, torch.tensor([[0, 1], [5, 6]]), [1, 2], 3, -1):
        assert torch.equal(book[index], owners[index])
    if name != "tensor":  # which indexes as tensors do
        with pytest.raises(UnknownIdError):
            _ = book[torch.tensor([7])]
        with pytest.raises(UnknownIdError):
            _ = book[7]


@pytest.mark.parametrize("name", BOOKS)
def test_copies_are_books(name: str) -> None:
    book, owners = BOOKS[name]
    for made in (copy.copy(book), copy.deepcopy(book), pickle.loads(pickle.dumps(book))):
        assert type(made) is type(book)
        assert torch.equal(made.as_tensor(), owners)


def test_owners_of_edges_that_are_elsewhere() -> None:
    book = OwnedEdgesBook(7, [2, 2, 3], 0, {0: torch.tensor([0, 1])})
    with pytest.raises(InvalidArgumentError, match="partition 1 are not on this machine"):
        _ = book == 0
    gaps = OwnedEdgesBook(4, [2], 0, {0: torch.tensor([0, 3])})
    assert gaps.tolist() == [0, -1, -1, 0]


def test_books_of_tensors() -> None:
    assert as_book(OWNERS, 3, 2).local_ids().tolist() == [3, 4, 5]
    assert as_book(OWNERS.numpy(), 3, 1).local_ids().tolist() == [2, 6]
    assert as_book(GLTPartitionBook(OWNERS.to(torch.uint8)), 4, 3).partition_size() == 0
    assert isinstance(as_book(torch.zeros(5, dtype=torch.uint8), 1), RangePartitionBook)
    assert as_book(BOOKS["range"][0], 3, 2).partition_idx == 2
    for wrong, message in (
        (OWNERS, "pb\\[3\\]=2: expected 0 <= owner < 2"),
        (OWNERS.float(), "pb: expected an integer vector"),
        (BOOKS["range"][0], "pb: expected a book of 2 partitions, got one of 3"),
        ("book", "pb: expected a partition book"),
    ):
        with pytest.raises(InvalidArgumentError, match=message):
            as_book(wrong, 2, name="pb")


def test_owners_where_books_are_taken() -> None:
    graph = DistGraph(3, 1, Graph(Topology(torch.tensor([[2, 6], [6, 2]])), "CPU"), OWNERS, {("a", "to", "a"): OWNERS})
    assert graph.get_node_partitions(torch.tensor([6, 3])).tolist() == [1, 2]
    assert graph.get_edge_partitions(torch.tensor([6, 3]), ("a", "to", "a")).tolist() == [1, 2]
    rows = torch.arange(7.0).view(7, 1)
    feature = DistFeature(3, 1, {"a": Feature(rows, dtype=None)}, {"a": OWNERS}, local_only=True)
    assert torch.equal(feature["a", torch.tensor([6, 2])], rows[[6, 2]])
    with pytest.raises(InvalidArgumentError, match="local_only"):
        feature["a", torch.tensor([0])]


def test_cached_rows_of_a_tensor() -> None:
    """Owners as a tensor: this partition sees those of the cached ids as its own, and the tensor stays as it was."""
    given, feats = OWNERS.clone(), torch.tensor([[2.0], [6.0]])
    data = FeaturePartitionData(feats, torch.tensor([2, 6]), torch.tensor([[3.0]]), torch.tensor([3]))
    ratio, rows, id2index, book = cat_feature_cache(1, data, given)
    assert (round(ratio, 3), torch.as_tensor(book).tolist()) == (0.333, [0, 0, 1, 1, 2, 2, 1])
    assert torch.equal(rows[id2index[torch.tensor([2, 3, 6])]], torch.tensor([[2.0], [3.0], [6.0]]))
    assert torch.equal(given, OWNERS)
    twice = data._replace(cache_feats=torch.tensor([[3.0], [6.0]]), cache_ids=torch.tensor([3, 6]))
    ratio, rows, id2index, book = cat_feature_cache(1, twice, given)  # of a row that is also cached, the cached one
    assert (ratio, id2index[torch.tensor([2, 3, 6])].tolist()) == (0.5, [2, 0, 1])
    ratio, rows, id2index, same = cat_feature_cache(1, FeaturePartitionData(feats, None, None, None), given)
    assert (ratio, same is given, id2index[torch.tensor([2, 6])].tolist()) == (0.0, True, [0, 1])
