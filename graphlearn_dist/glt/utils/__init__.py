"""The names of ``graphlearn_torch.utils``."""

from __future__ import annotations

from ..typing import reverse_edge_type
from . import common, device, exit_status, mixin, tensor, topo, units
from .common import (
    count_dict,
    default_id_filter,
    default_id_select,
    ensure_dir,
    get_free_port,
    index_select,
    load_ckpt,
    merge_dict,
    save_ckpt,
    seed_everything,
)
from .device import assign_device, ensure_device, get_available_device
from .mixin import CastMixin
from .singleton import singleton
from .tensor import apply_to_all_tensor, convert_to_tensor, id2idx, share_memory, squeeze, tensor_equal_with_device
from .topo import coo_to_csc, coo_to_csr, ptr2ind
from .units import UNITS, parse_size


def __getattr__(name: str) -> bool:
    if name == "python_exit_status":  # another value when the interpreter shuts down
        return exit_status.python_exit_status
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "UNITS",
    "CastMixin",
    "apply_to_all_tensor",
    "assign_device",
    "common",
    "convert_to_tensor",
    "coo_to_csc",
    "coo_to_csr",
    "count_dict",
    "default_id_filter",
    "default_id_select",
    "device",
    "ensure_device",
    "ensure_dir",
    "exit_status",
    "get_available_device",
    "get_free_port",
    "id2idx",
    "index_select",
    "load_ckpt",
    "merge_dict",
    "mixin",
    "parse_size",
    "ptr2ind",
    "python_exit_status",
    "reverse_edge_type",
    "save_ckpt",
    "seed_everything",
    "share_memory",
    "singleton",
    "squeeze",
    "tensor",
    "tensor_equal_with_device",
    "topo",
    "units",
]
