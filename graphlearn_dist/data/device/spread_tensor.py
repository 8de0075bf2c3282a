"""Tensors that several GPUs of a host hold, an equal share each, at one range of addresses (``spread_memory.h``)."""

from __future__ import annotations

import os
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from multiprocessing.reduction import DupFd
from typing import Any

import torch

from ... import _C
from ...core import to_tensor
from ...errors import CudaError
from ...utils.device import as_current, device_number
from .stream_uses import between_captures


@dataclass(frozen=True)
class SpreadTensor:
    """A tensor in pieces, of which nobody who reads it notices anything.

    Attributes:
        tensor: the values, as a tensor of the GPU that reads them; it keeps the pieces.
        memory: the pieces.
    """

    tensor: torch.Tensor
    memory: _C.SpreadMemory


def spread(values: torch.Tensor, gpus: Sequence[int], reader: torch.device) -> SpreadTensor:
    """Copies values to the memories of GPUs.

    Args:
        values: in host memory, not empty.
        gpus: who holds them, an equal share each, to 2 MiB.
        reader: who reads them; on the CPU device the pieces lie in host memory.

    Raises:
        InvalidArgumentError: the reader cannot read the memory of another GPU.
        CudaError: a GPU has no room.
    """
    memory = _take(gpus, values.nbytes, reader)
    raw, source = to_tensor(memory.tensor()), values.contiguous().view(-1).view(torch.uint8)
    ends = accumulate((num_bytes for _, num_bytes in memory.pieces), initial=0)
    for begin, end in pairwise(ends):  # a copy each, as each is a GPU's
        part = source[begin:end]
        raw[begin : begin + part.numel()].copy_(part)
    return SpreadTensor(_viewed(raw, values.dtype, tuple(values.shape)), memory)


def _take(gpus: Sequence[int], num_bytes: int, reader: torch.device) -> _C.SpreadMemory:
    with as_current(reader):
        try:
            return _C.SpreadMemory(list(gpus), num_bytes, device_number(reader))
        except CudaError:  # room that torch keeps for tensors to come is taken then, as by a tensor
            with between_captures():
                torch.cuda.empty_cache()
            return _C.SpreadMemory(list(gpus), num_bytes, device_number(reader))


def _viewed(raw: torch.Tensor, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    return raw[: torch.Size(shape).numel() * dtype.itemsize].view(dtype).view(shape)


class SpreadHandle:
    """A ``SpreadTensor`` for another process of the host, which maps the same pieces while the sender's lives.

    It travels through ``multiprocessing``, which takes descriptors along, and is good for any number of processes. As
    an argument of a process it has to live until that has been started.

    Args:
        descriptors: of the pieces; closed with this object.
        pieces: (GPU, bytes) of each.
        dtype: of the tensor.
        shape: of the tensor.
    """

    def __init__(
        self, descriptors: Sequence[int], pieces: Sequence[tuple[int, int]], dtype: torch.dtype, shape: tuple[int, ...]
    ) -> None:
        self._descriptors = list(descriptors)
        self._pieces = list(pieces)
        self._dtype = dtype
        self._shape = shape
        weakref.finalize(self, _close_all, self._descriptors)

    @classmethod
    def of(cls, placed: SpreadTensor) -> SpreadHandle:
        """The handle of a tensor.

        Raises:
            CudaError: the system has no descriptors for the memory of GPUs.
        """
        memory, tensor = placed.memory, placed.tensor
        return cls(memory.share(), memory.pieces, tensor.dtype, tuple(tensor.shape))

    def open(self, reader: torch.device) -> SpreadTensor:
        """The tensor over the same pieces.

        Raises:
            InvalidArgumentError: the reader cannot read the memory of a GPU that holds one.
            CudaError: the driver fails.
        """
        memory = _C.SpreadMemory.receive(self._pieces, self._descriptors, device_number(reader))
        return SpreadTensor(_viewed(to_tensor(memory.tensor()), self._dtype, self._shape), memory)

    def __reduce__(self) -> tuple[Any, ...]:
        sent = [DupFd(descriptor) for descriptor in self._descriptors]
        return _received, (sent, self._pieces, self._dtype, self._shape)


def _received(
    sent: Sequence[Any], pieces: Sequence[tuple[int, int]], dtype: torch.dtype, shape: tuple[int, ...]
) -> SpreadHandle:
    return SpreadHandle([descriptor.detach() for descriptor in sent], pieces, dtype, shape)


def _close_all(descriptors: Sequence[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
