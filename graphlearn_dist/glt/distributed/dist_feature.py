"""The names of ``graphlearn_torch.distributed.dist_feature``."""

from __future__ import annotations

from ...distributed import dist_feature
from ...distributed.dist_feature import PartialFeature, RpcFeatureLookupCallee


class DistFeature(dist_feature.DistFeature):
    """See ``graphlearn_dist.distributed.DistFeature``."""

    @property
    def data_cls(self) -> str:
        """``"homo"`` or ``"hetero"``."""
        return "hetero" if isinstance(self.local_feature, dict) else "homo"


__all__ = [
    "DistFeature",
    "PartialFeature",
    "RpcFeatureLookupCallee",
]
