"""Which device a worker uses."""

from __future__ import annotations

import functools
import warnings

import torch

from ..errors import InvalidArgumentError


def get_available_device(device: torch.device | str | None = None) -> torch.device:
    """The device asked for; without one, the current GPU where there is any, else the CPU.

    Raises:
        InvalidArgumentError: a GPU that is not there.
    """
    if device is None:
        return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")
    try:
        device = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise InvalidArgumentError(f"device: expected a device of torch or None, got {device!r}") from error
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise InvalidArgumentError(f"device: {device} was asked for, {torch.cuda.device_count()} GPUs are usable")
    return device


def gpu_number(device: torch.device | str | int | None) -> int | None:
    """The number of the GPU that is named, whether it is there or not; None where none is, or the CPU."""
    if device is None or isinstance(device, int):
        return device
    named = torch.device(device)
    if named.type != "cuda":
        return None
    return torch.cuda.current_device() if named.index is None else named.index


def assign_device() -> torch.device:
    """A GPU for this process, in turn by the rank of its worker; the CPU where there is none."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    ready = torch.distributed.is_available() and torch.distributed.is_initialized()
    rank = torch.distributed.get_rank() if ready else 0
    return torch.device("cuda", rank % torch.cuda.device_count())


def ensure_device(device: torch.device | str | None) -> None:
    """Makes a GPU the current one; does nothing for the CPU and for None."""
    if device is not None and torch.device(device).type == "cuda":
        torch.cuda.set_device(get_available_device(device))


@functools.cache
def can_pin() -> bool:
    """Whether there is a GPU to lock pages of host memory for. Where there is none, a warning says so, once a process:
    ``pin_memory`` changes nothing then, as with torch's ``DataLoader``."""
    if not torch.cuda.is_available():
        warnings.warn("pin_memory: torch sees no CUDA device on this host; memory is not page-locked", stacklevel=3)
        return False
    return True


def device_number(device: torch.device) -> int:
    """The device as the core numbers it: -1 is the host."""
    if device.type == "cpu":
        return -1
    return torch.cuda.current_device() if device.index is None else device.index


def wait_for_stream(device: torch.device | None) -> None:
    """Waits until a GPU has done what the caller's current stream was given; at once without one."""
    if device is not None and device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()
