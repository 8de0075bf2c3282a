"""Whole mini-batches from a data set held in this process: seeds, sampling and lookup for one (epoch, index)."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from dataclasses import replace
from time import perf_counter_ns
from typing import Any

import torch

from ..data.dataset import Dataset
from ..data.device.deferred_gathers import DeferredGathers
from ..data.device.device_rows import DeviceRows
from ..data.disk_tier import Announced
from ..data.feature import Feature, counts_of_caches
from ..data.schema import NODE_LABEL
from ..errors import InvalidArgumentError
from ..messages import SampledBatch
from ..telemetry import BatchCounts, DeviceCacheCounts
from ..telemetry.trace import trace_stages
from ..utils.coroutines import run_local
from .base import EdgeSamplerInput, NodeSamplerInput, SamplingConfig, SamplingType
from .batch_maker import BatchMaker, make_schedule, wanted_rows, with_rows
from .device.device_graph import DeviceGraph, device_of
from .epochs.foresight import SampledAhead
from .epochs.locality import order_of_seeds
from .inputs import check_direction
from .local_graph import LocalGraph
from .num_samples import samples_by_type
from .plan import Draw, SamplingPlan, build_plan
from .strategies import STRATEGIES, TEMPORAL_STRATEGIES
from .tasks import GraphAccess

__all__ = ["LocalBatches", "make_plan", "make_schedule", "resolve_draws", "whole_graph", "with_own_times"]


def make_plan(dataset: Dataset, config: SamplingConfig) -> SamplingPlan:
    """Resolves a config against a data set.

    Raises:
        InvalidArgumentError: fan-outs and edge types, or samples and node types, do not match, weights or times are
            asked for and no edge type has any, or the data set holds the other neighbors; the error names the argument.
    """
    check_direction(dataset.schema, config.edge_dir)
    plan = build_plan(
        dataset.schema,
        config.num_neighbors,
        optional=config.sampling_type in (SamplingType.SUBGRAPH, SamplingType.HGT),
        draws=resolve_draws(dataset, config),
        disjoint=config.is_disjoint,
        with_edge_ids=config.with_edge
        or (config.collect_features and bool(dataset.edge_features is not None or dataset.edge_attrs)),
        seed=config.seed,
    )
    if config.num_samples is None:
        return plan
    # A neighbor's budget is how likely it is to be the one that a node draws.
    num_iterations = len(samples_by_type(dataset.schema, config.num_samples)[0])
    return replace(plan, likely_fanouts=((1,) * len(dataset.schema.edge_types),) * num_iterations)


def with_own_times(
    config: SamplingConfig, sampler_input: NodeSamplerInput | EdgeSamplerInput, dataset: Dataset
) -> SamplingConfig:
    """The config for seeds of which it is known now whether they have times: nodes without have their own, as in PyG.

    Raises:
        InvalidArgumentError: the data set has times and the seeds have none; or the last neighbors are asked for, and
            it has none.
    """
    if config.own_times is None or sampler_input.time is not None or config.sampling_type is SamplingType.SUBGRAPH:
        return config
    has_times = any(graph.topo.edge_times is not None for graph in dataset.graphs().values())
    if not has_times:
        if config.own_times == "last":
            raise InvalidArgumentError("temporal_strategy: 'last' expects a data set with times, got one without")
        return config
    remedy = "or temporal_strategy=None to sample whatever the time"
    if isinstance(sampler_input, EdgeSamplerInput):
        raise InvalidArgumentError(f"edge_label_time: expected times of the links, as the data set has times; {remedy}")
    node_type = sampler_input.input_type
    if node_type not in dataset.node_times and node_type not in dataset.earliest_nodes:
        typed = "" if node_type is None else f" of type {node_type!r}"
        raise InvalidArgumentError(
            f"input_time: expected times of the seeds, as the data set has times and nodes{typed} have none; {remedy}"
        )
    return replace(config, temporal_strategy=config.own_times)


def resolve_draws(dataset: Dataset, config: SamplingConfig) -> list[Draw]:
    """How neighbors are drawn along each edge type of the schema."""
    graphs = dataset.graphs()
    topologies = [graphs[edge_type].topo for edge_type in dataset.schema.edge_types]
    have_weights = [topo.edge_weights is not None for topo in topologies]
    have_times = [topo.edge_times is not None for topo in topologies]
    if config.with_weight and not any(have_weights):
        raise InvalidArgumentError("with_weight: expected edge weights in the data set, which has none")
    strategy = STRATEGIES[config.strategy]
    if strategy.method.reads_weights and not any(have_weights):
        raise InvalidArgumentError(
            f"strategy: {config.strategy!r} expected edge weights in the data set, which has none"
        )
    if config.temporal_strategy is not None and not any(have_times):
        raise InvalidArgumentError("input_time: expected edge times in the data set, which has none")
    rule = "ignore" if config.temporal_strategy is None else TEMPORAL_STRATEGIES[config.temporal_strategy]
    return [
        Draw(
            method=strategy.method_for(with_weight=config.with_weight, has_weights=has_weights).name,
            replace=config.replace,
            times=rule if has_times else "ignore",
        )
        for has_weights, has_times in zip(have_weights, have_times, strict=True)
    ]


def whole_graph(dataset: Dataset, plan: SamplingPlan, num_threads: int) -> GraphAccess:
    """A graph that is held whole, as loaders sample it: on the GPU that its graphs are given, else on the CPU."""
    device = device_of(dataset)
    if device is None:
        return LocalGraph(dataset, plan, num_threads)
    graphs = dataset.graphs()
    topologies = [graphs[edge_type].on_device() for edge_type in plan.schema.edge_types]
    return DeviceGraph(plan, topologies, device, dataset.node_times)


def rows_on(device: torch.device, stores: Mapping[str, Feature]) -> dict[str, tuple[DeviceRows, torch.dtype]]:
    """The rows that are gathered by the GPU that makes the batches, with the dtype they are given in.

    These are features that were given to it, and labels, which are few bytes a node.
    """
    labels = f"{NODE_LABEL}:"
    found = {name: store.for_batches_on(device, pin=name.startswith(labels)) for name, store in stores.items()}
    return {name: (rows, stores[name].out_dtype) for name, rows in found.items() if rows is not None}


# A batch without its rows, when it was begun, and when it was sampled; a named tuple takes ten times as long to make.
_Timed = tuple[SampledBatch, int, int]


def _timed(making: Coroutine[Any, Any, SampledBatch]) -> _Timed:
    begun = perf_counter_ns()
    batch = run_local(making)
    return batch, begun, perf_counter_ns()


class LocalBatches:
    """The batches of one loader, computed in this process; safe to call from several threads at once.

    Args:
        dataset: graph and features, held whole.
        sampler_input: the loader's input nodes or links.
        config: how to sample.
        num_threads: threads of one batch, its rows included; a batch does not depend on them.

    Attributes:
        counts: of the batches that were made.
        schedule: which seeds they have.
        uses_gpu: whether a GPU samples or gathers.
    """

    def __init__(
        self,
        dataset: Dataset,
        sampler_input: NodeSamplerInput | EdgeSamplerInput,
        config: SamplingConfig,
        num_threads: int = 1,
    ) -> None:
        graph, device = whole_graph(dataset, make_plan(dataset, config), num_threads), device_of(dataset)
        near = order_of_seeds(config, sampler_input, dataset)
        self.counts = BatchCounts()
        self._maker = BatchMaker(
            graph, dataset.schema, sampler_input, config, near, self.counts, num_threads=num_threads
        )
        self.schedule = self._maker.schedule
        self._stores = dataset.stores() if config.collect_features else {}
        self._store_names = frozenset(self._stores)
        self._gathers = None if device is None else DeferredGathers(rows_on(device, self._stores), device)
        self._num_threads = num_threads
        self.uses_gpu = self._gathers is not None or any(store.gathers_on_gpu for store in self._stores.values())

    def sample(self, epoch: int, index: int, run: int = 0) -> SampledBatch:
        """As ``make``, without the rows that are looked up."""
        return run_local(self._maker.make(epoch, index, run))

    def make(self, epoch: int, index: int, run: int = 0) -> SampledBatch:
        """Batch ``index`` of ``epoch``: a pure function of the two, of the data set and of the config."""
        return self._made(self._maker.make(epoch, index, run))

    def make_of(self, positions: torch.Tensor, epoch: int, index: int) -> SampledBatch:
        """The batch of the seeds at some positions of the input, with the draws of (epoch, index)."""
        return self._made(self._maker.make_of(positions, epoch, index))

    def ahead(
        self, named: Callable[[int], tuple[torch.Tensor, int, int]], count: int
    ) -> SampledAhead[_Timed, SampledBatch]:
        """The batches of one pass, sampled some places ahead and announced to those who read rows from disk.

        Args:
            named: by place, the arguments of ``make_of``.
            count: how many there are.
        """
        return SampledAhead(
            lambda place: _timed(self._maker.make_of(*named(place))), self._announce, self._filled, count
        )

    @property
    def device_cache(self) -> DeviceCacheCounts | None:
        """Of the rows that it looks up; None without such caches. Waits for the GPUs."""
        return counts_of_caches(self._stores)

    @property
    def reads_disk(self) -> bool:
        """Whether rows are read from files, past their mappings."""
        return any(store.disk_tier is not None for store in self._stores.values())

    def _announce(self, timed: _Timed) -> Announced:
        wanted = wanted_rows(timed[0], self._store_names).items()
        found = ((self._stores[name], ids) for name, ids in wanted)
        return Announced(
            (store.disk_tier, store.rows_of(ids.cpu())) for store, ids in found if store.disk_tier is not None
        )

    def _made(self, making: Coroutine[Any, Any, SampledBatch]) -> SampledBatch:
        return self._filled(_timed(making))

    def _filled(self, timed: _Timed) -> SampledBatch:
        batch, begun, sampled = timed
        asked = perf_counter_ns()
        rows = self._rows_of(batch)
        self.counts.add([(batch, rows)], sampled - begun, perf_counter_ns() - asked)
        trace_stages(begun, sampled)
        return with_rows(batch, rows)

    def _rows_of(self, batch: SampledBatch) -> dict[str, torch.Tensor]:
        wanted = wanted_rows(batch, self._store_names)
        found: dict[str, torch.Tensor] = {}
        if self._gathers is not None:
            found = self._gathers.gather(wanted, f"batch {batch.index} of epoch {batch.epoch}")
        for name, ids in wanted.items():
            if name not in found:
                found[name] = self._stores[name].gather(ids, num_threads=self._num_threads)
        return found

    def check(self, *, wait: bool = True) -> None:
        """Raises what is wrong with rows of batches that a GPU makes, of which the host hears later.

        Args:
            wait: for all of them; else only what the GPU is past is looked at.

        Raises:
            UnknownIdError: a node or edge of a batch has no row. It is told once.
        """
        if self._gathers is not None:
            self._gathers.check(wait=wait)
