"""The names of ``graphlearn_torch.utils.common``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch

from ...utils.common import ensure_dir, get_free_port, index_select, merge_dict, seed_everything
from ...utils.paths import to_path


def count_dict(in_dict: dict[Any, Any], out_dict: dict[Any, list[int]], target_len: int) -> None:
    """Appends the length of each value of ``in_dict`` to its key's list in ``out_dict``, as entry ``target_len - 1``:
    zeros fill what is missing before it."""
    for key, value in in_dict.items():
        counts = out_dict.setdefault(key, [])
        counts += [0] * (target_len - len(counts) - 1)
        counts.append(len(value))


def default_id_select(srcs: torch.Tensor, p_mask: torch.Tensor, node_pb: Any = None) -> torch.Tensor:
    """Those of ``srcs`` that the mask takes."""
    return torch.masked_select(srcs, p_mask)


def default_id_filter(node_pb: Any, partition_idx: int) -> torch.Tensor:
    """The ids, ascending, that a book or a tensor of owners gives to a partition."""
    return torch.where(node_pb == partition_idx)[0]


def _ckpt_path(ckpt_dir: str | os.PathLike[str], ckpt_seq: int) -> Path:
    return to_path("ckpt_dir", ckpt_dir) / f"model_seq_{ckpt_seq}.ckpt"


def save_ckpt(
    ckpt_seq: int,
    ckpt_dir: str,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer | None = None,
    epoch: float = 0,
) -> None:
    """Saves a model, its optimizer if given, and the epoch, as number ``ckpt_seq`` in a directory, made if missing."""
    path = _ckpt_path(ckpt_dir, ckpt_seq)
    ensure_dir(ckpt_dir)
    saved: dict[str, Any] = {"seq": ckpt_seq, "epoch": epoch, "model_state_dict": model.state_dict()}
    if optimizer is not None:
        saved["optimizer_state_dict"] = optimizer.state_dict()
    torch.save(saved, path)


def load_ckpt(
    ckpt_seq: int, ckpt_dir: str, model: torch.nn.Module, optimizer: torch.optim.Optimizer | None = None
) -> float:
    """Loads what ``save_ckpt`` saved into a model, and an optimizer; the epoch, or -1 where there is no such file."""
    path = _ckpt_path(ckpt_dir, ckpt_seq)
    if not path.exists():
        return -1
    saved = torch.load(path, map_location="cpu", weights_only=True)
    model.load_state_dict(saved["model_state_dict"])
    if optimizer is not None:
        optimizer.load_state_dict(saved["optimizer_state_dict"])
    epoch: float = saved["epoch"]
    return epoch


__all__ = [
    "count_dict",
    "default_id_filter",
    "default_id_select",
    "ensure_dir",
    "get_free_port",
    "index_select",
    "load_ckpt",
    "merge_dict",
    "save_ckpt",
    "seed_everything",
]
