"""Rows by in-degree."""

from __future__ import annotations

import pytest
import torch

from graphlearn_dist.data import Topology
from graphlearn_dist.data.reorder import sort_by_in_degree
from graphlearn_dist.errors import InvalidArgumentError

EDGES = torch.tensor([[0, 1, 2, 3, 0, 1, 0], [3, 3, 3, 1, 1, 4, 0]])  # in-degrees 1, 2, 0, 3, 1


@pytest.mark.parametrize("layout", ["CSR", "CSC"])
def test_highest_in_degree_first(layout: str) -> None:
    rows = torch.arange(7)[:, None] * 10
    sorted_rows, id2index = sort_by_in_degree(rows, 0.0, Topology(EDGES, layout=layout))  # type: ignore[arg-type]
    assert sorted_rows.flatten().tolist() == [30, 10, 0, 40, 20, 50, 60]
    assert torch.equal(sorted_rows[id2index], rows)


def test_only_the_first_share_is_shuffled() -> None:
    generator = torch.Generator().manual_seed(0)
    edges = torch.randint(0, 1000, (2, 20_000), generator=generator)
    topo, rows = Topology(edges, layout="CSC", num_nodes=(1000, 1000)), torch.arange(1000)
    plain, _ = sort_by_in_degree(rows, 0.0, topo)
    mixed, id2index = sort_by_in_degree(rows, 0.3, topo)
    assert torch.equal(mixed[300:], plain[300:])
    assert not torch.equal(mixed[:300], plain[:300])
    assert torch.equal(mixed[:300].sort().values, plain[:300].sort().values)
    assert torch.equal(mixed[id2index], rows)
    assert torch.equal(sort_by_in_degree(rows, 0.3, topo)[0], mixed)
    assert not torch.equal(sort_by_in_degree(rows, 0.3, topo, seed=1)[0], mixed)


def test_bad_input() -> None:
    topo = Topology(EDGES)
    with pytest.raises(InvalidArgumentError, match="shuffle_ratio"):
        sort_by_in_degree(torch.zeros(5), 1.5, topo)
    with pytest.raises(InvalidArgumentError, match="cpu_tensor: expected a row for each of 5 nodes, got 4"):
        sort_by_in_degree(torch.zeros(4), 0.0, topo)
    empty = Topology(torch.zeros(2, 0, dtype=torch.int64))
    assert sort_by_in_degree(torch.arange(3), 0.0, empty)[0].tolist() == [0, 1, 2]
