"""One logical tensor of rows over several memories."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch

from .. import _C
from ..core import check_index_vector, thread_pool, to_tensor
from ..errors import InvalidArgumentError, NotInitializedError
from ..messages import TensorHandle
from ..utils.device import gpu_number
from ..utils.device_exchange import moved
from ..utils.tensor import host_tensor, plain_tensor
from . import shared_memory
from .device.device_group import usable_gpu
from .device.device_rows import DeviceRows
from .disk_tier import DiskTier
from .handles import GpuHandle
from .huge_pages import read_at_random

HOST = -1


def _name(dtype: torch.dtype) -> str:
    """The name the native core knows a dtype by."""
    return str(dtype).removeprefix("torch.")


def row_stores(tensors: Sequence[UnifiedTensor | None]) -> list[_C.RowStore | None]:
    """What the core knows rows by that several have, in host memory."""
    return [None if rows is None else rows._native for rows in tensors]


def _gpu_of(current_device: torch.device | str | int) -> int:
    return gpu_number(current_device, "current_device", must_be_there=False) or 0


def view_rows(rows: torch.Tensor) -> UnifiedTensor:
    """The rows of a tensor in host memory. No copy."""
    view = UnifiedTensor(0, rows.dtype)
    view.append_cpu_tensor(rows)
    return view


class UnifiedTensor:
    """Rows of a tensor whose pieces lie in several memories; indexing gathers rows in the order asked.

    While all pieces are in host memory (anonymous, shared, memory-mapped) or in a file, the host gathers. With a piece
    on a GPU the GPU gathers, in one launch, from its own memory, from that of peers that it has access to, and from
    host memory, which is pinned for it (``memories`` says where that took a copy); that needs a build with CUDA.

    Args:
        current_device: the GPU that gathers, and that results go to; ignored while all pieces are in host memory.
        dtype: element type; pieces of another dtype are refused.
        num_threads: threads of one gather.
    """

    def __init__(
        self, current_device: torch.device | str | int = 0, dtype: torch.dtype = torch.float32, num_threads: int = 1
    ) -> None:
        self.current_device = current_device if isinstance(current_device, int) else _gpu_of(current_device)
        self.dtype = dtype
        self.num_threads = num_threads
        self._parts: list[torch.Tensor] = []
        self._store: _C.RowStore | None = None
        self._tier: DiskTier | None = None
        self._on_gpu: DeviceRows | None = None
        self._placing = threading.Lock()  # threads that look up first at once place the rows once

    def init_from(self, tensors: list[torch.Tensor], tensor_devices: list[int]) -> None:
        """Takes the pieces in row order, with the device of each (-1 is the host)."""
        if len(tensors) != len(tensor_devices):
            raise InvalidArgumentError(
                f"tensor_devices: expected one for each of {len(tensors)} tensors, got {len(tensor_devices)}"
            )
        for tensor, device in zip(tensors, tensor_devices, strict=True):
            if device == HOST:
                self.append_cpu_tensor(tensor)
            else:
                gpu = usable_gpu(device, "tensor_devices (-1 is host memory)")
                self._append_on(gpu, tensor, "tensors")

    def append_cpu_tensor(self, cpu_tensor: torch.Tensor) -> None:
        """Adds rows in host memory: no copy, but of those that lie on a GPU."""
        self._check_rows(cpu_tensor, "cpu_tensor")
        self._append(host_tensor(cpu_tensor, "cpu_tensor"))

    def _append_on(self, gpu: int, rows: torch.Tensor, name: str) -> None:
        self._check_rows(rows, name)
        self._append(rows.to(torch.device("cuda", gpu)))

    def _check_rows(self, rows: Any, name: str) -> None:
        """What all pieces have in common."""
        if not isinstance(rows, torch.Tensor):
            raise InvalidArgumentError(f"{name}: expected a tensor of rows, got {type(rows).__name__}")
        if rows.dtype != self.dtype:
            raise InvalidArgumentError(f"{name}: expected dtype {self.dtype}, got {rows.dtype}")
        if rows.dim() < 1:
            raise InvalidArgumentError(f"{name}: expected rows, got a scalar")
        if self._parts and rows.shape[1:] != self._parts[0].shape[1:]:
            expected, got = (list(part.shape[1:]) for part in (self._parts[0], rows))
            raise InvalidArgumentError(f"{name}: expected rows of shape {expected}, as those before, got {got}")

    def append_disk_tier(self, tier: DiskTier) -> None:
        """Adds rows that are read from their file; there are no others then."""
        if self._parts:
            raise InvalidArgumentError("tier: expected the only piece, there are others")
        self.append_cpu_tensor(tier.rows)
        self._tier = tier

    @property
    def disk_tier(self) -> DiskTier | None:
        """What reads the rows from their file; None where they lie in memory or are mapped."""
        return self._tier

    def append_device_tensor(self, tensor: torch.Tensor, device: torch.device | str | int) -> None:
        """Adds rows in the memory of a GPU, copied there unless that is where they are.

        Args:
            tensor: rows of the tensor's dtype, as wide as those before.
            device: the GPU, by its number or as torch names it.

        Raises:
            InvalidArgumentError: there is no such GPU, or this build has no kernels for it, or the rows do not fit.
        """
        self._append_on(usable_gpu(device), tensor, "tensor")

    def _append(self, rows: torch.Tensor) -> None:
        if self._tier is not None:
            raise InvalidArgumentError("tensor: expected none beside rows that are read from a file")
        self._parts.append(plain_tensor(rows, "tensor").contiguous())
        self._store = self._on_gpu = None

    def __getitem__(self, ids: torch.Tensor) -> torch.Tensor:
        """Rows ``ids`` (int ``[n]``) as a new ``[n, ...]`` tensor; an id outside raises ``UnknownIdError``."""
        return self.gather(ids)

    def gather(
        self, ids: torch.Tensor, *, dtype: torch.dtype | None = None, num_threads: int | None = None
    ) -> torch.Tensor:
        """Rows ``ids`` as a new tensor, cast on the way.

        Args:
            ids: int ``[n]``, any order, duplicates allowed.
            dtype: float16, bfloat16, float32 or float64, for rows of these, int8 or uint8; values as of
                ``Tensor.to``. None keeps the rows' own dtype.
            num_threads: threads of this gather; None: as many as the tensor was made with.

        Returns:
            ``[n, ...]``.

        Raises:
            UnknownIdError: an id is outside.
            InvalidArgumentError: ids are no vector of integers, or the rows cannot be cast to ``dtype``.
        """
        rows = check_index_vector(ids, "ids", any_device=True)
        if self.is_on_gpu:
            return self._device_rows.gather(rows, dtype or self.dtype)
        if rows.is_cuda:
            return moved(self.gather(rows.cpu(), dtype=dtype, num_threads=num_threads), rows.device)
        pool = thread_pool(self.num_threads if num_threads is None else num_threads)
        return to_tensor(self._native.gather(rows, pool, None, None, self._cast_to(dtype)))

    def gather_into(self, out: torch.Tensor, positions: torch.Tensor, ids: torch.Tensor) -> None:
        """Writes row ``ids[i]`` to ``out[positions[i]]``, cast to the dtype of ``out``; ``positions`` int64 ``[n]``."""
        if self.is_on_gpu:
            return self._device_rows.gather_into(out, positions, ids)
        self._native.gather(ids, thread_pool(self.num_threads), positions, out, self._cast_to(out.dtype))

    def gather_all(self, out: torch.Tensor, ids: torch.Tensor) -> None:
        """Writes row ``ids[i]`` to ``out[i]``, cast to the dtype of ``out``."""
        if self.is_on_gpu:
            return self._device_rows.gather_into(out, None, ids)
        self._native.gather(ids, thread_pool(self.num_threads), None, out, self._cast_to(out.dtype))

    def _cast_to(self, dtype: torch.dtype | None) -> str | None:
        """What rows are cast to; None where they stay as they are, which the core knows more dtypes of."""
        return None if dtype in (None, self.dtype) else _name(dtype)

    @property
    def _native(self) -> _C.RowStore:
        if self._tier is not None:
            return self._tier.store
        if self._store is None:
            if not self._parts:
                raise NotInitializedError("UnifiedTensor: no rows yet; call init_from() or append_cpu_tensor() first")
            self._store = _C.RowStore(self._parts)
            read_at_random(*self._parts)
        return self._store

    @property
    def is_on_gpu(self) -> bool:
        """Whether a GPU gathers: one of the pieces lies in the memory of one."""
        return any(part.is_cuda for part in self._parts)

    @property
    def _device_rows(self) -> DeviceRows:
        with self._placing:
            if self._on_gpu is None:
                gpu = usable_gpu(self.current_device, "current_device")
                self._on_gpu = DeviceRows(self._parts, torch.device("cuda", gpu))
            return self._on_gpu

    @property
    def memories(self) -> list[str]:
        """By piece, from where it is gathered: the memory of a GPU, host memory, or a pinned copy in host memory."""
        return self._device_rows.memories if self.is_on_gpu else ["host memory"] * len(self._parts)

    @property
    def parts(self) -> list[torch.Tensor]:
        """The pieces, in row order."""
        return list(self._parts)

    @property
    def shape(self) -> list[int]:
        if not self._parts:
            return [0, 0]
        return [sum(part.size(0) for part in self._parts), *self._parts[0].shape[1:]]

    @property
    def device(self) -> int:
        return self.current_device

    @property
    def numel(self) -> int:
        return sum(part.numel() for part in self._parts)

    def size(self, dim: int) -> int:
        return self.shape[dim]

    def stride(self, dim: int) -> int:
        return int(self._parts[0].stride(dim)) if self._parts else 0

    def append_shared_tensor(self, shared_tensor: Any) -> None:
        """Adds rows in the memory of a GPU that another process shared, as ``share_ipc`` there described them."""
        if not isinstance(shared_tensor, GpuHandle) or _C.cuda_device_count() == 0:
            raise InvalidArgumentError(
                "shared_tensor: expected what share_ipc() gave, which needs a GPU; "
                f"got {type(shared_tensor).__name__}, {_C.cuda_device_count()} GPUs are usable"
            )
        rows = shared_tensor.open()
        self._check_rows(rows, "shared_tensor")
        self._append(rows)

    def share_ipc(self) -> tuple[list[GpuHandle | None], list[TensorHandle]]:
        """(GPU pieces, host pieces) for another process of this host to map; None holds the place of a host piece.

        Host pieces in private memory move to shared memory once; the handles are good while this tensor lives.
        """
        with shared_memory.moving:
            self._parts = [part if part.is_cuda else shared_memory.share(part) for part in self._parts]
            self._store = self._on_gpu = None
            on_gpu = [GpuHandle(part) if part.is_cuda else None for part in self._parts] if self.is_on_gpu else []
            return on_gpu, [shared_memory.to_handle(part) for part in self._parts if not part.is_cuda]

    def from_ipc_handle(self, cuda_ipc_list: Sequence[Any], cpu_part: Any) -> None:
        """Adds the pieces that ``share_ipc`` of another process described, over the same memory.

        Args:
            cuda_ipc_list: GPU pieces in their places; None stands for the next host piece.
            cpu_part: host pieces: handles, a tensor, or None. Those that have no place come last.
        """
        parts = [cpu_part] if isinstance(cpu_part, (torch.Tensor, TensorHandle)) else cpu_part or ()
        on_host = iter(parts)
        for shared_tensor in cuda_ipc_list:
            if shared_tensor is None:
                self._append_host(next(on_host))
            else:
                self.append_shared_tensor(shared_tensor)
        for part in on_host:
            self._append_host(part)

    def _append_host(self, part: torch.Tensor | TensorHandle) -> None:
        self.append_cpu_tensor(shared_memory.from_handle(part) if isinstance(part, TensorHandle) else part)

    @classmethod
    def new_from_ipc(
        cls, ipc_handles: tuple[Sequence[Any], Any], current_device: int, dtype: torch.dtype
    ) -> UnifiedTensor:
        """A tensor over what ``share_ipc`` of another process gave; see the class for the other arguments."""
        tensor = cls(current_device, dtype)
        tensor.from_ipc_handle(*ipc_handles)
        return tensor

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_store": None, "_tier": None, "_on_gpu": None, "_placing": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._placing = threading.Lock()


def rebuild_unified_tensor(
    ipc_handles: tuple[Sequence[Any], Any], current_device: int, dtype: torch.dtype, num_threads: int
) -> UnifiedTensor:
    """The tensor that ``reduce_unified_tensor`` described."""
    tensor = UnifiedTensor(current_device, dtype, num_threads)
    tensor.from_ipc_handle(*ipc_handles)
    return tensor


def reduce_unified_tensor(tensor: UnifiedTensor) -> tuple[Any, ...]:
    """How it goes to another process through ``multiprocessing``: as handles to the same rows, without a copy.

    The process that sent it must still live when it is received. ``pickle`` and ``copy`` take the rows themselves.
    """
    arguments = tensor.share_ipc(), tensor.current_device, tensor.dtype, tensor.num_threads
    return rebuild_unified_tensor, arguments


ForkingPickler.register(UnifiedTensor, reduce_unified_tensor)
