"""Producers as ``graphlearn_torch.distributed.dist_sampling_producer`` has them: batches are sample messages."""

from __future__ import annotations

from typing import Any

from ...distributed import dist_sampling_producer
from ...distributed.dist_sampling_producer import MP_STATUS_CHECK_INTERVAL, MpCommand
from ...messages import SampledBatch, WorkerFailure
from ..channel.sample_message import to_sample_message

__all__ = [
    "MP_STATUS_CHECK_INTERVAL",
    "DistCollocatedSamplingProducer",
    "DistMpSamplingProducer",
    "MpCommand",
]


class DistMpSamplingProducer(dist_sampling_producer.DistMpSamplingProducer):
    """``graphlearn_dist.distributed.DistMpSamplingProducer``, whose channel gets sample messages."""

    def _send(self, item: SampledBatch | WorkerFailure) -> bool:
        if isinstance(item, WorkerFailure):
            return super()._send(item)
        data, *_ = self._arguments
        return super()._send(to_sample_message(item, data.schema))  # type: ignore[arg-type]


class DistCollocatedSamplingProducer(dist_sampling_producer.DistCollocatedSamplingProducer):
    """``graphlearn_dist.distributed.DistCollocatedSamplingProducer``, which gives sample messages."""

    def sample(self) -> Any:
        """The message of the next batch of the epoch; raises as the base class does."""
        data, *_ = self._arguments
        return to_sample_message(super().sample(), data.schema)
