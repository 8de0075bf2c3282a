"""The names of ``graphlearn_torch.utils.tensor``."""

from __future__ import annotations

from ...utils.tensor import (
    apply_to_all_tensor,
    convert_to_tensor,
    id2idx,
    share_memory,
    squeeze,
    tensor_equal_with_device,
)

__all__ = [
    "apply_to_all_tensor",
    "convert_to_tensor",
    "id2idx",
    "share_memory",
    "squeeze",
    "tensor_equal_with_device",
]
