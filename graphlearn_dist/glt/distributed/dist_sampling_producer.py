"""The names of ``graphlearn_torch.distributed.dist_sampling_producer``."""

from __future__ import annotations

from ...distributed.dist_sampling_producer import (
    MP_STATUS_CHECK_INTERVAL,
    DistCollocatedSamplingProducer,
    DistMpSamplingProducer,
    MpCommand,
)

__all__ = [
    "MP_STATUS_CHECK_INTERVAL",
    "DistCollocatedSamplingProducer",
    "DistMpSamplingProducer",
    "MpCommand",
]
