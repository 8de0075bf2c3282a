"""How likely each row is to be in a batch of a loader: one pass over the edges for each hop, nothing is sampled.

The estimate is that of ``sampler.probability``, made by the partitions together: each one spreads the chances of its
own nodes over their neighbors. SALIENT++ (Kaler et al., MLSys 2023, section 3.1) fills caches by it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest

import torch

from ...data.schema import GraphSchema
from ...messages import SpreadRequest
from ...partition import PartitionBook
from ...sampler.base import EdgeSamplerInput, NodeSamplerInput
from ...sampler.probability import log_missing
from ..dist_dataset import DistDataset
from ..partitions.partition_service import PartitionService
from .partition_asker import PartitionAsker

_BLOCK = 1 << 16  # nodes of one request
_RARE = 1e-6  # so rare that chances add up: what is left of them is the degree


@dataclass(frozen=True)
class Announcement:
    """What is known of batches before they are made.

    Attributes:
        seeds: by node type float32 ``[num_nodes]``, how likely each node is to be a seed.
        fanouts: ``[hop][edge type]``.
    """

    seeds: list[torch.Tensor]
    fanouts: tuple[tuple[int, ...], ...]

    @classmethod
    def of_loader(
        cls,
        schema: GraphSchema,
        sampler_input: NodeSamplerInput | EdgeSamplerInput,
        batch_size: int,
        fanouts: tuple[tuple[int, ...], ...],
    ) -> Announcement:
        """Of a loader's input and fan-outs; negatives are not looked at."""
        if isinstance(sampler_input, NodeSamplerInput):
            seeds = [(sampler_input.input_type, sampler_input.node)]
        else:
            source, target = (None, None) if sampler_input.input_type is None else sampler_input.input_type[::2]
            seeds = [(source, sampler_input.row), (target, sampler_input.col)]
        chances = [torch.zeros(count) for count in schema.num_nodes]
        share = min(1.0, batch_size / max(1, len(sampler_input)))
        for node_type, ids in seeds:
            chances[schema.node_type_index(node_type)] += torch.bincount(
                ids.long(), minlength=schema.num_nodes[schema.node_type_index(node_type)]
            ).float().mul_(share)  # fmt: skip
        return cls([chance.clamp_(max=1) for chance in chances], fanouts)

    @classmethod
    def of_nobody(cls, schema: GraphSchema) -> Announcement:
        """Where no loader says anything: rows are the likelier the more nodes have an edge to them."""
        all_neighbors = (-1,) * len(schema.edge_types)
        return cls([torch.full((count,), _RARE) for count in schema.num_nodes], (all_neighbors,))


@dataclass(frozen=True)
class RowChances:
    """The estimate.

    Attributes:
        nodes: by node type float32 ``[num_nodes]``, how likely a node is to be in a batch.
        edges: by edge type for which it was asked, float32 ``[num_nodes]``: of a node whose neighbors were drawn, how
            likely each edge to them is.
        degrees: by the same, int64 ``[num_nodes]``: how many edges these are, as far as ``edges`` is not 0.
    """

    nodes: list[torch.Tensor]
    edges: dict[int, torch.Tensor]
    degrees: dict[int, torch.Tensor]


def estimate_chances(
    dataset: DistDataset, announced: Announcement, with_edges: Sequence[int], asker: PartitionAsker
) -> RowChances:
    """Asks all partitions, hop by hop; ``with_edges`` are the edge types whose edges have rows."""
    schema, books = dataset.schema, dataset.row_books()
    frontier = announced.seeds
    absent = [torch.log1p(-chances) for chances in frontier]
    of_rows = {e: schema.num_nodes[schema.edge_specs[e][0]] for e in with_edges}
    missing_edges = {e: torch.zeros(count) for e, count in of_rows.items()}
    degrees = {e: torch.zeros(count, dtype=torch.int64) for e, count in of_rows.items()}
    for fanouts in announced.fanouts:
        missed = [torch.zeros(count) for count in schema.num_nodes]
        for e, fanout in enumerate(fanouts):
            if fanout == 0:
                continue
            seed_type, neighbor_type = schema.edge_specs[e]
            for requests in _rounds(e, fanout, frontier[seed_type], books[e]):
                for partition, reply in asker.ask(PartitionService.spread, requests).items():
                    missed[neighbor_type].index_add_(0, reply.neighbors, reply.missed)
                    if e in missing_edges:
                        asked = requests[partition]
                        degrees[e][asked.ids] = reply.degrees
                        missing_edges[e][asked.ids] += log_missing(asked.chances, reply.degrees, fanout)
        frontier = [-torch.expm1(log) for log in missed]
        absent = [before + log for before, log in zip(absent, missed, strict=True)]
    return RowChances(
        [-torch.expm1(log) for log in absent], {e: -torch.expm1(log) for e, log in missing_edges.items()}, degrees
    )


def _rounds(
    edge_type: int, fanout: int, chances: torch.Tensor, book: PartitionBook
) -> Iterator[dict[int, SpreadRequest]]:
    """All nodes that may be in a frontier, a block of each partition at a time."""
    blocks = []
    for partition in range(book.num_partitions):
        ids = book.local_ids(partition).long()
        blocks.append(torch.split(ids[chances[ids] > 0], _BLOCK))
    for round_ in zip_longest(*blocks):
        yield {
            partition: SpreadRequest(edge_type, ids, chances[ids], fanout)
            for partition, ids in enumerate(round_)
            if ids is not None and ids.numel()
        }
