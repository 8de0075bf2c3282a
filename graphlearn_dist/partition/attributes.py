"""Attributes of a graph as a partitioner takes and writes them."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import torch

from ..errors import InvalidArgumentError
from ..utils.tensor import convert_to_tensor
from .layout import EdgeKey, NodeKey, array_path
from .storage import ArrayFile, write_tensor


def attr_path(group: str, key: NodeKey | EdgeKey, name: str, partition_idx: int | None = None) -> str:
    """As ``array_path``, of an attribute of any name, which is percent-encoded likewise."""
    return array_path(group, key, quote(name, safe="").replace(".", "%2E"), partition_idx)


def constant_inputs(given: Any, types: Collection[Any]) -> dict[Any, dict[str, Any]]:
    """Attributes without rows: tensors, or what JSON holds.

    Raises:
        InvalidArgumentError: an unknown type, or a value that no partition directory can hold.
    """
    constants: dict[Any, dict[str, Any]] = {}
    for key, named in (given or {}).items():
        if key is not None and key not in types:
            raise InvalidArgumentError(f"constants: unknown type {key!r}; expected None or some of {list(types)}")
        constants[key] = {name: _constant(name, value) for name, value in named.items()}
    return constants


def _constant(name: str, value: Any) -> Any:
    if isinstance(value, (torch.Tensor, np.ndarray)):
        return convert_to_tensor(value, name=f"constants: {name}")
    try:
        same = json.loads(json.dumps(value)) == value
    except (TypeError, ValueError):
        same = False
    if not same:
        raise InvalidArgumentError(
            f"constants: {name}: expected a tensor, or numbers, texts, lists and dictionaries by text, got "
            f"{type(value).__name__}; attrs= names the attributes that come along"
        )
    return value


def write_constants(
    root: Path, constants: Mapping[Any, Mapping[str, Any]]
) -> Iterator[tuple[dict[str, Any], ArrayFile | None]]:
    """The entries of META.json, each with its file where it is a tensor."""
    for key, named in constants.items():
        for name, value in named.items():
            entry = {"type": list(key) if isinstance(key, tuple) else key, "name": name}
            if isinstance(value, torch.Tensor):
                file = write_tensor(root, attr_path("graph_attr", key, name), value)
                yield {**entry, "file": file.path}, file
            else:
                yield {**entry, "value": value}, None
