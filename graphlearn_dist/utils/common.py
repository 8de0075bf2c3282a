"""Odds and ends that user programs call by these names."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch

from .paths import to_path
from .system.ports import free_port


def ensure_dir(dir_path: str) -> None:
    """Makes a directory and its parents, where they are missing."""
    to_path("dir_path", dir_path).mkdir(parents=True, exist_ok=True)


def seed_everything(seed: int) -> None:
    """Seeds python, numpy and torch. Sampling does not depend on it: loaders take seeds of their own."""
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def merge_dict(in_dict: dict[Any, Any], out_dict: dict[Any, Any]) -> None:
    """Appends each value of ``in_dict`` to the list of its key in ``out_dict``."""
    for key, value in in_dict.items():
        out_dict.setdefault(key, []).append(value)


def get_free_port(host: str = "localhost") -> int:
    """A TCP port that was free just now. Somebody else may take it meanwhile: prefer port 0 where that is possible."""
    return free_port(host)


def index_select(data: Any, index: Any) -> Any:
    """``data[index]`` for a tensor, or for every tensor of a dict, list or tuple; None stays None.

    An ``index`` of two integers is a range: ``(begin, end)``.
    """
    if data is None:
        return None
    if isinstance(data, dict):
        return {key: index_select(value, index) for key, value in data.items()}
    if isinstance(data, (list, tuple)):
        return type(data)(index_select(value, index) for value in data)
    return data[slice(*index)] if isinstance(index, tuple) else data[index]
