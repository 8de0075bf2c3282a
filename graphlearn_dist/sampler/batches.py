"""Whole mini-batches from a data set held in this process: seeds, sampling and lookup for one (epoch, index)."""

from __future__ import annotations

from collections.abc import Callable

import torch

from ..data.dataset import EDGE_FEATURE, NODE_FEATURE, NODE_LABEL, Dataset, by_type, store_name
from ..messages import SampledBatch, Subgraph
from .base import NodeSamplerInput, SamplingConfig
from .inputs import check_direction
from .neighbor_sampler import SubgraphSampler
from .plan import Draw, SamplingPlan, build_plan
from .schedule import SeedSchedule

Lookup = Callable[[str, torch.Tensor], torch.Tensor]


def make_plan(dataset: Dataset, config: SamplingConfig) -> SamplingPlan:
    """Resolves a config against a data set; errors name the argument."""
    check_direction(dataset.schema, config.edge_dir)
    return build_plan(
        dataset.schema,
        config.num_neighbors,
        draws=[Draw(replace=config.replace)] * len(dataset.schema.edge_types),
        with_edge_ids=config.with_edge or (config.collect_features and dataset.edge_features is not None),
        seed=config.seed,
    )


def make_schedule(sampler_input: NodeSamplerInput, config: SamplingConfig) -> SeedSchedule:
    """The schedule of a loader."""
    return SeedSchedule(len(sampler_input), config.batch_size, config.shuffle, config.drop_last, config.seed)


def wanted_rows(subgraph: Subgraph, stores: frozenset[str]) -> dict[str, torch.Tensor]:
    """Which ids (int64) of which stores a batch needs."""
    wanted = {}
    for node_type, nodes in enumerate(subgraph.nodes):
        for kind in (NODE_FEATURE, NODE_LABEL):
            if (name := store_name(kind, node_type)) in stores:
                wanted[name] = nodes
    for edge_type, edge_ids in enumerate(subgraph.edge_ids):
        if edge_ids is not None and (name := store_name(EDGE_FEATURE, edge_type)) in stores:
            wanted[name] = edge_ids
    return wanted


def assemble(
    run: int,
    epoch: int,
    index: int,
    seed_type: int,
    positions: torch.Tensor,
    subgraph: Subgraph,
    rows: dict[str, torch.Tensor],
) -> SampledBatch:
    """Puts looked-up rows (by store name) beside the subgraph they belong to."""
    num_node_types, num_edge_types = len(subgraph.nodes), len(subgraph.rows)
    return SampledBatch(
        run=run,
        epoch=epoch,
        index=index,
        seed_type=seed_type,
        input_positions=positions,
        subgraph=subgraph,
        node_features=tuple(rows.get(store_name(NODE_FEATURE, i)) for i in range(num_node_types)),
        node_labels=tuple(rows.get(store_name(NODE_LABEL, i)) for i in range(num_node_types)),
        edge_features=tuple(rows.get(store_name(EDGE_FEATURE, i)) for i in range(num_edge_types)),
    )


class LocalBatches:
    """The batches of one loader, computed in this process.

    Args:
        dataset: graph and features, held whole.
        sampler_input: the loader's input nodes.
        config: how to sample.
        num_threads: threads of one batch; a batch does not depend on them.
    """

    def __init__(
        self, dataset: Dataset, sampler_input: NodeSamplerInput, config: SamplingConfig, num_threads: int = 1
    ) -> None:
        self.schedule = make_schedule(sampler_input, config)
        self._seeds = sampler_input.node
        self._seed_type = dataset.schema.node_type_index(sampler_input.input_type, "input_nodes")
        plan = make_plan(dataset, config)
        graphs = by_type(dataset.graph)
        ordered = [graphs[edge_type] for edge_type in plan.schema.edge_types]
        self._sampler = SubgraphSampler(ordered, plan, num_threads)
        self._stores = dataset.stores() if config.collect_features else {}

    def make(self, epoch: int, index: int, run: int = 0) -> SampledBatch:
        """Batch ``index`` of ``epoch``: a pure function of the two, of the data set and of the config."""
        positions = self.schedule.positions(epoch, index)
        subgraph = self._sampler.sample(self._seeds[positions], self._seed_type, epoch=epoch, index=index)
        wanted = wanted_rows(subgraph, frozenset(self._stores))
        rows = {name: self._stores[name][ids] for name, ids in wanted.items()}
        return assemble(run, epoch, index, self._seed_type, positions, subgraph, rows)
