"""The names of ``graphlearn_torch.data.feature``."""

from __future__ import annotations

from ...data.feature import DeviceGroup, Feature, rebuild_feature, reduce_feature

__all__ = [
    "DeviceGroup",
    "Feature",
    "rebuild_feature",
    "reduce_feature",
]
