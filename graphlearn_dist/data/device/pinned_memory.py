"""Host memory that GPUs read over their link."""

from __future__ import annotations

import atexit
import logging
import mmap
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from ... import _C
from ...errors import CudaError
from .. import shared_memory

logger = logging.getLogger(__name__)
atexit.register(_C.keep_pages_locked)  # kernels may still read them, and all memory goes with the process

# Pages are locked whole: small arrays share theirs with others, and are copied as fast as they would be locked.
_SMALLEST = 1 << 20
_LOOK_AGAIN_S = 0.001  # for the end of a lock that is being dropped, which takes a call of the driver's
_LONGEST_UNLOCKING_S = 60.0  # of one that is stuck memory is copied


@dataclass(frozen=True)
class PinnedTensor:
    """A tensor in page-locked memory.

    Attributes:
        tensor: the values.
        lock: what keeps the pages locked, where they were locked in place; the tensor is read only while it lives. All
            who read the same pages share it.
        is_copy: whether the values were copied.
    """

    tensor: torch.Tensor
    lock: Any = None
    is_copy: bool = False


@dataclass(eq=False)
class _SharedLock:
    """Pages that stay locked while one of those lives who read them where they lie."""

    lock: Any


_locks: weakref.WeakValueDictionary[tuple[int, int], _SharedLock] = weakref.WeakValueDictionary()  # by address and size
_locking = threading.Lock()


def _copied(tensor: torch.Tensor, device: int) -> torch.Tensor:
    with torch.cuda.device(device):  # torch would ask the current one, which may be another process's
        return tensor.pin_memory()


def pin(
    tensor: torch.Tensor,
    device: int,
    lock: Callable[[torch.Tensor, bool, int], Any] = _C.PinnedRange,
    copy: Callable[[torch.Tensor, int], torch.Tensor] = _copied,
) -> PinnedTensor:
    """Locks the pages of a tensor where they lie, in private memory, shared memory or a mapped file; else a copy.

    Shared memory stays shared. Pages of files cannot be locked on every system; those of files that are mapped for all
    to share (``MAP_SHARED``), and of small tensors, are not.

    Args:
        tensor: contiguous, in host memory.
        device: the GPU that this process uses; all GPUs can read what is pinned for one.
        lock: locks a tensor's memory, which is read only or not; raises ``CudaError`` where that cannot be.
        copy: copies a tensor to page-locked memory.
    """
    with _locking:  # locking takes seconds, and nobody may find pages that are locked in part
        deadline = time.monotonic() + _LONGEST_UNLOCKING_S
        while (pinned := _pin(tensor, device, lock, copy)) is None:
            if time.monotonic() > deadline:
                return PinnedTensor(copy(tensor, device), is_copy=True)
            time.sleep(_LOOK_AGAIN_S)
        return pinned


def _share_a_page(one: tuple[int, int], other: tuple[int, int]) -> bool:
    """Whether two stretches of memory (address, bytes) do."""
    (first, last), (first_of_other, last_of_other) = (
        (begin // mmap.PAGESIZE, (begin + max(nbytes, 1) - 1) // mmap.PAGESIZE) for begin, nbytes in (one, other)
    )
    return first <= last_of_other and first_of_other <= last


def _pin(
    tensor: torch.Tensor,
    device: int,
    lock: Callable[[torch.Tensor, bool, int], Any],
    copy: Callable[[torch.Tensor, int], torch.Tensor],
) -> PinnedTensor | None:
    """None while a lock of its pages is being dropped, of which nobody can have a share any more."""
    place = (tensor.data_ptr(), tensor.nbytes)
    for start, nbytes in list(_locks):  # no more than the numbers: who held locks here would drop them here, too
        is_within = start <= place[0] and sum(place) <= start + nbytes
        if is_within and (shared := _locks.get((start, nbytes))) is not None:
            return PinnedTensor(tensor, shared)
    beside = [of for of in _C.locked_ranges() if _share_a_page(of, place)]
    if any(of not in _locks for of in beside):
        return None
    # Torch's `is_pinned` is about the first byte of the storage, of which this may be another part; and of memory that
    # shares its first and last page with others that are locked, what lies between may not be.
    if tensor.numel() == 0 or (not beside and _C.can_gpu_read(tensor, device)):
        return PinnedTensor(tensor)
    if tensor.nbytes < _SMALLEST:
        return PinnedTensor(copy(tensor, device), is_copy=True)
    writable = shared_memory.map_writable(tensor)
    is_file = writable is None and shared_memory.is_mapped(tensor)
    if is_file and shared_memory.is_shared_file(tensor):  # CUDA locks its pages, and refuses to copy from them
        return PinnedTensor(copy(tensor, device), is_copy=True)
    where = tensor if writable is None else writable  # a mapping of its own
    try:
        # In one expression: an interrupt leaves no lock without its entry.
        _locks[where.data_ptr(), where.nbytes] = shared = _SharedLock(lock(where, is_file, device))
    except CudaError as error:
        logger.info("%d bytes are copied to page-locked memory: %s", tensor.nbytes, error)
        return PinnedTensor(copy(tensor, device), is_copy=True)
    return PinnedTensor(where, shared)
