"""The names of ``graphlearn_torch.data.feature``."""

from __future__ import annotations

from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch

from ... import _C
from ...data import feature
from ...data.device.device_group import DeviceGroup
from ...utils.device import gpu_number
from ...utils.no_effect import warn_no_effect


class Feature(feature.Feature):
    """Rows by id, see ``graphlearn_dist.data.Feature``; where no GPU is usable, ``split_ratio`` is without effect."""

    def __init__(
        self,
        feature_tensor: Any,
        id2index: Any = None,
        split_ratio: float = 0.0,
        device_group_list: list[DeviceGroup] | None = None,
        device: torch.device | str | int | None = None,
        with_gpu: bool | None = True,
        dtype: torch.dtype | None = torch.float32,
        num_threads: int = 1,
        **others: Any,
    ) -> None:
        # A device is named by somebody who expects it there; a share of the rows comes with the program.
        if (
            split_ratio > 0
            and gpu_number(device, must_be_there=False) is None
            and with_gpu is not False
            and not _C.cuda_device_count()
        ):
            warn_no_effect("split_ratio", "no GPU is usable, the host keeps all rows")
            with_gpu = False
        super().__init__(
            feature_tensor, id2index, split_ratio, device_group_list, device, with_gpu, dtype, num_threads, **others
        )


def rebuild_feature(ipc_handle: Any) -> Feature:
    """The feature that ``reduce_feature`` described."""
    rebuilt = Feature.from_ipc_handle(ipc_handle)
    assert isinstance(rebuilt, Feature)
    return rebuilt


def reduce_feature(feature: Feature) -> tuple[Any, ...]:
    """How a feature goes to another process through ``multiprocessing``: as a handle to the same rows."""
    return rebuild_feature, (feature.share_ipc(),)


ForkingPickler.register(Feature, reduce_feature)

__all__ = [
    "DeviceGroup",
    "Feature",
    "rebuild_feature",
    "reduce_feature",
]
