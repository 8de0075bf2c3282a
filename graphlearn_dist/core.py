"""The door to the native core: DLPack capsules become tensors here, and thread pools are shared."""

from __future__ import annotations

import functools
import os
import platform
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.utils.dlpack import from_dlpack

from . import _C
from .errors import InvalidArgumentError, UnknownIdError
from .utils.tensor import host_tensor, plain_tensor

_LARGE_BLOCK_BYTES = 4 << 20


to_tensor: Callable[[Any], torch.Tensor] = from_dlpack
"""The tensor over a capsule's memory (no copy); the memory returns to the core's pool when the tensor dies."""


def to_optional_tensor(capsule: Any) -> torch.Tensor | None:
    """As ``to_tensor``; None stays None."""
    return None if capsule is None else from_dlpack(capsule)


def thread_pool(num_threads: int) -> _C.ThreadPool:
    """The process's pool of that many threads (the caller counts as one). A result never depends on the number."""
    return _pool_of_process(os.getpid(), num_threads)


@functools.lru_cache(maxsize=8)
def _pool_of_process(process_id: int, num_threads: int) -> _C.ThreadPool:
    return _C.ThreadPool(num_threads)  # a forked child's copy of a pool has no threads


def return_large_blocks(environ: Mapping[str, str] = os.environ) -> bool:
    """Makes this process give blocks of 4 MiB and more back to the system when they are freed, instead of keeping some
    of them for each thread. Nothing is changed where the environment says how glibc's malloc is to do it
    (``MALLOC_MMAP_THRESHOLD_``, ``MALLOC_TRIM_THRESHOLD_``, ``GLIBC_TUNABLES``).

    Returns:
        Whether that is so from now on.
    """
    if any(name in environ for name in ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES")):
        return False
    return _C.return_large_blocks(_LARGE_BLOCK_BYTES)


def available_cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0))


def check_index_vector(value: Any, name: str, *, any_device: bool = False) -> torch.Tensor:
    """Checks that a value is a one-dimensional tensor of integers and returns it contiguous; reads no entry.

    What lies on a GPU is copied to host memory, unless ``any_device`` leaves it there.

    Raises:
        InvalidArgumentError: wrong type, dtype (int64 or int32 is right) or shape; names ``name``.
    """
    if not isinstance(value, torch.Tensor):
        raise InvalidArgumentError(f"{name}: expected a torch.Tensor of ids, got {type(value).__name__}")
    ids = plain_tensor(value, name) if any_device else host_tensor(value, name)
    if ids.dtype not in (torch.int32, torch.int64):
        raise InvalidArgumentError(f"{name}: expected dtype int64 or int32, got {ids.dtype}")
    if ids.dim() != 1:
        raise InvalidArgumentError(f"{name}: expected a one-dimensional tensor, got shape {tuple(ids.shape)}")
    return ids.contiguous()


def check_index_tensor(value: Any, name: str, *, num_ids: int | None = None, what: str = "id") -> torch.Tensor:
    """Checks a one-dimensional integer tensor of ids and returns it as contiguous int64 (int32 stays), in host memory.

    Args:
        value: the tensor.
        name: the argument's name, for the error.
        num_ids: ids must be below this; None checks only the sign.
        what: what an entry is, for the error.

    Raises:
        InvalidArgumentError: wrong type, dtype or shape.
        UnknownIdError: an id is negative or too large.
    """
    ids = check_index_vector(value, name)
    if ids.numel() > 0:
        low, high = (int(bound) for bound in torch.aminmax(ids))
        if low < 0 or (num_ids is not None and high >= num_ids):
            bad = low if low < 0 else high
            limit = "2^63" if num_ids is None else str(num_ids)
            raise UnknownIdError(f"{name}: {what} {bad} is outside [0, {limit})")
    return ids


def show_config() -> str:
    """A readable account of versions, CUDA and cores, for bug reports."""
    if _C.cuda_is_built():
        cuda = f"built with {_C.cuda_build_version()}, {_C.cuda_device_count()} device(s) usable"
    else:
        cuda = "not built"
    lines = {
        "graphlearn_dist": _C.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": cuda,
        "cores": str(available_cores()),
        "platform": platform.platform(),
    }
    return "\n".join(f"{name}: {value}" for name, value in lines.items())


def pooled_empty(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """An uninitialised tensor in the core's pooled memory: warm, unlike fresh memory from the system."""
    count = 1
    for extent in shape:
        count *= extent
    if count == 0:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(_C.Buffer(count * dtype.itemsize), dtype=dtype, count=count).reshape(shape)


def stack_pair(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """Two vectors of one length as ``[2, n]``: a view where the second lies right behind the first, else a pooled copy.

    Rows and columns of a batch that was sampled in this process are the halves of one piece of memory.
    """
    length = first.numel()
    is_one_piece = (
        first.untyped_storage().data_ptr() == second.untyped_storage().data_ptr()
        and first.dtype == second.dtype
        and first.is_contiguous()
        and second.is_contiguous()
        and second.storage_offset() == first.storage_offset() + length
    )
    if is_one_piece:
        return first.as_strided((2, length), (length, 1))
    if first.is_cuda:
        return torch.stack([first, second])
    # Fresh memory of the size of a batch's edges costs twenty times the copy in page faults.
    return torch.stack([first, second], out=pooled_empty((2, length), first.dtype))
