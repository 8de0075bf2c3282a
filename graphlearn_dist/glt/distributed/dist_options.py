"""The names of ``graphlearn_torch.distributed.dist_options``."""

from __future__ import annotations

from ...distributed.dist_options import (
    AllDistSamplingWorkerOptions,
    CollocatedDistSamplingWorkerOptions,
    MpDistSamplingWorkerOptions,
    RemoteDistSamplingWorkerOptions,
)

__all__ = [
    "AllDistSamplingWorkerOptions",
    "CollocatedDistSamplingWorkerOptions",
    "MpDistSamplingWorkerOptions",
    "RemoteDistSamplingWorkerOptions",
]
