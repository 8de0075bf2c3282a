"""The names of ``graphlearn_torch.utils.common``."""

from __future__ import annotations

from ...utils.common import ensure_dir, get_free_port, index_select, merge_dict, seed_everything

__all__ = [
    "ensure_dir",
    "get_free_port",
    "index_select",
    "merge_dict",
    "seed_everything",
]
