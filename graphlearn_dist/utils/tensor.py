"""Conversions to and between tensors."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from ..errors import InvalidArgumentError, UnknownIdError

_NPY_MAGIC = b"\x93NUMPY"


def convert_to_tensor(data: Any, dtype: torch.dtype | None = None) -> Any:
    """A tensor, list or numpy array as a tensor, or a dict of them; None stays None. Memory is shared if possible."""
    if data is None:
        return None
    if isinstance(data, dict):
        return {key: convert_to_tensor(value, dtype) for key, value in data.items()}
    if isinstance(data, (tuple, list)) and data and isinstance(data[0], (torch.Tensor, np.ndarray)):
        return type(data)(convert_to_tensor(value, dtype) for value in data)
    if isinstance(data, np.ndarray):
        data = torch.from_numpy(np.ascontiguousarray(data))
    elif not isinstance(data, torch.Tensor):
        try:
            data = torch.tensor(data)
        except (TypeError, ValueError, RuntimeError) as error:
            raise InvalidArgumentError(
                f"data: expected a tensor, array or list of numbers, got {type(data).__name__}"
            ) from error
    return data if dtype is None else data.to(dtype)


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
