"""The rows that one owner has of a learned table, and the state that an optimizer keeps of them."""

from __future__ import annotations

import torch

from ... import _C
from ...core import to_tensor
from ...errors import InvalidArgumentError
from .settings import DTYPES, EmbeddingSettings, OptimizerSettings

_FIRST = {"zeros": _C.FirstRows.ZEROS, "uniform": _C.FirstRows.UNIFORM, "normal": _C.FirstRows.NORMAL}
_STATES = {"sgd": 0, "adagrad": 1, "adam": 2}


def sum_by_id(ids: torch.Tensor, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The distinct ids, ascending, and the sum of the rows of each, added in the order in which they stand."""
    distinct, sums = _C.sum_by_id(ids.contiguous(), rows.contiguous())
    return to_tensor(distinct), to_tensor(sums)


class EmbeddingTable:
    """Rows of some ids, after a number of steps. Who uses it sees to it that no step is taken beside anything else.

    Args:
        settings: of the whole table.
        ids: int64 ``[n]``, global ids in the order of the rows.
    """

    def __init__(self, settings: EmbeddingSettings, ids: torch.Tensor) -> None:
        self.settings = settings
        self.step = 0
        self.rows = torch.empty((len(ids), settings.dim), dtype=DTYPES[settings.dtype])
        self._optimizer = ""
        self._state: list[torch.Tensor] = []
        _C.first_rows(ids.long().contiguous(), settings.key, _FIRST[settings.init], settings.scale, self.rows)

    def pull(self, step: int, at: torch.Tensor) -> torch.Tensor:
        """A copy of the rows ``at`` (int64 ``[n]``, local) as they are after ``step`` steps, ``[n, dim]``."""
        self.check_step(step)
        return self.rows[at]

    def check_step(self, step: int) -> None:
        """Raises ``InvalidArgumentError`` unless these rows have taken as many steps as the caller believes."""
        if step != self.step:
            raise InvalidArgumentError(
                f"step: embedding {self.settings.name!r} has taken {self.step} steps here, the caller is at {step}; "
                "states would be mixed"
            )

    def apply(self, optimizer: OptimizerSettings, at: torch.Tensor, grads: torch.Tensor) -> None:
        """Takes one step with the gradients ``[n, dim]`` of distinct local rows ``at``; others stay as they are."""
        if not self._optimizer:
            self._state = [torch.zeros_like(self.rows) for _ in range(_STATES[optimizer.kind])]
            self._optimizer = optimizer.kind
        elif self._optimizer != optimizer.kind:
            raise InvalidArgumentError(f"optimizer: expected {self._optimizer!r} as before, got {optimizer.kind!r}")
        if optimizer.kind == "sgd":
            _C.sgd_step(self.rows, at, grads, optimizer.lr)
        elif optimizer.kind == "adagrad":
            _C.adagrad_step(self.rows, self._state[0], at, grads, optimizer.lr, optimizer.eps)
        else:
            means, squares = self._state
            how = optimizer.lr, optimizer.beta1, optimizer.beta2, optimizer.eps, self.step + 1
            _C.adam_step(self.rows, means, squares, at, grads, *how)
        self.step += 1
