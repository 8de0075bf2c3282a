"""Conversions to and between tensors."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar

import numpy as np
import torch

from ..errors import InvalidArgumentError, UnknownIdError

T = TypeVar("T")

_NPY_MAGIC = b"\x93NUMPY"


def on_host(value: T) -> T:
    """A dataclass, or a tuple, with all tensors in it in host memory; those that are there are not copied."""
    moved: Any = value
    if isinstance(value, torch.Tensor):
        moved = value.cpu()
    elif isinstance(value, tuple):
        moved = tuple(map(on_host, value))
    elif is_dataclass(value) and not isinstance(value, type):
        moved = replace(value, **{field.name: on_host(getattr(value, field.name)) for field in fields(value)})
    return moved  # type: ignore[no-any-return]


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """The tensors of a dataclass, an object of PyG's, a mapping, a list or a tuple, and of what is in it."""
    if isinstance(value, torch.Tensor):
        yield value
    elif hasattr(value, "apply_"):
        found: list[torch.Tensor] = []
        value.apply_(lambda item: found.append(item) if isinstance(item, torch.Tensor) else None)
        yield from found
    elif isinstance(value, Mapping):
        yield from tensors_in(tuple(value.values()))
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors_in(item)
    elif is_dataclass(value) and not isinstance(value, type):
        for field in fields(value):
            yield from tensors_in(getattr(value, field.name))


def plain_tensor(value: torch.Tensor, name: str) -> torch.Tensor:
    """The numbers of a tensor as a ``torch.Tensor`` and nothing more: strided, in real memory, without a gradient.

    Memory is shared. A subclass over memory of its own (``Parameter``) is taken as it is, and one that wraps other
    tensors by its ``as_tensor()`` (PyG's ``EdgeIndex`` and ``Index``): the core reads memory, and a wrapper has none.

    Raises:
        InvalidArgumentError: there are no such numbers: it is sparse, nested, quantized, on the meta device, or of
            another subclass that wraps; the error begins with ``name``.
    """
    tensor = value
    if type(tensor) is not torch.Tensor:
        tensor = _unwrapped(tensor, name)
    if tensor.layout is not torch.strided or tensor.is_nested or tensor.is_quantized or tensor.is_meta:
        raise InvalidArgumentError(f"{name}: expected a dense tensor with numbers in memory, got {_kind_of(tensor)}")
    if tensor.requires_grad:
        tensor = tensor.detach()
    # Both are flags over memory that holds other numbers.
    return tensor.resolve_conj().resolve_neg() if tensor.is_complex() or tensor.is_neg() else tensor


def host_tensor(value: torch.Tensor, name: str) -> torch.Tensor:
    """As ``plain_tensor``, in host memory, where seeds, edges and rows are read: what lies on a GPU is copied."""
    return plain_tensor(value.cpu() if value.is_cuda else value, name)


def _unwrapped(value: torch.Tensor, name: str) -> torch.Tensor:
    if type(value).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:  # it wraps: it has no memory
        as_tensor = getattr(value, "as_tensor", None)
        inner = as_tensor() if callable(as_tensor) else None
        if type(inner) is torch.Tensor:
            return inner
        raise InvalidArgumentError(
            f"{name}: expected a torch.Tensor, got a {type(value).__module__}.{type(value).__qualname__}, which wraps "
            "others; give the tensor that it stands for"
        )
    with torch._C.DisableTorchFunctionSubclass():
        return value.detach().as_subclass(torch.Tensor)


def _kind_of(tensor: torch.Tensor) -> str:
    kinds = {"a nested": tensor.is_nested, "a quantized": tensor.is_quantized, "a meta": tensor.is_meta}
    return next((kind for kind, is_so in kinds.items() if is_so), f"a {str(tensor.layout).removeprefix('torch.')}") + (
        " tensor"
    )


def convert_to_tensor(data: Any, dtype: torch.dtype | None = None, name: str = "data", *, on_host: bool = True) -> Any:
    """A tensor, list or array as a plain tensor, or a dict of them, over the same memory if possible; None stays None.

    What lies on a GPU is copied to host memory, unless ``on_host`` is False.

    Raises:
        InvalidArgumentError: something else, or a tensor without numbers in memory (see ``plain_tensor``).
    """
    if data is None:
        return None
    if isinstance(data, dict):
        return {key: convert_to_tensor(value, dtype, name, on_host=on_host) for key, value in data.items()}
    if isinstance(data, (tuple, list)) and data and isinstance(data[0], (torch.Tensor, np.ndarray)):
        return type(data)(convert_to_tensor(value, dtype, name, on_host=on_host) for value in data)
    if isinstance(data, np.ndarray):
        data = from_array(np.ascontiguousarray(data), name)
    elif isinstance(data, torch.Tensor):
        data = host_tensor(data, name) if on_host else plain_tensor(data, name)
    else:
        try:
            data = torch.tensor(data)
        except (TypeError, ValueError, RuntimeError) as error:
            raise InvalidArgumentError(
                f"{name}: expected a tensor, array or list of numbers, got {type(data).__name__}"
            ) from error
    return data if dtype is None else data.to(dtype)


def from_array(array: np.ndarray[Any, Any], name: str) -> torch.Tensor:
    """A numpy array as a tensor that will only be read: over the same memory, memory-mapped too, or a copy where torch
    has no such strides or byte order.

    Raises:
        InvalidArgumentError: torch has no such dtype; the error begins with ``name``.
    """
    native = array.dtype.newbyteorder("=")
    if array.dtype != native or any(stride < 0 for stride in array.strides):
        array = np.ascontiguousarray(array, native)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # of read-only memory, which is wanted here
            return torch.from_numpy(array)
    except (TypeError, ValueError) as error:
        raise InvalidArgumentError(f"{name}: expected an array of numbers, got dtype {array.dtype}") from error


def load_tensor(path: str | os.PathLike[str], name: str) -> torch.Tensor:
    """The tensor in a file: what ``numpy.save`` wrote (``.npy``), or what ``torch.save`` wrote of one tensor (``.pt``).

    Nothing but numbers is read: objects in a file, which could run code, are refused.

    Raises:
        InvalidArgumentError: there is no such file, or something else in it; the error begins with ``name``.
    """
    try:
        with open(path, "rb") as file:
            is_npy = file.read(len(_NPY_MAGIC)) == _NPY_MAGIC
        if is_npy:
            return torch.from_numpy(np.load(path, allow_pickle=False))
        loaded = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # damaged or foreign: each reader has errors of its own for that
        raise InvalidArgumentError(
            f"{name}: expected a .npy file (numpy.save of the tensor's .numpy()) or a .pt file (torch.save of the "
            f"tensor), got {path}: {str(error).splitlines()[0] if str(error) else type(error).__name__}"
        ) from error
    if not isinstance(loaded, torch.Tensor):
        raise InvalidArgumentError(f"{name}: expected one tensor in {path}, got {type(loaded).__name__}")
    return loaded


def id2idx(ids: list[int] | torch.Tensor) -> torch.Tensor:
    """The inverse of a list of distinct ids: int64 ``[max id + 1]``, position of each id, -1 where there is none."""
    tensor = torch.as_tensor(ids, dtype=torch.int64)
    if tensor.numel() == 0:
        return torch.empty(0, dtype=torch.int64)
    if int(tensor.min()) < 0:
        raise UnknownIdError(f"ids: id {int(tensor.min())} is negative")
    inverse = torch.full((int(tensor.max()) + 1,), -1, dtype=torch.int64)
    inverse[tensor] = torch.arange(tensor.numel(), dtype=torch.int64)
    return inverse


def apply_to_all_tensor(data: Any, tensor_method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Calls ``tensor_method(tensor, ...)`` on every tensor in nested dicts, lists and tuples; the rest stays."""
    if isinstance(data, dict):
        return {key: apply_to_all_tensor(value, tensor_method, *args, **kwargs) for key, value in data.items()}
    if isinstance(data, (list, tuple)):
        return type(data)(apply_to_all_tensor(value, tensor_method, *args, **kwargs) for value in data)
    if isinstance(data, torch.Tensor):
        return tensor_method(data, *args, **kwargs)
    return data


def tensor_equal_with_device(lhs: torch.Tensor, rhs: torch.Tensor) -> bool:
    """Whether two tensors hold equal values on the same device."""
    return lhs.device == rhs.device and torch.equal(lhs, rhs)


def squeeze(data: Any) -> Any:
    """Every tensor in ``data`` without its dimensions of extent one."""
    return apply_to_all_tensor(data, torch.Tensor.squeeze)


def share_memory(data: Any) -> Any:
    """Moves every tensor in ``data`` to memory that other processes can map; the rest stays."""
    return apply_to_all_tensor(data, lambda tensor: tensor.share_memory_())
