"""Scores of pairs of nodes from their rows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from ..errors import InvalidArgumentError, StorageError, UnknownIdError
from ..typing import NodeType
from ..utils.paths import to_path
from .results import Results

_AT_ONCE = 1 << 16


def load_pairs(path: str | Path) -> torch.Tensor:
    """What a ``.npy`` file holds, as ``score_pairs`` takes it.

    Raises:
        StorageError: it cannot be read.
        InvalidArgumentError: it holds no integers.
    """
    to_path("path", path)
    try:
        found = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise StorageError(f"pairs: {path}: cannot be read ({error})") from error
    if not isinstance(found, np.ndarray):
        raise StorageError(f"pairs: {path}: cannot be read (it is an archive of several arrays)")
    if found.dtype.kind not in "iu":
        raise InvalidArgumentError(f"pairs: expected int64 or int32 [2, n] in {path}, got {found.dtype}")
    return torch.from_numpy(found)


def score_pairs(
    results: Results,
    pairs: torch.Tensor,
    *,
    node_types: tuple[NodeType | None, NodeType | None] = (None, None),
    score: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] | None = None,
) -> torch.Tensor:
    """Scores pairs of nodes, such as links that may be there.

    Args:
        results: with the rows of both ends.
        pairs: int64 or int32 ``[2, n]``, node ids of sources and targets.
        node_types: of sources and targets.
        score: makes ``[n]`` of the float32 rows of sources and targets; their inner product unless given.

    Returns:
        float32 ``[n]``.

    Raises:
        InvalidArgumentError: pairs of another shape or dtype.
        UnknownIdError: an id is no node's.
    """
    if not isinstance(pairs, torch.Tensor):
        raise InvalidArgumentError(f"pairs: expected a tensor, int64 [2, n], got {type(pairs).__name__}")
    if pairs.dim() != 2 or len(pairs) != 2 or pairs.dtype not in (torch.int64, torch.int32):
        raise InvalidArgumentError(f"pairs: expected int64 or int32 [2, n], got {pairs.dtype} {list(pairs.shape)}")
    ends = [results.rows(node_type) for node_type in node_types]
    for ids, rows in zip(pairs, ends, strict=True):
        if ids.numel() and not 0 <= int(ids.min()) <= int(ids.max()) < len(rows):
            raise UnknownIdError(f"pairs: expected 0 <= id < {len(rows)}, got {int(ids.min())} to {int(ids.max())}")
    found = torch.empty(pairs.size(1))
    for first in range(0, pairs.size(1), _AT_ONCE):
        part = slice(first, first + _AT_ONCE)
        left, right = (rows[ids[part].long()].float() for ids, rows in zip(pairs, ends, strict=True))
        found[part] = (left * right).sum(dim=1) if score is None else score(left, right)
    return found
