"""Feature rows, looked up by global id."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np
import torch

from .. import _C
from ..core import check_index_tensor
from ..errors import InvalidArgumentError, UnknownIdError
from ..messages import TensorHandle
from ..utils.tensor import convert_to_tensor
from . import shared_memory
from .handles import FeatureHandle
from .unified_tensor import UnifiedTensor


@dataclass(frozen=True)
class DeviceGroup:
    """GPUs that hold one copy of the hot rows between them."""

    group_id: int
    device_list: list[torch.device]

    @property
    def size(self) -> int:
        return len(self.device_list)


# Arguments of ``Feature`` beside its rows and their dtype, which are kept under the same names.
_SETTINGS = ("split_ratio", "device_group_list", "device", "with_gpu", "num_threads", "out_dtype")
_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def _checked_cast(stored: torch.dtype, wanted: torch.dtype | None) -> torch.dtype:
    """The dtype that lookups give; raises where rows of ``stored`` cannot be cast to it while they are gathered."""
    if wanted is None or wanted == stored:
        return stored
    if wanted not in _FLOATS or stored not in (*_FLOATS, torch.int8, torch.uint8):
        raise InvalidArgumentError(
            f"out_dtype: expected a floating type for rows of floats, int8 or uint8, got {wanted} for {stored}"
        )
    return wanted


class Feature:
    """Rows of features (or labels) by global id.

    Args:
        feature_tensor: ``[num_rows, ...]``.
        id2index: row of each id: an int tensor by id (-1: not here), an object indexed by a tensor of ids such as a
            partition book's ``id2index``, or None where the row is the id.
        split_ratio: share of rows, from the first on, to keep in the memory of the GPU, which then gathers, and reads
            the others from a copy in pinned memory. Anything above 0 needs a GPU and a build with CUDA.
        device_group_list: GPUs by group.
        device: the GPU of this process; 0 unless given.
        with_gpu: use a GPU if there is one.
        dtype: dtype to hold; None keeps that of the tensor, which takes no copy.
        num_threads: threads of one lookup.
        out_dtype: dtype that lookups give, cast while gathering: a floating type, for rows of floats, int8 or uint8.
            float16 or int8 rows that are read as float32 take half or a quarter of the memory. None: that of the rows.

    Raises:
        InvalidArgumentError: rows cannot be cast to ``out_dtype``.
        InvalidArgumentError: GPU rows are asked for where there is no GPU, or the tensor has no rows dimension.
    """

    def __init__(
        self,
        feature_tensor: Any,
        id2index: torch.Tensor | Sequence[int] | Any | None = None,
        split_ratio: float = 0.0,
        device_group_list: list[DeviceGroup] | None = None,
        device: int | None = None,
        with_gpu: bool | None = True,
        dtype: torch.dtype | None = torch.float32,
        num_threads: int = 1,
        *,
        out_dtype: torch.dtype | None = None,
    ) -> None:
        if not 0.0 <= split_ratio <= 1.0:
            raise InvalidArgumentError(f"split_ratio: expected a share between 0 and 1, got {split_ratio}")
        if (split_ratio != 0.0 or device is not None) and (device or 0) >= _C.cuda_device_count():
            raise InvalidArgumentError(
                f"split_ratio, device: rows on a GPU were asked for, {_C.cuda_device_count()} GPUs are usable"
            )
        tensor = convert_to_tensor(feature_tensor, dtype)
        if not isinstance(tensor, torch.Tensor) or tensor.dim() < 1:
            raise InvalidArgumentError("feature_tensor: expected a tensor of rows")
        self.feature_tensor = tensor.contiguous()
        is_data = isinstance(id2index, (list, tuple, np.ndarray))
        self.id2index: Any = convert_to_tensor(id2index) if is_data else id2index
        self.split_ratio = split_ratio
        self.device_group_list = device_group_list
        self.device = device
        self.with_gpu = with_gpu
        self.num_threads = num_threads
        self.out_dtype = _checked_cast(self.feature_tensor.dtype, out_dtype)
        self._unified: UnifiedTensor | None = None

    def rows_of(self, ids: torch.Tensor) -> torch.Tensor:
        """Rows of global ids, int ``[n]``; an id that is not here raises ``UnknownIdError`` naming it."""
        if self.id2index is None:
            return ids
        if isinstance(self.id2index, torch.Tensor):
            check_index_tensor(ids, "ids", num_ids=self.id2index.numel())
        rows: torch.Tensor = self.id2index[ids]
        if rows.numel() and int(rows.min()) < 0:
            missing = int(ids[int(rows.argmin())])
            raise UnknownIdError(f"ids: id {missing} has no feature row here")
        return rows

    def __getitem__(self, ids: torch.Tensor) -> torch.Tensor:
        """Rows of ``ids`` (int ``[n]``, any order, duplicates allowed) as a new ``[n, ...]`` tensor of ``dtype``."""
        return self.gather(ids)

    def gather(self, ids: torch.Tensor, *, num_threads: int | None = None) -> torch.Tensor:
        """As ``feature[ids]``, by so many threads; None: as many as the feature was made with."""
        # Rows that are ids are checked below.
        rows = ids if self.id2index is None else self.rows_of(check_index_tensor(ids, "ids").cpu())
        return self.unified.gather(rows, dtype=self.out_dtype, num_threads=num_threads)

    def cpu_get(self, ids: torch.Tensor) -> torch.Tensor:
        """As ``feature[ids]``, from host rows."""
        return self[ids]

    def gather_into(self, out: torch.Tensor, positions: torch.Tensor, ids: torch.Tensor) -> None:
        """Writes the row of ``ids[i]`` to ``out[positions[i]]``, cast to the dtype of ``out``."""
        self.unified.gather_into(out, positions, self.rows_of(ids))

    def lazy_init_with_ipc_handle(self) -> None:
        """Makes the native view, if it was not made yet."""
        _ = self.unified

    @property
    def unified(self) -> UnifiedTensor:
        """The tensor behind the ids."""
        if self._unified is None:
            rows, gpu = self.feature_tensor, self.device or 0
            num_hot = round(rows.size(0) * self.split_ratio)
            unified = UnifiedTensor(gpu, rows.dtype, self.num_threads)
            if num_hot > 0:
                unified.append_device_tensor(rows[:num_hot], gpu)
            if num_hot < rows.size(0) or num_hot == 0:
                unified.append_cpu_tensor(rows[num_hot:])
            self._unified = unified
        return self._unified

    def share_memory_(self) -> Feature:
        """Moves the rows to memory that other processes can map; rows mapped from a file stay where they are."""
        with shared_memory.moving:
            self.feature_tensor = shared_memory.share(self.feature_tensor)
            if isinstance(self.id2index, torch.Tensor):
                self.id2index = shared_memory.share(self.id2index)
            self._unified = None
        return self

    def share_ipc(self) -> FeatureHandle:
        """A handle with which another process of this host maps the same rows while this feature lives."""
        with shared_memory.moving:
            self.share_memory_()
            rows = self.id2index
            return FeatureHandle(
                shared_memory.to_handle(self.feature_tensor),
                shared_memory.to_handle(rows) if isinstance(rows, torch.Tensor) else rows,
                {name: getattr(self, name) for name in _SETTINGS},
            )

    @classmethod
    def from_ipc_handle(cls, ipc_handle: FeatureHandle) -> Feature:
        """The feature that ``share_ipc`` described, over the same memory."""
        rows = ipc_handle.id2index
        id2index = shared_memory.from_handle(rows) if isinstance(rows, TensorHandle) else rows
        return cls(shared_memory.from_handle(ipc_handle.rows), id2index, dtype=None, **ipc_handle.settings)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_unified": None}

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of what lookups give."""
        return self.out_dtype

    @property
    def shape(self) -> torch.Size:
        return self.feature_tensor.shape

    def size(self, dim: int) -> int:
        return self.feature_tensor.size(dim)


def rebuild_feature(ipc_handle: FeatureHandle) -> Feature:
    """The feature that ``reduce_feature`` described."""
    return Feature.from_ipc_handle(ipc_handle)


def reduce_feature(feature: Feature) -> tuple[Any, ...]:
    """How a feature goes to another process through ``multiprocessing``: as a handle to the same rows, without a copy.

    The process that sent it must still live when it is received. ``pickle`` and ``copy`` take the rows themselves.
    """
    return rebuild_feature, (feature.share_ipc(),)


ForkingPickler.register(Feature, reduce_feature)
