"""A sampler over partitions that a program calls itself."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any, Literal

import torch

from ..channel.base import ChannelBase
from ..errors import ChannelTimeoutError, InvalidArgumentError, NotInitializedError
from ..messages import SampledBatch
from ..sampler.base import NodeSamplerInput, SamplingConfig, SamplingType
from ..sampler.inputs import resolve_input
from ..typing import NumNeighbors
from .batches import PartitionedSampler, place_in_pool
from .dist_dataset import DistDataset
from .dist_options import CollocatedDistSamplingWorkerOptions
from .event_loop import ConcurrentEventLoop
from .group_peers import open_peers
from .output_channel import SEND_WAIT_S, send_for
from .partition_service import PartitionService
from .worker_failure import describe_failure


class DistNeighborSampler(ConcurrentEventLoop):
    """Samples from a partitioned graph: the same as a local sampler does from the whole.

    ``start_loop`` comes before the first call, ``shutdown_loop`` after the last. Successive calls are successive
    batches of epoch 0: call ``n`` has the draws of batch ``n``, unless ``epoch`` and ``index`` are given.

    Args:
        data: this worker's partition.
        num_neighbors: fan-out per hop (-1: all neighbors), or a dict of such lists by edge type.
        with_edge: batches carry edge ids.
        with_neg: must be False; negative edges belong to link sampling.
        with_weight: sample by edge weight.
        edge_dir: sample ``"in"``- or ``"out"``-neighbors; must be what the partitions hold.
        collect_features: batches carry features and labels.
        channel: where batches go; None returns them.
        concurrency: calls with a channel that are under way at once; further ones wait.
        device: must be None or the CPU.
        seed: seed of all draws; 0 unless given.
        replace: sample with replacement.
        worker_options: threads, times, and where the other workers are.
    """

    def __init__(
        self,
        data: DistDataset,
        num_neighbors: NumNeighbors | None = None,
        with_edge: bool = False,
        with_neg: bool = False,
        with_weight: bool = False,
        edge_dir: Literal["in", "out"] = "out",
        collect_features: bool = False,
        channel: ChannelBase | None = None,
        concurrency: int = 1,
        device: torch.device | None = None,
        seed: int | None = None,
        *,
        replace: bool = False,
        worker_options: CollocatedDistSamplingWorkerOptions | None = None,
    ) -> None:
        super().__init__(concurrency)
        if device is not None and torch.device(device).type != "cpu":
            raise InvalidArgumentError(f"device: expected the CPU, got {device}")
        self._config = SamplingConfig(
            sampling_type=SamplingType.NODE,
            num_neighbors=num_neighbors,
            batch_size=1,
            shuffle=False,
            drop_last=False,
            with_edge=with_edge,
            collect_features=collect_features,
            with_neg=with_neg,
            with_weight=with_weight,
            edge_dir=edge_dir,
            seed=0 if seed is None else seed,
            replace=replace,
        )
        self._data = data
        self._channel = channel
        self._options = worker_options or CollocatedDistSamplingWorkerOptions()
        self._calls = itertools.count()
        self._sampler: PartitionedSampler | None = None

    def start_loop(self) -> None:
        """Finds the other workers, and starts the thread that samples. Idempotent.

        Raises:
            InvalidArgumentError: the arguments do not fit the data set.
            NotInitializedError: other partitions are needed, and this process is no worker.
            DeadlineExceededError: another worker did not come so far.
        """
        if self._sampler is None:
            peers = open_peers(self._data, self._options)
            threads = self._options.num_threads
            service = PartitionService(self._data, threads)
            self._sampler = PartitionedSampler(self._data, self._config, service, peers, threads)
        super().start_loop()

    def sample_from_nodes(self, inputs: NodeSamplerInput, **kwargs: Any) -> SampledBatch | None:
        """The multi-hop neighborhood of nodes.

        Args:
            inputs: int64 ``[num_seeds]``, global ids, and their type.
            **kwargs: ``epoch`` and ``index`` choose the draws.

        Returns:
            The batch; None with a channel, to which it goes when it is done, or a ``WorkerFailure`` in its place.

        Raises:
            NotInitializedError: before ``start_loop``.
            UnknownIdError: a seed is outside the graph.
            PeerLostError: a worker whose partition is needed is gone (without a channel).
        """
        if self._sampler is None:
            raise NotInitializedError("the sampler does not run: call start_loop() first")
        inputs = resolve_input(NodeSamplerInput.cast(inputs), self._data)
        epoch, index = kwargs.get("epoch", 0), kwargs["index"] if "index" in kwargs else next(self._calls)
        sampling = self._sampler.sample(
            inputs, torch.arange(len(inputs)), epoch=epoch, index=index, run=0, place=place_in_pool
        )
        if self._channel is None:
            return self.run_task(sampling, self._options.rpc_timeout)
        self.add_task(self._send(sampling, epoch, index))
        return None

    async def _send(self, sampling: Any, epoch: int, index: int) -> None:
        channel = self._channel
        if channel is None:
            raise NotInitializedError("channel: there is none")
        item: Any
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
