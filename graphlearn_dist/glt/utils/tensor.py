"""The names of ``graphlearn_torch.utils.tensor``."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from ...utils import tensor
from ...utils.tensor import apply_to_all_tensor, id2idx, share_memory, squeeze, tensor_equal_with_device


def convert_to_tensor(data: Any, dtype: torch.dtype | None = None) -> Any:
    """Tensors and arrays as tensors, in dicts, lists and tuples too; what is none of them stays."""
    if isinstance(data, dict):
        return {key: convert_to_tensor(value, dtype) for key, value in data.items()}
    if isinstance(data, (list, tuple)):
        return type(data)(convert_to_tensor(value, dtype) for value in data)
    if not isinstance(data, (torch.Tensor, np.ndarray)):
        return data
    return tensor.convert_to_tensor(data, dtype, on_host=False)


__all__ = [
    "apply_to_all_tensor",
    "convert_to_tensor",
    "id2idx",
    "share_memory",
    "squeeze",
    "tensor_equal_with_device",
]
