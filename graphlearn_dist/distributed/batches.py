"""Whole mini-batches from a partitioned data set: the same as ``sampler.batches.LocalBatches`` makes of the whole."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import torch

from ..data.dataset import EDGE_FEATURE, NODE_FEATURE, NODE_LABEL, store_name
from ..messages import SampledBatch
from ..sampler.base import NodeSamplerInput, SamplingConfig
from ..sampler.batches import assemble, make_plan, make_schedule, wanted_rows
from .dist_dataset import DistDataset
from .feature_collector import FeatureCollector
from .partition_service import PartitionService
from .partitioned_sampler import PartitionedSubgraphSampler, Peers, WholeGraphSampler

Place = Callable[[SampledBatch], SampledBatch]


class NoPeers:
    """The peers of a data set that is one partition: there is nobody to ask."""

    def ask(self, partition: int, function: str, request: object) -> None:
        raise LookupError(f"partition {partition} was asked for, but there is only one")


def rows_by_store(batch: SampledBatch) -> dict[str, torch.Tensor]:
    """The looked-up rows of a batch by the name of their store."""
    kinds = ((NODE_FEATURE, batch.node_features), (NODE_LABEL, batch.node_labels), (EDGE_FEATURE, batch.edge_features))
    return {store_name(kind, i): rows for kind, by in kinds for i, rows in enumerate(by) if rows is not None}


def with_rows(batch: SampledBatch, rows: Mapping[str, torch.Tensor]) -> SampledBatch:
    """The batch with other looked-up rows, by the name of their store."""

    def by_type(kind: str, old: tuple[torch.Tensor | None, ...]) -> tuple[torch.Tensor | None, ...]:
        return tuple(rows.get(store_name(kind, i)) for i in range(len(old)))

    return replace(
        batch,
        node_features=by_type(NODE_FEATURE, batch.node_features),
        node_labels=by_type(NODE_LABEL, batch.node_labels),
        edge_features=by_type(EDGE_FEATURE, batch.edge_features),
    )


class PartitionedBatches:
    """The batches of one loader, computed by one sampling worker.

    Args:
        dataset: this process's partition.
        sampler_input: the loader's input nodes, checked.
        config: how to sample.
        service: answers for this partition.
        peers: the other partitions.
        num_threads: threads of one batch; a batch does not depend on them.
    """

    def __init__(
        self,
        dataset: DistDataset,
        sampler_input: NodeSamplerInput,
        config: SamplingConfig,
        service: PartitionService,
        peers: Peers,
        num_threads: int = 1,
    ) -> None:
        self.schedule = make_schedule(sampler_input, config)
        self._seeds = sampler_input.node
        self._seed_type = dataset.schema.node_type_index(sampler_input.input_type, "input_nodes")
        plan = make_plan(dataset, config)
        self._sampler = (
            WholeGraphSampler(dataset, plan, num_threads)
            if dataset.is_whole
            else PartitionedSubgraphSampler(dataset, plan, service, peers, num_threads)
        )
        self._collector = FeatureCollector(dataset, peers, num_threads)
        self._stores = self._collector.store_names if config.collect_features else frozenset()

    async def make(self, epoch: int, index: int, run: int, place: Place) -> SampledBatch:
        """Batch ``index`` of ``epoch``.

        Args:
            epoch: whose draws.
            index: which batch.
            run: the iteration that asked.
            place: given the batch with looked-up rows still unwritten, returns the same batch in the memory where it
                is wanted; the rows are then written there, once.
        """
        positions = self.schedule.positions(epoch, index)
        subgraph = await self._sampler.sample(self._seeds[positions], self._seed_type, epoch=epoch, index=index)
        lookup = self._collector.start(wanted_rows(subgraph, self._stores))
        # Large torch.empty tensors are address space only: nothing is touched before place() moves them.
        unwritten = {name: torch.empty(spec.shape, dtype=spec.dtype) for name, spec in lookup.specs().items()}
        batch = place(assemble(run, epoch, index, self._seed_type, positions, subgraph, unwritten))
        await lookup.fill(rows_by_store(batch))
        return batch
