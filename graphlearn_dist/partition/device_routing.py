"""A frontier divided among its owners, and their answers put back in its order, on a GPU: as on the CPU, bit by bit.

For programs that keep frontiers on the GPU; distributed loaders route on the CPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from .. import _C
from ..core import check_index_vector, to_optional_tensor
from ..errors import InvalidArgumentError, UnknownIdError
from ..utils.device import device_number, stream_handle
from .partition_book import PartitionBook

NeighborAnswer = tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]
"""What an owner answers for its bucket: counts int ``[n]``, neighbors int ``[sum]``, edge ids int ``[sum]`` or None."""


@dataclass(frozen=True)
class RoutedIds:
    """Ids in buckets by owner, each bucket in the order asked.

    Attributes:
        ids: int64 ``[n]``, global.
        rows: int64 ``[n]``, their rows at the owner.
        positions: int64 ``[n]``, where each stood in the list that was split.
        offsets: int64 ``[num_partitions + 1]``, bounds of the buckets, on the host.
    """

    ids: torch.Tensor
    rows: torch.Tensor
    positions: torch.Tensor
    offsets: torch.Tensor


class DeviceBook:
    """A partition book in memory that a GPU reads: a few numbers where it is a formula, else its tables. Thread-safe.

    Args:
        book: which partition owns an id.
        device: the GPU. On the CPU device the host runs the kernels' bodies, one after the other.
    """

    def __init__(self, book: PartitionBook, device: torch.device) -> None:
        native = book.native
        offsets, owners, rows = map(to_optional_tensor, native.arrays())
        assert offsets is not None  # only tables may be missing
        owners, rows = (None if table is None else table.to(device) for table in (owners, rows))
        self._book = _C.DeviceBook(native, offsets.to(device), owners, rows, device_number(device))
        self._num_partitions = int(native.num_partitions)
        self._device = device

    def split(self, ids: torch.Tensor) -> RoutedIds:
        """Divides ids by owner, on the caller's current stream; the host waits for the bounds of the buckets.

        Args:
            ids: int ``[n]``, global, on the device.

        Raises:
            UnknownIdError: the book does not hold an id.
        """
        ids = check_index_vector(ids, "ids")
        grouped, rows, positions = torch.empty((3, ids.numel()), dtype=torch.int64, device=self._device)
        head = torch.empty(self._num_partitions + 2, dtype=torch.int64, device=self._device)
        scratch = _scratch(self._book.scratch_bytes(ids.numel()), self._device)
        out = grouped, rows, positions, head[:-1], head[-1:]
        self._book.split(ids, *out, scratch, stream_handle(self._device))
        found = head.cpu()  # waits for the stream
        if (bad := int(found[-1])) >= 0:
            raise UnknownIdError(f"ids[{bad}]={int(ids[bad])}: the partition book holds no such id")
        return RoutedIds(grouped, rows, positions, found[:-1])


def stitch_on_device(
    routed: RoutedIds, parts: Sequence[NeighborAnswer | None]
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """The answers of owners in the order of the ids that were split, on the caller's current stream.

    The host waits once, to learn whether the answers add up.

    Args:
        routed: the ids, whose tensors but ``offsets`` lie on the device.
        parts: by owner, its answer for its bucket, on the device; None where the bucket is empty.

    Returns:
        Counts int64 ``[n]``, neighbors ``[sum]`` and edge ids ``[sum]`` or None: int32 if every answer with neighbors
        is int32, else int64.

    Raises:
        InvalidArgumentError: an answer does not fit its bucket, or its counts do not add up; the error names the part.
    """
    device = routed.positions.device
    answers = routed.positions, routed.offsets, list(parts)
    total, neighbor_type, edge_id_type, num_bytes = _C.stitch_shape(*answers, device_number(device))

    def empty(dtype: str) -> torch.Tensor:
        return torch.empty(total, dtype=getattr(torch, dtype), device=device)

    counts, neighbors = torch.empty_like(routed.positions), empty(neighbor_type)
    edge_ids = None if edge_id_type is None else empty(edge_id_type)
    status, scratch = torch.empty(3, dtype=torch.int64, device=device), _scratch(num_bytes, device)
    out = counts, neighbors, edge_ids, status, scratch
    _C.stitch_on_device(*answers, *out, device_number(device), stream_handle(device))
    bad_count, bad_position, bad_part = status.tolist()  # waits for the stream
    if bad_count >= 0:
        raise InvalidArgumentError(
            f"parts: the count at place {bad_count} of the buckets is negative, or above the neighbors of its part"
        )
    if bad_position >= 0:
        raise InvalidArgumentError(
            f"positions[{bad_position}]: expected each of 0 to {counts.numel() - 1} once, got "
            f"{int(routed.positions[bad_position])}"
        )
    if bad_part >= 0:
        raise InvalidArgumentError(f"parts[{bad_part}]: its counts do not add up to its neighbors")
    return counts, neighbors, edge_ids


def _scratch(num_bytes: int, device: torch.device) -> torch.Tensor:
    return torch.empty(num_bytes // 8, dtype=torch.int64, device=device)
