"""The names of ``graphlearn_torch.distributed.dist_feature``."""

from __future__ import annotations

from ...distributed.dist_feature import DistFeature, PartialFeature, RpcFeatureLookupCallee

__all__ = [
    "DistFeature",
    "PartialFeature",
    "RpcFeatureLookupCallee",
]
