"""A sampler over partitions that a program calls itself."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch

from .. import _C
from ..channel.base import ChannelBase
from ..channel.output_channel import SEND_WAIT_S, send_for
from ..core import check_index_vector, thread_pool, to_optional_tensor, to_tensor
from ..errors import ChannelTimeoutError, InvalidArgumentError, NotInitializedError
from ..messages import SampledBatch, WorkerFailure
from ..sampler.base import EdgeSamplerInput, NodeSamplerInput, SamplingConfig, SamplingType
from ..sampler.batch_maker import BatchMaker
from ..sampler.importance import ImportanceOutput, ImportanceSettings, importance_of
from ..sampler.inputs import edge_type_index, resolve_input
from ..sampler.neighbor_sampler import NeighborSampler
from ..sampler.outputs import NeighborOutput
from ..sampler.plan import SamplingPlan
from ..sampler.ppr import PageRankOutput, pagerank_of, plan_of_all
from ..sampler.tasks import HostGraph
from ..sampler.walks import RandomWalks, WalkSettings, walk_plan
from ..typing import EdgeType, NumNeighbors
from ..utils.device import parse_device
from ..utils.values import check_callable
from .dist_dataset import DistDataset
from .dist_options import CollocatedDistSamplingWorkerOptions
from .event_loop import ConcurrentEventLoop
from .partitions.partition_peers import EndpointPeers
from .rpc import RpcCalleeBase
from .sampling.batches import NoPeers, PartitionedSampler
from .session.group_peers import find_holders, open_peers
from .workers.worker_failure import describe_failure


@dataclass(frozen=True)
class PartialNeighborOutput:
    """One hop of those seeds that one partition owns.

    Attributes:
        index: int64 ``[n]``, where each of them stands among all seeds.
        output: their neighbors, in the order of ``index``.
    """

    index: torch.Tensor
    output: NeighborOutput


def stitch_outputs(parts: Sequence[PartialNeighborOutput]) -> NeighborOutput:
    """One hop of all seeds, in their order, of the parts that their owners gave.

    Raises:
        InvalidArgumentError: the parts do not have each seed once, or only some of them have edge ids.
    """
    positions = torch.cat([part.index for part in parts]) if parts else torch.empty(0, dtype=torch.int64)
    if not torch.equal(positions.sort().values, torch.arange(positions.numel())):
        raise InvalidArgumentError(f"parts: expected each of {positions.numel()} seeds once, got {positions.tolist()}")
    if len({part.output.edge is None for part in parts}) > 1:
        raise InvalidArgumentError("parts: expected edge ids in all of them or in none")
    offsets = torch.tensor([0, *itertools.accumulate(part.index.numel() for part in parts)])
    arrays = [(part.output.nbr_num, part.output.nbr, part.output.edge) for part in parts]
    counts, neighbors, edge_ids = _C.stitch_neighbors(positions, offsets, arrays, thread_pool(1))
    return NeighborOutput(to_tensor(neighbors), to_tensor(counts), to_optional_tensor(edge_ids))


class _SamplerCallee(RpcCalleeBase):
    """Answers other workers from the graph at hand; register it with ``rpc_register``.

    Args:
        sampler: of this partition's graph, or of a whole one.
        device: must be None or the CPU.
    """

    def __init__(self, sampler: NeighborSampler, device: torch.device | None = None) -> None:
        self.sampler, self.device = sampler, _on_host(device)


class RpcSamplingCallee(_SamplerCallee):
    """Answers with one hop."""

    def call(self, *args: Any, **kwargs: Any) -> NeighborOutput:
        """The neighbors of seeds of this partition; arguments as of ``NeighborSampler.sample_one_hop``."""
        return self.sampler.sample_one_hop(*args, **kwargs).to(self.device)


class RpcSubGraphCallee(_SamplerCallee):
    """Answers with the edges among nodes."""

    def call(self, *args: Any, **kwargs: Any) -> tuple[Any, Any, Any, Any]:
        """(nodes, rows, cols, edge ids or None); arguments and values as of ``SubGraphOp.node_subgraph``."""
        return tuple(self.sampler.subgraph_op.node_subgraph(*args, **kwargs))


def _on_host(device: torch.device | None) -> torch.device:
    if device is not None and parse_device(device, must_be_there=False).type != "cpu":
        raise InvalidArgumentError(f"device: expected the CPU, got {device}")
    return torch.device("cpu")


class DistNeighborSampler(ConcurrentEventLoop):
    """Samples from a partitioned graph: the same as a local sampler does from the whole.

    ``start_loop`` comes before the first call, ``shutdown_loop`` after the last. Successive calls are successive
    batches of epoch 0: call ``n`` has the draws of batch ``n``, unless ``epoch`` and ``index`` are given.

    Args:
        data: this worker's partition.
        num_neighbors: fan-out per hop (-1: all neighbors, 0: none), or a dict of such lists by edge type.
        with_edge: batches carry edge ids.
        with_neg: not used: links say themselves which negatives are drawn for them.
        with_weight: sample by edge weight.
        edge_dir: sample ``"in"``- or ``"out"``-neighbors, which must be what the partitions hold; None samples those.
        collect_features: batches carry features and labels.
        channel: where batches go; None returns them.
        concurrency: calls with a channel that are under way at once; further ones wait.
        device: must be None or the CPU.
        seed: seed of all draws; 0 unless given.
        replace: sample with replacement.
        strategy: ``"random"``, or another name of ``sampler.strategies.STRATEGIES``; see ``docs/sampling.md``.
        disjoint: every seed grows a tree of its own.
        temporal_strategy: ``"uniform"`` or ``"last"`` where seeds have times.
        worker_options: threads, times, and where the other workers are.
        collect_labels: batches carry labels, without ``collect_features`` too.
    """

    def __init__(
        self,
        data: DistDataset,
        num_neighbors: NumNeighbors | None = None,
        with_edge: bool = False,
        with_neg: bool = False,
        with_weight: bool = False,
        edge_dir: Literal["in", "out"] | None = None,
        collect_features: bool = False,
        channel: ChannelBase | None = None,
        concurrency: int = 1,
        device: torch.device | None = None,
        seed: int | None = None,
        *,
        replace: bool = False,
        strategy: str = "random",
        disjoint: bool = False,
        temporal_strategy: str | None = None,
        worker_options: CollocatedDistSamplingWorkerOptions | None = None,
        collect_labels: bool = False,
    ) -> None:
        super().__init__(concurrency)
        _on_host(device)
        self._config = SamplingConfig(
            sampling_type=SamplingType.NODE,
            num_neighbors=num_neighbors,
            batch_size=1,
            shuffle=False,
            drop_last=False,
            with_edge=with_edge,
            collect_features=collect_features,
            with_neg=False,
            with_weight=with_weight,
            edge_dir=edge_dir,
            seed=0 if seed is None else seed,
            replace=replace,
            strategy=strategy,
            disjoint=disjoint,
            temporal_strategy=temporal_strategy,
            collect_labels=collect_labels,
        )
        self._data = data
        self._channel = channel
        self._options = worker_options or CollocatedDistSamplingWorkerOptions()
        self._calls = itertools.count()
        self._sampler: PartitionedSampler | None = None
        self._peers: EndpointPeers | NoPeers | None = None

    def start_loop(self) -> None:
        """Finds the other workers, and starts the thread that samples. Idempotent.

        Raises:
            InvalidArgumentError: the arguments do not fit the data set.
            NotInitializedError: other partitions are needed, and this process is no worker.
            DeadlineExceededError: another worker did not come so far.
        """
        if self._sampler is None:
            holders = find_holders(self._data, self._options)
            services, self._peers = open_peers(self._data, self._options, holders)
            self._sampler = PartitionedSampler(
                self._data, self._config, services, self._peers, self._options.num_threads
            )
        super().start_loop()

    def shutdown_loop(self) -> None:
        """See ``ConcurrentEventLoop``; other workers are not asked any more."""
        try:
            super().shutdown_loop()
        finally:
            if self._peers is not None:
                self._peers.close()

    def sample_from_nodes(self, inputs: NodeSamplerInput, **kwargs: Any) -> SampledBatch | None:
        """The multi-hop neighborhood of nodes.

        Args:
            inputs: global ids, and their type.
            **kwargs: ``epoch`` and ``index`` choose the draws; ``callback`` is called with None, in the thread of the
                loop, when the channel has the batch, and not without a channel.

        Returns:
            The batch; None with a channel, to which it goes when it is done, or a ``WorkerFailure`` in its place.

        Raises:
            InvalidArgumentError: other keywords.
            NotInitializedError: before ``start_loop``.
            UnknownIdError: a seed is outside the graph.
            PeerLostError: a worker whose partition is needed is gone (without a channel).
        """
        return self._sample(NodeSamplerInput.cast(inputs), SamplingType.NODE, **kwargs)

    def sample_from_edges(self, inputs: EdgeSamplerInput, **kwargs: Any) -> SampledBatch | None:
        """The multi-hop neighborhood of the ends of links, and of negatives drawn for them; else as for nodes."""
        return self._sample(EdgeSamplerInput.cast(inputs), SamplingType.LINK, **kwargs)

    def subgraph(self, inputs: NodeSamplerInput, **kwargs: Any) -> SampledBatch | None:
        """All edges between nodes and their sampled neighborhood; else as ``sample_from_nodes``."""
        return self._sample(NodeSamplerInput.cast(inputs), SamplingType.SUBGRAPH, **kwargs)

    def random_walk(self, seeds: torch.Tensor, settings: WalkSettings, *, first: int = 0) -> torch.Tensor:
        """A random walk from each seed; see ``distributed.random_walk``, whose arguments the settings have.

        Raises:
            NotInitializedError: before ``start_loop``.
            InvalidArgumentError: settings that do not fit the data set.
            UnknownIdError: a seed is outside the graph.
            PeerLostError: a worker whose partition is needed is gone.
        """
        graph = self._graph(walk_plan(self._data, settings.with_weight, settings.seed))
        return self.run_task(RandomWalks(graph, settings).walk(seeds, first), self._options.rpc_timeout)

    def importance_neighbors(
        self, seeds: torch.Tensor, settings: ImportanceSettings, *, first: int = 0
    ) -> ImportanceOutput:
        """The neighbors that walks from each seed visit most often; see ``distributed.importance_neighbors``.

        Raises:
            NotInitializedError: before ``start_loop``.
            InvalidArgumentError: settings that do not fit the data set.
            UnknownIdError: a seed is outside the graph.
            PeerLostError: a worker whose partition is needed is gone.
        """
        graph = self._graph(walk_plan(self._data, settings.with_weight, settings.seed))
        asked = importance_of(graph, check_index_vector(seeds, "seeds").long(), settings, first)
        return self.run_task(asked, self._options.rpc_timeout)

    def personalized_pagerank(
        self,
        seeds: torch.Tensor,
        *,
        edge_type: EdgeType | None = None,
        alpha: float = 0.15,
        epsilon: float = 1e-4,
        top_k: int = 32,
    ) -> PageRankOutput:
        """The nodes that matter most to each seed; see ``distributed.personalized_pagerank``.

        Raises:
            NotInitializedError: before ``start_loop``.
            InvalidArgumentError: arguments that are not as said there.
            UnknownIdError: a seed is outside the graph.
            PeerLostError: a worker whose partition is needed is gone.
        """
        graph = self._graph(plan_of_all(self._data.schema))
        number = edge_type_index(self._data.schema, edge_type, "edge_type")
        threads = self._options.num_threads
        finding = pagerank_of(graph, number, seeds, alpha=alpha, epsilon=epsilon, top_k=top_k, num_threads=threads)
        return self.run_task(finding, self._options.rpc_timeout)

    def _graph(self, plan: SamplingPlan) -> HostGraph:
        if self._sampler is None:
            raise NotInitializedError("the sampler does not run: call start_loop() first")
        return self._sampler.graph_access(plan)

    def _sample(
        self,
        inputs: NodeSamplerInput | EdgeSamplerInput,
        kind: SamplingType,
        *,
        epoch: int = 0,
        index: int | None = None,
        callback: Callable[[None], None] | None = None,
        **others: Any,
    ) -> SampledBatch | None:
        if others:
            raise InvalidArgumentError(f"expected the keywords epoch, index and callback, got {sorted(others)}")
        check_callable("callback", callback)
        if self._sampler is None:
            raise NotInitializedError("the sampler does not run: call start_loop() first")
        inputs = resolve_input(inputs, self._data)
        has_negatives = isinstance(inputs, EdgeSamplerInput) and inputs.neg_sampling is not None
        maker = self._sampler.maker(inputs, replace(self._config, sampling_type=kind, with_neg=has_negatives))
        call = next(self._calls) if index is None else index
        sampling = self._make(self._sampler, maker, torch.arange(len(inputs)), epoch, call)
        if self._channel is None:
            return self.run_task(sampling, self._options.rpc_timeout)
        self.add_task(self._send(self._channel, sampling, epoch, call), callback)
        return None

    async def _make(
        self, sampler: PartitionedSampler, maker: BatchMaker, positions: torch.Tensor, epoch: int, index: int
    ) -> SampledBatch:
        return await sampler.fill(await maker.make_of(positions, epoch, index))

    @staticmethod
    async def _send(channel: ChannelBase, sampling: Coroutine[Any, Any, SampledBatch], epoch: int, index: int) -> None:
        item: SampledBatch | WorkerFailure
        try:
            item = await sampling
        except Exception as error:  # whoever reads the channel is told
            item = describe_failure("sampler", "sample", error, 0, epoch, index)
        loop = asyncio.get_running_loop()
        while True:  # in a thread: a full channel must not hold up what else is under way
            try:
                return await loop.run_in_executor(None, send_for, channel, item, SEND_WAIT_S)
            except ChannelTimeoutError:
                continue  # still full: its reader is busy
