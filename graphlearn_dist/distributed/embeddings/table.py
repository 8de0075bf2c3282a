"""The rows that one owner has of a learned table, and the state that an optimizer keeps of them."""

from __future__ import annotations

import os
import secrets
from dataclasses import dataclass
from pathlib import Path

import torch

from ... import _C
from ...core import pooled_empty, to_tensor
from ...errors import EmbeddingStateError, InvalidArgumentError
from ...utils.system.disk import disk_errors, map_new_array
from .settings import DTYPES, EmbeddingSettings, OptimizerSettings

_FIRST = {"zeros": _C.FirstRows.ZEROS, "uniform": _C.FirstRows.UNIFORM, "normal": _C.FirstRows.NORMAL}
STATES = {"": 0, "sgd": 0, "adagrad": 1, "adam": 2}
"""Arrays that an optimizer keeps of the rows, by its kind; none before the first step."""


def sum_by_id(ids: torch.Tensor, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The distinct ids, ascending, and the sum of the rows of each, added in the order in which they stand."""
    distinct, sums = _C.sum_by_id(ids.contiguous(), rows.contiguous())
    return to_tensor(distinct), to_tensor(sums)


def new_rows(settings: EmbeddingSettings, count: int) -> torch.Tensor:
    """Rows ``[count, dim]`` without values, in memory, or mapped from a file that goes with them.

    Raises:
        StorageError: the disk is full, or the folder cannot be written.
    """
    shape, dtype = (count, settings.dim), DTYPES[settings.dtype]
    if not settings.path or not count:
        return pooled_empty(shape, dtype)
    folder = Path(settings.path)
    with disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        place = folder / f".rows-{os.getpid()}-{secrets.token_hex(4)}.npy"
        mapped = map_new_array(place, settings.dtype, shape)
        place.unlink()  # its blocks are free when nobody maps them any more, however this process ends
    return torch.from_numpy(mapped)


@dataclass
class RowState:
    """Rows as they are after some steps.

    Attributes:
        rows: ``[n, dim]``.
        optimizer: the kind that took the steps; empty where none was taken.
        optimizer_state: what it keeps of each row, ``[n, dim]`` each.
        step: how many steps were taken.
    """

    rows: torch.Tensor
    optimizer: str
    optimizer_state: list[torch.Tensor]
    step: int


class EmbeddingTable:
    """Rows of some ids, after a number of steps. Who uses it sees to it that no step is taken beside anything else.

    Args:
        settings: of the whole table.
        ids: int64 ``[n]``, global ids in the order of the rows.
    """

    def __init__(self, settings: EmbeddingSettings, ids: torch.Tensor) -> None:
        self.settings = settings
        self.tag = ""  # of the checkpoint that was loaded last
        self._pool = _C.ThreadPool(1)
        # Large pages: rows are strewn, and with small ones each would take a walk through tables of pages.
        self._set(RowState(new_rows(settings, len(ids)), "", [], 0))
        _C.first_rows(ids.long().contiguous(), settings.key, _FIRST[settings.init], settings.scale, self.state.rows)

    @property
    def step(self) -> int:
        """Steps that the rows have taken."""
        return self.state.step

    def pull(self, at: torch.Tensor) -> torch.Tensor:
        """A copy of the rows ``at`` (int64 ``[n]``, local), ``[n, dim]``."""
        return to_tensor(self._rows.gather(at, self._pool))

    def restore(self, state: RowState, tag: str) -> None:
        """Goes on from a checkpoint."""
        self._set(state)
        self.tag = tag

    def _set(self, state: RowState) -> None:
        self.state, self._rows = state, _C.RowStore([state.rows])

    def check(self, step: int, tag: str) -> None:
        """Raises ``EmbeddingStateError`` unless these rows have taken the steps that the caller believes."""
        if (step, tag) != (self.step, self.tag):
            loaded = f" since checkpoint {self.tag}" if self.tag else ""
            believed = f" since checkpoint {tag}" if tag else ""
            raise EmbeddingStateError(
                f"embedding {self.settings.name!r} has taken {self.step} steps{loaded} here, the caller is at "
                f"{step}{believed}; states would be mixed: all trainers have to load() a checkpoint"
            )

    def apply(self, optimizer: OptimizerSettings, at: torch.Tensor, grads: torch.Tensor) -> None:
        """Takes one step with the gradients ``[n, dim]`` of distinct local rows ``at``; others stay as they are."""
        state = self.state
        if not state.optimizer:
            count = len(state.rows)
            state.optimizer_state = [new_rows(self.settings, count).zero_() for _ in range(STATES[optimizer.kind])]
            state.optimizer = optimizer.kind
        elif state.optimizer != optimizer.kind:
            raise InvalidArgumentError(f"optimizer: expected {state.optimizer!r} as before, got {optimizer.kind!r}")
        if optimizer.kind == "sgd":
            _C.sgd_step(state.rows, at, grads, optimizer.lr)
        elif optimizer.kind == "adagrad":
            _C.adagrad_step(state.rows, state.optimizer_state[0], at, grads, optimizer.lr, optimizer.eps)
        elif optimizer.kind == "adam":
            means, squares = state.optimizer_state
            how = optimizer.lr, optimizer.beta1, optimizer.beta2, optimizer.eps, state.step + 1
            _C.adam_step(state.rows, means, squares, at, grads, *how)
        else:
            raise InvalidArgumentError(f"optimizer: expected 'sgd', 'adagrad' or 'adam', got {optimizer.kind!r}")
        state.step += 1
