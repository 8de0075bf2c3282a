"""Graphs as damaged files give them: what reads them refuses them, whatever is in them, and touches nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from graphlearn_dist import _C
from graphlearn_dist.core import to_tensor
from graphlearn_dist.data.topology import Topology
from graphlearn_dist.errors import InvalidArgumentError, PartitionFormatError, UnknownIdError
from graphlearn_dist.sampler.strategies import METHODS
from tests.support.graphs import analytic_edges

NUM_NODES = 40
POOLS = [_C.ThreadPool(n) for n in (1, 3)]
BAD_OFFSETS = (-1, 1 << 40, (1 << 63) - 1, -(1 << 63), 81)  # there are 80 edges
BAD_NEIGHBORS = (-1, NUM_NODES, (1 << 31) - 1, -(1 << 31))
Read = Callable[[Any, _C.ThreadPool], Any]


def arrays(dtype: torch.dtype = torch.int32) -> dict[str, torch.Tensor]:
    """Node v has the neighbors v + 1 and v + 2; edge e has the time e % 5 within its row's order and the weight 1."""
    source, target = analytic_edges(NUM_NODES)
    topology = Topology((source, target), num_nodes=(NUM_NODES, NUM_NODES))
    return {
        "indptr": topology.indptr.clone(),
        "indices": topology.indices.to(dtype),
        "edge_ids": topology.edge_ids,
        "times": torch.arange(2 * NUM_NODES) % 2,
    }


def graph(parts: dict[str, torch.Tensor], *, times: bool = False, weights: bool = False) -> _C.Csr:
    data: tuple[Any, ...] = (parts["times"] if times else None,)
    if weights:  # with the sums of the graph before it was damaged
        ones = torch.ones(2 * NUM_NODES)
        data = (*data, ones, to_tensor(_C.sum_weights(arrays()["indptr"], ones, POOLS[0])[0]))
    return _C.Csr(parts["indptr"], parts["indices"], parts["edge_ids"], NUM_NODES, *data)


ALL = torch.arange(NUM_NODES)
HOWS: dict[str, tuple[_C.DrawMethod, int]] = {
    "uniform": (_C.DrawMethod(), 1),
    "all": (_C.DrawMethod(), -1),
    "replace": (_C.DrawMethod(replace=True), 3),
    **{name: (_C.DrawMethod(name), 1) for name in METHODS if name != "uniform"},
    "before": (_C.DrawMethod(times=_C.TimeRule.BEFORE), 1),
    "latest": (_C.DrawMethod(times=_C.TimeRule.LATEST), 1),
}


def one_hop(name: str) -> Read:
    how, fanout = HOWS[name]
    times = torch.full((NUM_NODES,), 9) if name in ("before", "latest") else None

    def read(parts: Any, pool: _C.ThreadPool) -> None:
        csr = graph(parts, times=times is not None, weights=name in METHODS and METHODS[name].reads_weights)
        _C.sample_neighbors(csr, ALL, None, fanout, how, 7, True, pool, None, times)

    return read


def batch(name: str, *, in_pieces: bool, disjoint: bool = False) -> Read:
    how, fanout = HOWS[name]
    timed = name in ("before", "latest")

    def read(parts: Any, pool: _C.ThreadPool) -> None:
        held: Any = graph(parts, times=timed, weights=name in METHODS and METHODS[name].reads_weights)
        if in_pieces:
            held = _C.CsrPieces(_C.PartitionBook.range(torch.tensor([0, NUM_NODES])), [held])
        builder = _C.BatchBuilder([NUM_NODES], [(0, 0)])
        builder.begin(NUM_NODES, -1, True, disjoint or timed)
        builder.add_seeds(0, ALL, torch.full((NUM_NODES,), 9) if timed else None)
        builder.sample([held], [[fanout], [fanout]], [how], True, [1, 2, 3], pool)

    return read


def induced(num_ids: int) -> Read:
    """Few members make rows long beside them; they are searched in another way."""

    def read(parts: Any, pool: _C.ThreadPool) -> None:
        _C.induced_edges(graph(parts), ALL, None, ALL[:num_ids], True, pool)

    return read


READS: dict[str, Read] = {
    **{f"one hop, {name}": one_hop(name) for name in HOWS},
    **{f"batch, {name}": batch(name, in_pieces=False) for name in HOWS},
    **{f"batch in pieces, {name}": batch(name, in_pieces=True) for name in HOWS},
    "batch in trees": batch("all", in_pieces=False, disjoint=True),
    "ppr": lambda parts, pool: _C.ppr_topk(graph(parts), ALL, 0.15, 1e-4, 5, pool),
}
# What reads offsets of rows, and no neighbor as the id of a node.
ROW_READS: dict[str, Read] = {
    "has_edges": lambda parts, pool: _C.has_edges(graph(parts), ALL, ALL.flip(0), pool),
    "has_edges with times": lambda parts, pool: _C.has_edges(graph(parts, times=True), ALL, ALL.flip(0), pool),
    "induced": induced(NUM_NODES),
    "induced, few members": induced(1),
    "take_rows": lambda parts, pool: _C.take_csr_rows(
        parts["indptr"], parts["indices"], parts["edge_ids"], ALL, NUM_NODES, pool, parts["times"]
    ),
    "sum_weights": lambda parts, pool: _C.sum_weights(parts["indptr"], torch.ones(2 * NUM_NODES), pool),
}


@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize("name", [*READS, *ROW_READS])
def test_offsets_that_are_none(name: str, pool: _C.ThreadPool) -> None:
    read = {**READS, **ROW_READS}[name]
    read(arrays(), pool)
    for row in (1, 20, NUM_NODES - 1):
        for offset in BAD_OFFSETS:
            parts = arrays()
            parts["indptr"][row] = offset
            with pytest.raises(PartitionFormatError, match=r"indptr\[\d+\], indptr\[\d+\]: expected ascending offsets"):
                read(parts, pool)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("name", READS)
def test_neighbors_that_are_none(name: str, dtype: torch.dtype) -> None:
    for neighbor in (*BAD_NEIGHBORS, *((1 << 40, -(1 << 63)) if dtype == torch.int64 else ())):
        parts = arrays(dtype)
        parts["indices"][10:30] = neighbor
        for pool in POOLS:
            with pytest.raises(UnknownIdError, match=rf"indices: neighbor id {neighbor} is outside \[0, 40\)"):
                READS[name](parts, pool)


def test_a_builder_is_good_for_the_next_batch() -> None:
    """An error in the middle of a batch leaves nothing behind."""
    builder, parts = _C.BatchBuilder([NUM_NODES], [(0, 0)]), arrays()
    parts["indices"][33] = NUM_NODES

    def sample(csr: _C.Csr) -> list[int]:
        builder.begin(5, -1, False)
        builder.add_seeds(0, ALL[15:20])
        nodes = builder.sample([csr], [[-1], [-1]], [_C.DrawMethod()], False, [1, 2, 3], POOLS[0])[0]
        return to_tensor(nodes[0]).tolist()

    expected = sample(graph(arrays()))
    with pytest.raises(UnknownIdError, match="neighbor id 40"):
        sample(graph(parts))
    assert sample(graph(arrays())) == expected


@pytest.mark.parametrize("offset", BAD_OFFSETS)
def test_topology(offset: int) -> None:
    parts = arrays()
    parts["indptr"][7] = offset
    topology = Topology.from_arrays(
        parts["indptr"], parts["indices"], parts["edge_ids"], layout="CSR", num_cols=NUM_NODES,
        edge_weights=torch.ones(2 * NUM_NODES),
    )  # fmt: skip
    reads: list[Callable[[], Any]] = [
        *(lambda: topology.degrees, lambda: topology.max_degree, lambda: topology.weight_sums),
        *(topology.to_coo, topology.to_csc),
    ]
    for read in reads:
        with pytest.raises(PartitionFormatError, match="expected ascending offsets"):
            read()


@pytest.mark.parametrize("layout", ["CSR", "CSC"])
@pytest.mark.parametrize("indptr", [[0, 5, 3, 6], [1, 2, 4, 6], [0, 2, 4, 7], [0, -1, 4, 6], []])
def test_offsets_that_somebody_gives(layout: str, indptr: list[int]) -> None:
    pair = (torch.tensor(indptr, dtype=torch.int64), torch.arange(6))
    with pytest.raises(InvalidArgumentError, match="edge_index: "):
        Topology(pair if layout == "CSR" else pair[::-1], input_layout=layout)
