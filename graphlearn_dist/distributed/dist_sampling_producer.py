"""Producers that a program drives itself; loaders do it for those that do not."""

from __future__ import annotations

import threading
from enum import Enum

import torch

from ..channel.base import ChannelBase
from ..channel.output_channel import SEND_WAIT_S, send_for
from ..errors import ChannelClosedError, ChannelTimeoutError, InvalidArgumentError, NotInitializedError
from ..messages import EndOfEpoch, SampledBatch, WorkerFailure
from ..sampler.base import NodeSamplerInput, RemoteSamplerInput, SamplingConfig
from ..sampler.epochs.schedule import BatchIndices
from ..utils.device import parse_device
from .dist_dataset import DistDataset
from .dist_options import CollocatedDistSamplingWorkerOptions, MpDistSamplingWorkerOptions
from .producers.local_producers import CollocatedProducer, MpProducer
from .workers.worker_failure import describe_failure

MP_STATUS_CHECK_INTERVAL = 5.0


class MpCommand(Enum):
    """What GraphLearn-for-PyTorch tells a sampling subprocess; here ``worker_messages`` are what it is told."""

    SAMPLE_ALL = 0
    STOP = 1


class DistMpSamplingProducer:
    """Samples in subprocesses, and sends what they make to a channel.

    The channel gets a ``SampledBatch`` for each batch of an epoch, in order, or a ``WorkerFailure`` after which nothing
    follows. Each ``produce_all`` is the next epoch, from 0.

    Args:
        data: this worker's partition.
        sampler_input: the input nodes.
        sampling_config: how to sample.
        worker_options: processes, memory, and where the other workers are.
        output_channel: where batches go; a ``ShmChannel`` with room for one at least.
    """

    def __init__(
        self,
        data: DistDataset,
        sampler_input: NodeSamplerInput | RemoteSamplerInput,
        sampling_config: SamplingConfig,
        worker_options: MpDistSamplingWorkerOptions,
        output_channel: ChannelBase,
    ) -> None:
        if not isinstance(worker_options, MpDistSamplingWorkerOptions):
            raise InvalidArgumentError(
                f"worker_options: expected MpDistSamplingWorkerOptions, got {type(worker_options).__name__}"
            )
        self._arguments = data, sampler_input, sampling_config, worker_options
        self._channel = output_channel
        self._producer: MpProducer | None = None
        self._thread: threading.Thread | None = None
        self._stopping = threading.Event()
        self._epoch = -1
        self._num_sent = 0

    def init(self) -> None:
        """Starts the subprocesses. Raises as ``MpProducer`` does."""
        if self._producer is None:
            self._producer = MpProducer(*self._arguments)

    def _running(self) -> MpProducer:
        if self._producer is None:
            raise NotInitializedError("the producer does not run: call init() first")
        return self._producer

    def produce_all(self) -> None:
        """Begins the next epoch, and returns; what is left of the last one is not sent any more.

        Raises:
            NotInitializedError: before ``init`` or after ``shutdown``.
            SamplingWorkerError: a subprocess died.
        """
        producer = self._running()
        self._end_sending()
        self._epoch += 1
        self._num_sent = 0
        producer.start(self._epoch + 1, self._epoch, BatchIndices(0, producer.num_batches))
        self._thread = threading.Thread(target=self._send_all, args=(producer,), name="sampling producer", daemon=True)
        self._thread.start()

    def _send_all(self, producer: MpProducer) -> None:
        item: SampledBatch | EndOfEpoch | WorkerFailure
        while not self._stopping.is_set():
            try:
                item = producer.recv()
            except ChannelClosedError:
                return
            except Exception as error:  # whoever reads the channel is told
                item = describe_failure("producer", "produce_all", error, self._epoch + 1, self._epoch, self._num_sent)
            if isinstance(item, EndOfEpoch) or not self._send(item) or isinstance(item, WorkerFailure):
                return
            self._num_sent += 1

    def _send(self, item: SampledBatch | WorkerFailure) -> bool:
        """Whether the item was sent, and not the epoch ended meanwhile."""
        while not self._stopping.is_set():
            try:
                send_for(self._channel, item, SEND_WAIT_S)
            except ChannelTimeoutError:
                continue  # full: its reader is busy
            except ChannelClosedError:
                return False
            return True
        return False

    def _end_sending(self) -> None:
        thread, self._thread = self._thread, None
        if thread is not None:
            self._stopping.set()
            thread.join()
            self._stopping.clear()

    def is_all_sampling_completed(self) -> bool:
        """Whether every batch of the epoch has been sent."""
        return self._epoch >= 0 and self._num_sent == self._running().num_batches

    def is_all_sampling_completed_and_consumed(self) -> bool:
        """Whether every batch of the epoch has been sent, and received."""
        empty: bool = self._channel.empty()  # type: ignore[attr-defined]  # every bounded channel has it
        return self.is_all_sampling_completed() and empty

    def shutdown(self) -> None:
        """Ends the subprocesses. Idempotent."""
        producer, self._producer = self._producer, None
        if producer is not None:
            self._stopping.set()
            producer.close()
            self._end_sending()


class DistCollocatedSamplingProducer:
    """Samples in this process, one batch for each call.

    Args:
        data: this worker's partition.
        sampler_input: the input nodes.
        sampling_config: how to sample.
        worker_options: threads, times, and where the other workers are.
        device: must be None or the CPU.
    """

    def __init__(
        self,
        data: DistDataset,
        sampler_input: NodeSamplerInput | RemoteSamplerInput,
        sampling_config: SamplingConfig,
        worker_options: CollocatedDistSamplingWorkerOptions | None = None,
        device: torch.device | None = None,
    ) -> None:
        if device is not None and parse_device(device, must_be_there=False).type != "cpu":
            raise InvalidArgumentError(f"device: expected the CPU, got {device}; a loader moves batches (to_device)")
        self._arguments = data, sampler_input, sampling_config, worker_options or CollocatedDistSamplingWorkerOptions()
        self._producer: CollocatedProducer | None = None
        self._epoch = -1

    def init(self) -> None:
        """Finds the other workers, and begins epoch 0. Raises as ``CollocatedProducer`` does."""
        if self._producer is None:
            self._producer = CollocatedProducer(*self._arguments)
            self.reset()

    def _running(self) -> CollocatedProducer:
        if self._producer is None:
            raise NotInitializedError("the producer does not run: call init() first")
        return self._producer

    def reset(self) -> None:
        """Begins the next epoch."""
        producer = self._running()
        self._epoch += 1
        producer.start(self._epoch + 1, self._epoch, BatchIndices(0, producer.num_batches))

    def sample(self) -> SampledBatch:
        """The next batch of the epoch.

        Raises:
            StopIteration: that was all.
            PeerLostError: a worker whose partition is needed is gone.
        """
        item = self._running().recv()
        if isinstance(item, EndOfEpoch):
            raise StopIteration
        return item

    def shutdown(self) -> None:
        """Ends it. Idempotent."""
        producer, self._producer = self._producer, None
        if producer is not None:
            producer.close()
