"""A holder that answers something else than it was asked is an error of the batch, never another batch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from graphlearn_dist.distributed.partitions.partition_service import PartitionService
from graphlearn_dist.distributed.sampling.batches import PartitionedBatches
from graphlearn_dist.errors import GraphLearnError, ProtocolError
from graphlearn_dist.sampler import EdgeSamplerInput, NegativeSampling, NodeSamplerInput, SamplingConfig, SamplingType
from tests.distributed.test_oracle import make_all
from tests.support.direct_peers import AskedQuery, DirectPeers
from tests.support.graphs import random_graph
from tests.support.oracle import load_partitions, write_partitions

GRAPH = random_graph(120, 900, 3, explicit_edge_ids=True)


class Liar(DirectPeers):
    """Peers that ask one thing and answer another."""

    def __init__(self, services: list[PartitionService], kind: str, lie: Callable[[AskedQuery], AskedQuery]) -> None:
        super().__init__(services)
        self._kind, self._lie = kind, lie

    def answer(self, query: AskedQuery) -> tuple[torch.Tensor, torch.Tensor]:
        return super().answer(self._lie(query) if query.kind == self._kind else query)


def with_arguments(query: AskedQuery, *arguments: Any, kind: str = "") -> AskedQuery:
    return AskedQuery(query.partition, kind or query.kind, arguments)


def of_one(query: AskedQuery) -> AskedQuery:
    """The same of its first id alone."""
    edge_type, ids, neighbors = query.arguments
    return with_arguments(query, edge_type, ids[:1], neighbors[:1])


def rows_of_one(query: AskedQuery) -> AskedQuery:
    stores, ids = query.arguments
    return with_arguments(query, stores, [each[:1] for each in ids])


def rows_for_flags(query: AskedQuery) -> AskedQuery:
    """Feature rows where flags are wanted."""
    return with_arguments(query, ["node_feature:0"], [query.arguments[1]], kind="rows")


def neighbors_for_places(query: AskedQuery) -> AskedQuery:
    """Places among other nodes, of which there are more than in the batch."""
    parts, members, with_edge_ids = query.arguments
    every = [torch.cat([torch.arange(GRAPH.num_nodes[None]).flip(0), of_type]) for of_type in members]
    return with_arguments(query, parts, every, with_edge_ids)


CASES = {
    "flags of one pair": (SamplingType.LINK, "has_edges", of_one, ProtocolError),
    "rows for flags": (SamplingType.LINK, "has_edges", rows_for_flags, ProtocolError),
    "rows of one id": (SamplingType.NODE, "rows", rows_of_one, ProtocolError),
    "places outside": (SamplingType.SUBGRAPH, "induced", neighbors_for_places, ProtocolError),
    "hops for rows": (SamplingType.NODE, "hop", lambda query: with_arguments(
        query, ["node_feature:0"], [query.ids()[0]], kind="rows"), GraphLearnError),
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(CASES))
def test_another_answer_is_refused(name: str, tmp_path: Path) -> None:
    task, kind, lie, error = CASES[name]
    datasets = load_partitions(write_partitions(GRAPH, tmp_path, "random", 2, "out"), 2)
    services = [PartitionService(dataset) for dataset in datasets]
    with_neg = task is SamplingType.LINK
    config = SamplingConfig(task, [3, 2], 30, False, False, True, True, with_neg, False, "out", 1, False)
    row, col = GRAPH.edges[None][:, :60]
    links = EdgeSamplerInput(row, col, neg_sampling=NegativeSampling("binary", 1, strict=True))
    inputs = links if task is SamplingType.LINK else NodeSamplerInput(torch.arange(60))
    honest = PartitionedBatches(datasets[0], inputs, config, services[:1], DirectPeers(services))
    assert make_all(honest, 0, 1)
    peers = Liar(services, kind, lie)
    batches = PartitionedBatches(datasets[0], inputs, config, services[:1], peers)
    with pytest.raises(error):
        make_all(batches, 0, 1)
    assert peers.asked_as(kind)
