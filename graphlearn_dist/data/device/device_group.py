"""Groups of GPUs that hold one copy of something between them, and read each other's memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch

from ... import _C
from ...errors import InvalidArgumentError
from ...utils.device import gpu_number


@dataclass(frozen=True)
class DeviceGroup:
    """GPUs that hold one copy of the hot rows, or of the edges, between them, and read each other's memory."""

    group_id: int
    device_list: list[torch.device]

    @property
    def size(self) -> int:
        return len(self.device_list)


def usable_gpu(device: torch.device | str | int) -> int:
    """The number of the GPU that is named.

    Raises:
        InvalidArgumentError: no GPU is named, or one that is not there.
    """
    gpu, usable = gpu_number(device), _C.cuda_device_count()
    if gpu is None or gpu >= usable:
        raise InvalidArgumentError(f"device: GPU {gpu} was asked for, {usable} are usable")
    return gpu


def _named(gpu: torch.device | str | int) -> torch.device:
    return torch.device("cuda", gpu) if isinstance(gpu, int) else torch.device(gpu)


def gpus_by_group(groups: Sequence[DeviceGroup] | None) -> list[tuple[int, ...]]:
    """Numbers of the GPUs of each group."""
    return [tuple(_named(device).index or 0 for device in group.device_list) for group in groups or ()]


def groups_of_gpus(gpus: Sequence[Sequence[int]]) -> tuple[DeviceGroup, ...]:
    """Groups of the GPUs of these numbers: the inverse of ``gpus_by_group``."""
    return tuple(DeviceGroup(i, [torch.device("cuda", gpu) for gpu in group]) for i, group in enumerate(gpus))


def usable_groups(groups: Iterable[DeviceGroup] | None) -> tuple[DeviceGroup, ...]:
    """The groups as they were given; none for None.

    Raises:
        InvalidArgumentError: they are no groups of GPUs that this process may use, or a GPU is in one twice, or in two.
    """
    if groups is not None and not isinstance(groups, Iterable):
        raise InvalidArgumentError(f"device_group_list: expected a list of DeviceGroup, got {groups!r}")
    found = tuple(groups or ())
    for group in found:
        _check_usable(group)
    gpus = [gpu for group in gpus_by_group(found) for gpu in group]
    if len(set(gpus)) < len(gpus):
        raise InvalidArgumentError(f"device_group_list: expected each GPU once, got {gpus_by_group(found)}")
    return found


def _check_usable(group: DeviceGroup) -> None:
    if not isinstance(group, DeviceGroup) or isinstance(group.device_list, str) or not group.device_list:
        raise InvalidArgumentError(f"device_group_list: expected DeviceGroups, each with a list of GPUs, got {group!r}")
    for gpu in group.device_list:
        usable = _C.cuda_device_count()  # asked for here: no fork may come after CUDA
        try:
            device = _named(gpu)
        except (RuntimeError, TypeError):
            device = None
        if device is None or device.type != "cuda" or (device.index or 0) >= usable:
            raise InvalidArgumentError(
                f"device_group_list: expected GPUs, {usable} of them usable, got {device or gpu}"
            )


def group_of(
    gpu: int, groups: Sequence[Sequence[int]], can_access: Callable[[int, int], bool] | None = None
) -> tuple[int, ...]:
    """The GPUs that hold a copy for one of them: its group, or itself alone where there are no groups.

    Args:
        gpu: who reads.
        groups: GPUs of each group.
        can_access: whether one GPU can read the memory of another.

    Raises:
        InvalidArgumentError: it is in none of the groups, or cannot read the memory of one in its group.
    """
    if not groups:
        return (gpu,)
    for group in groups:
        if gpu not in group:
            continue
        blocked = [peer for peer in group if can_access is not None and not can_access(gpu, peer)]
        if blocked:
            raise InvalidArgumentError(f"device_group_list: GPU {gpu} cannot read the memory of {blocked} of its group")
        return tuple(group)
    raise InvalidArgumentError(f"device_group_list: GPU {gpu} reads, and is in none of {[list(g) for g in groups]}")
