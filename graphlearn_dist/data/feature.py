"""Feature rows, looked up by global id."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np
import torch

from .. import _C
from ..core import check_index_tensor, check_index_vector
from ..errors import InvalidArgumentError, UnknownIdError
from ..messages import TensorHandle
from ..telemetry import DeviceCacheCounts
from ..utils.device import gpu_number
from ..utils.tensor import convert_to_tensor
from ..utils.units import parse_size
from . import shared_memory
from .device.device_group import DeviceGroup, gpus_by_group, group_of, usable_gpu, usable_groups
from .device.device_rows import DeviceRows, FollowedCopy
from .device.placed_rows import PlacedRows
from .device.row_placement import place_rows
from .disk_tier import DiskTier, FeatureMemory, bytes_of_row
from .handles import FeatureHandle, GpuHandle
from .unified_tensor import UnifiedTensor

# Arguments of ``Feature`` beside its rows and their dtype, which are kept under the same names.
_SETTINGS = ("split_ratio", "device_group_list", "device", "with_gpu", "num_threads", "out_dtype", "device_cache")
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
        split_ratio: share of rows to keep in the memory of GPUs, which then gather, and read the others from pinned
            memory of the host. Anything above 0 needs a GPU and a build with CUDA.
        device_group_list: GPUs by group: each group holds the hot rows once, an equal share on each of its GPUs.
            Without groups, the GPU that gathers holds them all.
        device: the GPU of this process, which gathers, even where ``split_ratio`` is 0. Unless given, the one that has
            the ids, else the current one.
        with_gpu: False gathers on the host, whatever else is asked for.
        dtype: dtype to hold; None keeps that of the tensor, which takes no copy.
        num_threads: threads of one lookup.
        out_dtype: dtype that lookups give, cast while gathering: a floating type, for rows of floats, int8 or uint8.
            float16 or int8 rows that are read as float32 take half or a quarter of the memory. None: that of the rows.
        hotness: ``[num_ids]``, how often each id is looked up, in any unit, such as ``NeighborSampler.sample_prob`` or
            ``loader.count_nodes`` gives: GPUs hold the rows of the highest. None: they hold the first rows. It never
            changes what a lookup gives. ``id2index`` is then a tensor or None.
        device_cache: memory of each GPU that gathers, in bytes or as text such as ``"2GB"``, for a cache that learns
            from lookups which of the rows in host memory to keep there; 8 bytes of it for each of those rows. It never
            changes what a lookup gives. A GPU gathers then.

    Raises:
        InvalidArgumentError: rows cannot be cast to ``out_dtype``; ``device_cache`` is no size.
        InvalidArgumentError: GPU rows are asked for where there is no GPU, or the tensor has no rows dimension.
        InvalidArgumentError: ``device`` names no GPU that is there; the groups are no groups of GPUs, or share one, or
            ``device`` is of none of them.
    """

    def __init__(
        self,
        feature_tensor: Any,
        id2index: torch.Tensor | Sequence[int] | Any | None = None,
        split_ratio: float = 0.0,
        device_group_list: list[DeviceGroup] | None = None,
        device: torch.device | str | int | None = None,
        with_gpu: bool | None = True,
        dtype: torch.dtype | None = torch.float32,
        num_threads: int = 1,
        *,
        out_dtype: torch.dtype | None = None,
        hotness: torch.Tensor | None = None,
        device_cache: int | str | None = None,
    ) -> None:
        if not 0.0 <= split_ratio <= 1.0:
            raise InvalidArgumentError(f"split_ratio: expected a share between 0 and 1, got {split_ratio}")
        may_gather = with_gpu is not False
        gpu = gpu_number(device, count=_C.cuda_device_count, must_be_there=may_gather)
        wants_gpu = may_gather and (split_ratio != 0.0 or gpu is not None or device_cache is not None)
        groups = usable_groups(device_group_list, must_be_there=wants_gpu)
        if wants_gpu and not _C.cuda_device_count():
            raise InvalidArgumentError("split_ratio, device_cache: rows on a GPU were asked for, 0 GPUs are usable")
        if wants_gpu and gpu is not None:
            group_of(gpu, gpus_by_group(groups))
        tensor = convert_to_tensor(feature_tensor, dtype, "feature_tensor")
        if not isinstance(tensor, torch.Tensor) or tensor.dim() < 1:
            raise InvalidArgumentError("feature_tensor: expected a tensor of rows")
        self.feature_tensor = tensor.contiguous()
        is_data = isinstance(id2index, (list, tuple, np.ndarray, torch.Tensor))
        self.id2index: Any = (
            check_index_vector(convert_to_tensor(id2index, name="id2index"), "id2index") if is_data else id2index
        )
        self.split_ratio = split_ratio
        self.device_group_list = list(groups) or None
        self.device = gpu
        self.with_gpu = with_gpu
        self.num_threads = num_threads
        self.out_dtype = _checked_cast(self.feature_tensor.dtype, out_dtype)
        self.device_cache = None if device_cache is None else parse_size(device_cache, name="device_cache")
        self._gathers_on_gpu = wants_gpu
        self._placement = place_rows(self.size(0), split_ratio, self._hotness_of_rows(hotness))
        self._unified: UnifiedTensor | None = None
        self._tier: DiskTier | None = None
        self._placed = self._place({})

    def _hotness_of_rows(self, hotness: torch.Tensor | None) -> torch.Tensor | None:
        hotness = convert_to_tensor(hotness, name="hotness")
        if hotness is None or self.id2index is None:
            return hotness
        if not isinstance(self.id2index, torch.Tensor) or hotness.shape != self.id2index.shape:
            raise InvalidArgumentError(
                f"hotness: expected one number for each id of an id2index tensor, got {list(hotness.shape)}"
            )
        held = self.id2index >= 0
        of_rows = torch.zeros(self.size(0), dtype=torch.float64)
        return of_rows.index_add_(0, self.id2index[held].to(torch.int64), hotness[held].to(torch.float64))

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
        if self._placed is not None:
            return self._gather_on_gpu(self._placed, check_index_vector(ids, "ids", any_device=True))
        # Rows that are ids are checked below.
        rows = ids if self.id2index is None else self.rows_of(check_index_tensor(ids, "ids"))
        return self.unified.gather(rows, dtype=self.out_dtype, num_threads=num_threads)

    def _gather_on_gpu(self, placed: PlacedRows, ids: torch.Tensor) -> torch.Tensor:
        # A GPU that has the ids is asked to gather: the current one of a background thread is no choice of anybody's.
        is_given = self.device is not None or not ids.is_cuda
        gathers = placed.on(torch.device("cuda", self._gpu) if is_given else ids.device)
        return gathers.gather(ids if self._has_table else self.rows_of(ids.cpu()), self.out_dtype)

    @property
    def _has_table(self) -> bool:
        """Whether ids have their rows in a table, which GPUs read themselves; or are rows."""
        of_rows = getattr(self.id2index, "is_identity_of", None)
        return self.id2index is None or self._table is not None or (of_rows is not None and of_rows(self.size(0)))

    @property
    def _table(self) -> torch.Tensor | None:
        """The row of each id."""
        return self.id2index if isinstance(self.id2index, torch.Tensor) else None

    def cpu_get(self, ids: torch.Tensor) -> torch.Tensor:
        """As ``feature[ids]``, by the host from its own rows, in host memory."""
        ids = check_index_vector(ids, "ids")
        return self.unified.gather(self.rows_of(ids), dtype=self.out_dtype)

    def gather_into(self, out: torch.Tensor, positions: torch.Tensor, ids: torch.Tensor) -> None:
        """Writes the row of ``ids[i]`` to ``out[positions[i]]`` in host memory, cast to the dtype of ``out``."""
        self.unified.gather_into(out, positions, self.rows_of(ids))

    def lazy_init_with_ipc_handle(self) -> None:
        """Makes the native view, and places what GPUs hold, if that was not done yet."""
        _ = self.unified
        if self._placed is not None:
            self._placed.on(torch.device("cuda", self._gpu))

    def on_device(self, device: torch.device, num_ids: int) -> DeviceRows:
        """The rows of the ids below ``num_ids``, each of which has one, as a GPU gathers them.

        Where the host gathers otherwise, they are read from pinned memory. On the CPU device the host runs the kernels'
        bodies.

        Raises:
            UnknownIdError: an id has no row.
            InvalidArgumentError: there is a ``device_cache``: a captured gather, which is replayed, cannot use it.
        """
        if self._gathers_on_gpu and self.device_cache is not None:
            raise InvalidArgumentError("device_cache: expected None of features for batches of static shapes")
        if self.id2index is None and num_ids > self.size(0):
            raise UnknownIdError(f"ids: id {self.size(0)} has no feature row here")
        table = None if self.id2index is None else self.rows_of(torch.arange(num_ids))
        if self._placed is not None and self._has_table:
            return self._placed.on(device)
        return DeviceRows([self.feature_tensor], device, table)

    def for_batches_on(self, device: torch.device, *, pin: bool) -> DeviceRows | None:
        """The rows as the GPU gathers them that makes batches; None where they are looked up by ``gather``.

        Args:
            device: that GPU. On the CPU device the host runs the kernels' bodies.
            pin: where the host gathers otherwise, have the GPU read them: a copy in its memory where they take at most
                a hundredth of it, which follows changes of the rows in place, else pinned memory.
        """
        if not self._has_table:
            return None
        if self._placed is None:
            return self._pinned_for(device) if pin else None
        is_there = self.device is None or torch.device("cuda", self.device) == device
        return self._placed.on(device) if is_there else None

    def _pinned_for(self, device: torch.device) -> DeviceRows:
        rows = self.feature_tensor
        if device.type == "cuda" and 100 * rows.nbytes <= torch.cuda.get_device_properties(device).total_memory:
            few = FollowedCopy(rows, device)
            return DeviceRows([few.copy], device, self._table, followed=[few])
        return DeviceRows([rows], device, self._table)

    def gather_on(self, device: torch.device | str | int) -> None:
        """Has a GPU gather from now on, in the place of the one that was given; nothing where the host gathers.

        Raises:
            InvalidArgumentError: there is no such GPU, or it is of none of the groups.
        """
        gpu = usable_gpu(device)
        if self._gathers_on_gpu:
            group_of(gpu, gpus_by_group(self.device_group_list))
            self.device = gpu

    @property
    def gathers_on_gpu(self) -> bool:
        """Whether lookups run on a GPU and give tensors there."""
        return self._gathers_on_gpu

    @property
    def _gpu(self) -> int:
        return torch.cuda.current_device() if self.device is None else self.device

    def _place(self, received: Mapping[tuple[int, ...], tuple[GpuHandle, ...]]) -> PlacedRows | None:
        """The rows as GPUs gather them, of which some have come from another process; None where the host gathers."""
        if not self._gathers_on_gpu:
            return None
        table = self._table
        return PlacedRows(
            self.feature_tensor,
            self._placement,
            gpus_by_group(self.device_group_list),
            table,
            received,
            cache_bytes=self.device_cache,
        )

    @property
    def device_cache_counts(self) -> DeviceCacheCounts | None:
        """What the caches of ``device_cache`` were asked in this process; waits for the GPUs. None without."""
        return None if self._placed is None or self.device_cache is None else self._placed.cache_counts

    @property
    def unified(self) -> UnifiedTensor:
        """The rows behind the ids, all of them in host memory."""
        if self._unified is None:
            unified = UnifiedTensor(0, self.feature_tensor.dtype, self.num_threads)
            if self._tier is not None:
                unified.append_disk_tier(self._tier)
            else:
                unified.append_cpu_tensor(self.feature_tensor)
            self._unified = unified  # complete: other threads may look it up
        return self._unified

    @property
    def is_in_file(self) -> bool:
        """Whether the host gathers the rows, and they are mapped from a file as it is; not where they were changed."""
        rows = self.feature_tensor
        return (
            not self._gathers_on_gpu
            and bool(rows.numel())
            and shared_memory.is_file(rows)
            and not shared_memory.is_written(rows)
        )

    @property
    def disk_tier(self) -> DiskTier | None:
        """What reads the rows from their file, after ``limit_memory``; None where they lie in memory or are mapped."""
        return self._tier

    def limit_memory(self, nbytes: int | None) -> None:
        """Has rows that are mapped from a file read through a cache of so many bytes from now on; None maps them again.

        Lookups give the same rows. Rows that lie in memory stay there.
        """
        if nbytes is None or not self.is_in_file:
            self._tier = None
        elif self._tier is None or self._tier.memory_bytes != nbytes:
            self._tier = DiskTier(self.feature_tensor, nbytes)
        self._unified = None

    def share_memory_(self) -> Feature:
        """Moves the rows to memory that other processes can map; rows mapped from a file stay where they are."""
        with shared_memory.moving:
            self.feature_tensor = shared_memory.share(self.feature_tensor)
            if isinstance(self.id2index, torch.Tensor):
                self.id2index = shared_memory.share(self.id2index)
            if self._placement.hot is not None:
                self._placement = replace(self._placement, hot=shared_memory.share(self._placement.hot))
            self._unified = None
            if self._placed is not None:
                self._placed.move(self.feature_tensor)
        return self

    def share_ipc(self) -> FeatureHandle:
        """A handle with which another process of this host maps the same rows while this feature lives.

        Rows in the memory of GPUs are shared too, and placed now: those of all groups, or of this process's GPU.
        """
        with shared_memory.moving:
            self.share_memory_()
            rows, hot = self.id2index, self._placement.hot
            return FeatureHandle(
                shared_memory.to_handle(self.feature_tensor),
                shared_memory.to_handle(rows) if isinstance(rows, torch.Tensor) else rows,
                {name: getattr(self, name) for name in _SETTINGS},
                None if hot is None else shared_memory.to_handle(hot),
                {} if self._placed is None else self._placed.share(self._gpu),
            )

    @classmethod
    def from_ipc_handle(cls, ipc_handle: FeatureHandle) -> Feature:
        """The feature that ``share_ipc`` described, over the same memory."""
        rows = ipc_handle.id2index
        id2index = shared_memory.from_handle(rows) if isinstance(rows, TensorHandle) else rows
        feature = cls(shared_memory.from_handle(ipc_handle.rows), id2index, dtype=None, **ipc_handle.settings)
        if ipc_handle.hot is not None:
            feature._placement = replace(feature._placement, hot=shared_memory.from_handle(ipc_handle.hot))
        feature._placed = feature._place(ipc_handle.on_gpu)
        return feature

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_unified": None, "_tier": None, "_placed": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._placed = self._place({})

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of what lookups give."""
        return self.out_dtype

    @property
    def stored_dtype(self) -> torch.dtype:
        """The dtype of the rows, in which they travel between processes."""
        return self.feature_tensor.dtype

    @property
    def row_bytes(self) -> int:
        """Bytes of a row, as it is stored."""
        return math.prod(self.shape[1:]) * self.stored_dtype.itemsize

    @property
    def shape(self) -> torch.Size:
        return self.feature_tensor.shape

    def size(self, dim: int) -> int:
        return self.feature_tensor.size(dim)


def divide_memory(features: Sequence[Feature], memory: FeatureMemory) -> None:
    """Has rows that lie in files take no more than a process's own bytes: each as much as a few rows take, and of what
    is left a share by its size.

    Where all of them fit into the total they stay mapped, and nothing is slower than before.

    Raises:
        InvalidArgumentError: the process's own bytes do not suffice for a few rows of each.
    """
    in_files = [feature for feature in features if feature.is_in_file]
    sizes = [feature.feature_tensor.numel() * feature.feature_tensor.element_size() for feature in in_files]
    total = sum(sizes)
    if total <= memory.total_bytes:
        for feature in in_files:
            feature.limit_memory(None)
        return
    least = [_C.DiskRows.least_bytes(feature.size(0), bytes_of_row(feature.feature_tensor)) for feature in in_files]
    left = memory.own_bytes - sum(least)
    if left < 0:
        raise InvalidArgumentError(
            f"feature_memory: expected at least {sum(least)} bytes in each process for a few rows of each of "
            f"{len(in_files)} features, got {memory.own_bytes} of {memory.total_bytes}"
        )
    for feature, size, few in zip(in_files, sizes, least, strict=True):
        feature.limit_memory(few + left * size // total)


def counts_of_caches(stores: Mapping[str, Feature]) -> DeviceCacheCounts | None:
    """The sum of ``device_cache_counts`` of features; None where none has a cache. Waits for the GPUs."""
    counts = [found for one in stores.values() if (found := one.device_cache_counts) is not None]
    return sum(counts, DeviceCacheCounts()) if counts else None


def rebuild_feature(ipc_handle: FeatureHandle) -> Feature:
    """The feature that ``reduce_feature`` described."""
    return Feature.from_ipc_handle(ipc_handle)


def reduce_feature(feature: Feature) -> tuple[Any, ...]:
    """How a feature goes to another process through ``multiprocessing``: as a handle to the same rows, without a copy.

    The process that sent it must still live when it is received. ``pickle`` and ``copy`` take the rows themselves.
    """
    return rebuild_feature, (feature.share_ipc(),)


ForkingPickler.register(Feature, reduce_feature)
