"""Which device a worker uses."""

from __future__ import annotations

import functools
import numbers
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, cast

import torch

from ..errors import InvalidArgumentError
from .shown import shown

_MAX_NUMBER = 127  # of a device of torch


def as_current(device: torch.device) -> AbstractContextManager[Any]:
    """Makes a GPU the current one of the calling thread in a ``with`` block; of the CPU device it is without effect.

    Torch sets back the one before when it is used: to do so at once would take memory on a GPU that nobody uses.
    """
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def parse_device(
    device: object,
    name: str = "device",
    *,
    count: Callable[[], int] | None = None,
    takes_cpu: bool = True,
    must_be_there: bool = True,
) -> torch.device:
    """The CPU or a GPU that an argument names: a GPU by its number, either as torch names it.

    Args:
        device: what was given.
        name: the argument, for errors.
        count: tells how many GPUs are usable; torch unless given. It is asked where a GPU is named, and not for the
            CPU: no fork may come after CUDA.
        takes_cpu: whether the CPU is a device that the argument may have.
        must_be_there: whether a GPU that is not there is refused.

    Returns:
        The device; a GPU has no number where it was given without, which is the current one.

    Raises:
        InvalidArgumentError: neither the CPU nor a GPU, or a GPU that is not there.
    """
    number, found = _number_and_device(device)
    is_known = found is not None and (found.type == "cuda" or takes_cpu)
    if is_known and (number is None or not must_be_there):
        return cast(torch.device, found)
    usable = torch.cuda.device_count() if count is None else count()
    if found is None or not is_known or (number or 0) >= usable:
        cpu = "'cpu' or " if takes_cpu else ""
        got = repr(str(device)) if isinstance(device, torch.device) else shown(device)
        raise InvalidArgumentError(
            f"{name}: expected {cpu}a GPU that is there, by its number or as 'cuda:0'; {usable} GPUs are usable, "
            f"got {got}"
        )
    return found


def _number_and_device(device: object) -> tuple[int | None, torch.device | None]:
    """The number of a GPU (None: the CPU), and the device; (None, None) of what is neither."""
    if isinstance(device, numbers.Integral) and not isinstance(device, bool):
        number = int(device)
        return (None, None) if number < 0 else (number, torch.device("cuda", min(number, _MAX_NUMBER)))
    try:
        named = torch.device(device) if isinstance(device, (str, torch.device)) else None
    except RuntimeError:
        named = None
    if named is None or named.type not in ("cpu", "cuda"):
        return None, None
    return (None, torch.device("cpu")) if named.type == "cpu" else (named.index or 0, named)


def get_available_device(device: torch.device | str | int | None = None) -> torch.device:
    """The device asked for; without one, the current GPU where there is any, else the CPU.

    Raises:
        InvalidArgumentError: neither the CPU nor a GPU that is there.
    """
    if device is None:
        return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")
    return parse_device(device)


def gpu_number(
    device: torch.device | str | int | None,
    name: str = "device",
    *,
    count: Callable[[], int] | None = None,
    must_be_there: bool = True,
) -> int | None:
    """The number of the GPU that an argument names, see ``parse_device``; None for the CPU and for None."""
    if device is None:
        return None
    return number_of(parse_device(device, name, count=count, must_be_there=must_be_there))


def number_of(device: torch.device) -> int | None:
    """The number of a GPU, of the current one where it has none; None for the CPU."""
    if device.type == "cpu":
        return None
    if device.index is not None:
        return device.index
    return torch.cuda.current_device() if torch.cuda.is_available() else 0


def assign_device() -> torch.device:
    """A GPU for this process, in turn by the rank of its worker; the CPU where there is none."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    ready = torch.distributed.is_available() and torch.distributed.is_initialized()
    rank = torch.distributed.get_rank() if ready else 0
    return torch.device("cuda", rank % torch.cuda.device_count())


def ensure_device(device: torch.device | str | int | None) -> None:
    """Makes a GPU the current one; does nothing for the CPU and for None."""
    if device is not None and (found := parse_device(device)).type == "cuda":
        torch.cuda.set_device(found)


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
