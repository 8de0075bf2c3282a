"""Small helpers under the names that user programs know. Those that need torch are imported when first used."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from .singleton import singleton
from .units import parse_size

if TYPE_CHECKING:
    from .common import ensure_dir, get_free_port, index_select, merge_dict, seed_everything
    from .device import assign_device, ensure_device, get_available_device
    from .mixin import CastMixin
    from .tensor import apply_to_all_tensor, convert_to_tensor, id2idx, share_memory, squeeze, tensor_equal_with_device
    from .topo import coo_to_csc, coo_to_csr, ptr2ind

_LATE = {
    "CastMixin": "mixin",
    "apply_to_all_tensor": "tensor",
    "assign_device": "device",
    "convert_to_tensor": "tensor",
    "coo_to_csc": "topo",
    "coo_to_csr": "topo",
    "ensure_device": "device",
    "ensure_dir": "common",
    "get_available_device": "device",
    "get_free_port": "common",
    "id2idx": "tensor",
    "index_select": "common",
    "merge_dict": "common",
    "ptr2ind": "topo",
    "seed_everything": "common",
    "share_memory": "tensor",
    "squeeze": "tensor",
    "tensor_equal_with_device": "tensor",
}

__all__ = [
    "CastMixin",
    "apply_to_all_tensor",
    "assign_device",
    "convert_to_tensor",
    "coo_to_csc",
    "coo_to_csr",
    "ensure_device",
    "ensure_dir",
    "get_available_device",
    "get_free_port",
    "id2idx",
    "index_select",
    "merge_dict",
    "parse_size",
    "ptr2ind",
    "seed_everything",
    "share_memory",
    "singleton",
    "squeeze",
    "tensor_equal_with_device",
]


def __getattr__(name: str) -> Any:
    if name in _LATE:
        return getattr(importlib.import_module(f".{_LATE[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
