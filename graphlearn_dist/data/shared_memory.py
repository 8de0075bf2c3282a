"""Tensors that several processes of one host map: files and anonymous shared memory.

Sharing copies nothing that lies in a file already, and copies anything else once, into a ``memfd``. Other processes
open that through ``/proc/<pid>/fd/<n>`` while a tensor over it lives in its owner; it has no name, so a killed process
leaves nothing.
"""

from __future__ import annotations

import functools
import math
import mmap
import os
import threading
from collections.abc import Callable, Iterable
from typing import Any

import torch

from .. import _C
from ..errors import StorageError
from ..messages import TensorHandle
from .huge_pages import read_at_random

# Start address -> (file descriptor, bytes) of our own shared memory. No lock: a finaliser may run in the middle of any
# of this module's lines, and single operations on a dict are atomic.
_anonymous: dict[int, tuple[int, int]] = {}

# Start address -> (handle, bytes) of shared memory of other processes that is mapped here. No lock, as above.
_received: dict[int, tuple[TensorHandle, int]] = {}

# Held by whoever moves the arrays of an object to shared memory and then tells where they lie: of several at once, a
# later one would otherwise move them away from under an earlier one's handles.
moving = threading.RLock()


class _Mapping(_C.FileMapping):
    """A mapping that tells of its end while its pages are mapped: their addresses may be another's right after."""

    at_end: Callable[[], object] | None = None

    def __del__(self) -> None:
        if self.at_end is not None:
            self.at_end()


def share(tensor: torch.Tensor) -> torch.Tensor:
    """The same values in memory that other processes can map; the tensor itself where it lies so already."""
    tensor = tensor.contiguous()
    if tensor.numel() == 0 or _locate(tensor) is not None:
        return tensor
    nbytes = tensor.numel() * tensor.element_size()
    descriptor = _C.create_memory_file("graphlearn_dist", nbytes)
    try:
        mapping = _Mapping(descriptor, 0, nbytes, is_shared=True)
    except OSError:
        os.close(descriptor)
        raise
    shared = _view(mapping, 0, tensor.dtype, tuple(tensor.shape))
    shared.copy_(tensor)
    _anonymous[shared.data_ptr()] = (descriptor, nbytes)
    mapping.at_end = functools.partial(_forget, shared.data_ptr(), descriptor)
    read_at_random(shared)
    return shared


def _forget(address: int, descriptor: int) -> None:
    _anonymous.pop(address, None)
    os.close(descriptor)


def to_handle(tensor: torch.Tensor) -> TensorHandle:
    """The handle of a tensor that ``share`` returned (good while that tensor lives) or that is mapped from a file.

    Raises:
        StorageError: the tensor lies in private memory.
    """
    dtype = str(tensor.dtype).removeprefix("torch.")
    if tensor.numel() == 0:
        return TensorHandle("", 0, dtype, tuple(tensor.shape))
    place = _locate(tensor)
    if place is None:
        raise StorageError("tensor: expected one in shared or file-backed memory; call share() first")
    path, offset = place
    inode = os.stat(path).st_ino if _is_anonymous(path) else 0
    return TensorHandle(path, offset, dtype, tuple(tensor.shape), inode)


def _is_anonymous(path: str) -> bool:
    return path.startswith("/proc/")


def _check_inode(handle: TensorHandle, descriptor: int) -> None:
    if _is_anonymous(handle.path) and os.fstat(descriptor).st_ino != handle.inode:
        raise StorageError(
            f"{handle.path}: the shared memory is gone, and other memory is there; keep the object that was shared, or "
            "sent to a process, until the other process has it"
        )


def from_handle(handle: TensorHandle) -> torch.Tensor:
    """Maps the tensor of a handle: pages are shared, a write stays private to the writer.

    Raises:
        StorageError: there is no such memory, it is smaller than the handle says, or the handle is none.
    """
    dtype = getattr(torch, handle.dtype, None)
    count = math.prod(handle.shape)
    if not isinstance(dtype, torch.dtype) or min((handle.offset, *handle.shape)) < 0 or (not handle.path and count):
        raise StorageError(f"handle: expected a dtype, extents and an offset of at least 0, and a file, got {handle}")
    if count == 0:
        return torch.empty(handle.shape, dtype=dtype)
    nbytes = count * dtype.itemsize
    start = handle.offset - handle.offset % mmap.ALLOCATIONGRANULARITY
    length = handle.offset - start + nbytes
    try:
        with open(handle.path, "rb") as file:
            _check_inode(handle, file.fileno())
            if os.fstat(file.fileno()).st_size < handle.offset + nbytes:
                raise StorageError(f"{handle.path}: expected at least {handle.offset + nbytes} bytes")
            mapping = _Mapping(file.fileno(), start, length, is_shared=False)
    except OSError as error:
        hint = "; is the object that was shared still there?" if _is_anonymous(handle.path) else ""
        raise StorageError(f"cannot map {handle.path}: {error}{hint}") from error
    tensor = _view(mapping, handle.offset - start, dtype, handle.shape)
    if _is_anonymous(handle.path):
        _received[tensor.data_ptr()] = handle, nbytes
        mapping.at_end = functools.partial(_received.pop, tensor.data_ptr(), None)
    return tensor


def map_writable(tensor: torch.Tensor) -> torch.Tensor | None:
    """The same pages of shared memory in a mapping that writes to them; None for private memory and files.

    Locking pages of a mapping whose writes stay private would copy each of them.
    """
    address = tensor.data_ptr()
    if any(start <= address < start + nbytes for start, (_, nbytes) in _anonymous.copy().items()):
        return tensor
    for start, (handle, nbytes) in _received.copy().items():
        if start <= address < start + nbytes:
            return _map_again(tensor, handle, handle.offset + address - start)
    return None


def _map_again(tensor: torch.Tensor, handle: TensorHandle, offset: int) -> torch.Tensor | None:
    nbytes, beyond = tensor.numel() * tensor.element_size(), offset % mmap.ALLOCATIONGRANULARITY
    try:
        with open(handle.path, "r+b") as file:
            _check_inode(handle, file.fileno())
            mapping = _Mapping(file.fileno(), offset - beyond, beyond + nbytes, is_shared=True)
    except (OSError, StorageError):  # its owner has ended or freed it: its pages live on in the mapping that there is
        return None
    return _view(mapping, beyond, tensor.dtype, tuple(tensor.shape))


def is_mapped(tensor: torch.Tensor) -> bool:
    """Whether a tensor lies in a mapped file, or in shared memory that this process made."""
    return _locate(tensor) is not None


def is_file(tensor: torch.Tensor) -> bool:
    """Whether a tensor lies in a mapped file that has a name, not in shared memory."""
    place = _locate(tensor)
    return place is not None and not place[0].startswith(("/proc/", "/memfd:"))


def is_shared_file(tensor: torch.Tensor) -> bool:
    """Whether that file is mapped for all processes to share, as numpy maps one that is only read."""
    if not is_file(tensor):
        return False
    with open("/proc/self/maps") as maps:
        found = _fields_at(tensor.data_ptr(), maps)
    return found is not None and found[0][1].endswith("s")


def is_written(tensor: torch.Tensor) -> bool:
    """Whether this process has written to the mapping of a file that a tensor lies in: such pages are its own."""
    begin = tensor.data_ptr()
    end = begin + tensor.numel() * tensor.element_size()
    is_inside = False
    with open("/proc/self/smaps") as maps:
        for line in maps:
            name, _, value = line.partition(":")
            if name in ("Anonymous", "Swap"):
                if is_inside and int(value.split()[0]) > 0:
                    return True
            elif "-" in line and line[0] in "0123456789abcdef":  # a mapping begins
                low, high = (int(bound, 16) for bound in line.split(maxsplit=1)[0].split("-"))
                if low >= end:
                    return False
                is_inside = high > begin
    return False


def inode(tensor: torch.Tensor) -> int:
    """The inode of the file that a tensor is mapped from; 0 for other memory."""
    with open("/proc/self/maps") as maps:
        fields = _fields_at(tensor.data_ptr(), maps)
    return 0 if fields is None else int(fields[0][4])


def to_optional_handle(tensor: torch.Tensor | None) -> TensorHandle | None:
    """As ``to_handle``; None stays None."""
    return None if tensor is None else to_handle(tensor)


def from_optional_handle(handle: TensorHandle | None) -> torch.Tensor | None:
    """As ``from_handle``; None stays None."""
    return None if handle is None else from_handle(handle)


def share_all(value: Any, replace: Callable[[torch.Tensor], torch.Tensor] = share) -> Any:
    """Applies ``share`` to a tensor, or to every tensor of a dict; None stays None."""
    if value is None:
        return None
    if isinstance(value, dict):
        return {key: share_all(entry, replace) for key, entry in value.items()}
    return replace(value)


def _view(buffer: Any, offset: int, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    count = 1
    for extent in shape:
        count *= extent
    return torch.frombuffer(buffer, dtype=dtype, count=count, offset=offset).reshape(shape)


def _locate(tensor: torch.Tensor) -> tuple[str, int] | None:
    """(path, offset) of a tensor in our anonymous shared memory or in a mapped file; None for private memory."""
    address = tensor.data_ptr()
    for start, (descriptor, nbytes) in _anonymous.copy().items():
        if start <= address < start + nbytes:
            return f"/proc/{os.getpid()}/fd/{descriptor}", address - start
    with open("/proc/self/maps") as maps:
        return _file_at(address, maps)


def _file_at(address: int, maps: Iterable[str]) -> tuple[str, int] | None:
    """(path, offset) of the file that is mapped at an address; None where memory is private, or nothing is mapped."""
    found = _fields_at(address, maps)
    return None if found is None else _file_place(*found)


def _fields_at(address: int, maps: Iterable[str]) -> tuple[list[str], int] | None:
    """What the system says of the mapping at an address, and how far into it that is; None where nothing is mapped.

    Args:
        address: in this process.
        maps: lines of ``/proc/self/maps``, by address; there are thousands of them, so those below are barely read.
    """
    for line in maps:
        low, _, rest = line.partition("-")
        high, _, _ = rest.partition(" ")
        if address < int(high, 16):
            distance = address - int(low, 16)
            return (line.split(maxsplit=5), distance) if distance >= 0 else None
    return None


def _file_place(fields: list[str], distance: int) -> tuple[str, int] | None:
    path = fields[5].rstrip("\n") if len(fields) == 6 else ""  # anonymous memory has none
    if not path.startswith("/") or path.endswith("(deleted)") or path.startswith("/dev/"):
        return None
    return path, int(fields[2], 16) + distance
