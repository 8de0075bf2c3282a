"""Groups of GPUs that hold one copy of something between them, and read each other's memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch

from ... import _C
from ...errors import InvalidArgumentError
from ...utils.device import gpu_number, number_of, parse_device
from ...utils.shown import shown


@dataclass(frozen=True)
class DeviceGroup:
    """GPUs that hold one copy of the hot rows, or of the edges, between them, and read each other's memory."""

    group_id: int
    device_list: list[torch.device]

    @property
    def size(self) -> int:
        return len(self.device_list)


def usable_gpu(device: torch.device | str | int, name: str = "device") -> int:
    """The number of the GPU that an argument names.

    Raises:
        InvalidArgumentError: no GPU is named, or one that is not there; the error begins with ``name``.
    """
    return number_of(parse_device(device, name, count=_C.cuda_device_count, takes_cpu=False)) or 0


def gpus_by_group(groups: Sequence[DeviceGroup] | None) -> list[tuple[int, ...]]:
    """Numbers of the GPUs of each group."""
    return [tuple(_number(device) for device in group.device_list) for group in groups or ()]


def _number(device: torch.device | str | int) -> int:
    return gpu_number(device, "device_group_list", must_be_there=False) or 0


def groups_of_gpus(gpus: Sequence[Sequence[int]]) -> tuple[DeviceGroup, ...]:
    """Groups of the GPUs of these numbers: the inverse of ``gpus_by_group``."""
    return tuple(DeviceGroup(i, [torch.device("cuda", gpu) for gpu in group]) for i, group in enumerate(gpus))


def usable_groups(groups: Iterable[DeviceGroup] | None, *, must_be_there: bool = True) -> tuple[DeviceGroup, ...]:
    """The groups as they were given; none for None.

    Args:
        groups: the groups.
        must_be_there: whether GPUs that are not there are refused.

    Raises:
        InvalidArgumentError: they are no groups of GPUs that this process may use, or a GPU is in one twice, or in two.
    """
    if groups is not None and not isinstance(groups, Iterable):
        raise InvalidArgumentError(f"device_group_list: expected a list of DeviceGroup, got {shown(groups)}")
    found = tuple(groups or ())
    for group in found:
        _check_group(group, must_be_there)
    gpus = [gpu for group in gpus_by_group(found) for gpu in group]
    if len(set(gpus)) < len(gpus):
        raise InvalidArgumentError(f"device_group_list: expected each GPU once, got {gpus_by_group(found)}")
    return found


def _check_group(group: DeviceGroup, must_be_there: bool) -> None:
    if not isinstance(group, DeviceGroup) or isinstance(group.device_list, str) or not group.device_list:
        raise InvalidArgumentError(
            f"device_group_list: expected DeviceGroups, each with a list of GPUs, got {shown(group)}"
        )
    for gpu in group.device_list:
        parse_device(gpu, "device_group_list", count=_C.cuda_device_count, takes_cpu=False, must_be_there=must_be_there)


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
