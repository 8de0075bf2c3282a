"""What servers are told of learned rows and of the optimizer that changes them."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from typing import Literal, get_args

import torch

from ...errors import InvalidArgumentError
from ...typing import NodeType
from ...utils.message_types import register_message
from ...utils.values import is_number, is_whole

Init = Literal["zeros", "uniform", "normal"]
OptimizerKind = Literal["sgd", "adagrad", "adam"]
DTYPES = {"float32": torch.float32, "float64": torch.float64}


@register_message
@dataclass(frozen=True)
class EmbeddingSettings:
    """A table of learned rows.

    Attributes:
        name: tells the tables of a job apart.
        node_type: the nodes whose partitions own the rows; None where there is one type.
        num: rows of all partitions together.
        dim: values of a row.
        init: how first values are made.
        scale: their bound (uniform) or standard deviation (normal).
        seed: of the first values.
        dtype: ``"float32"`` or ``"float64"``.
        path: a folder where each owner maps its rows from a file; empty: they are in memory.
    """

    name: str
    node_type: NodeType | None
    num: int
    dim: int
    init: str
    scale: float
    seed: int
    dtype: str
    path: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise InvalidArgumentError(f"name: expected a text that is not empty, got {self.name!r}")
        for argument, value in (("num", self.num), ("dim", self.dim)):
            if not is_whole(value) or value < 1:
                raise InvalidArgumentError(f"{argument}: expected a whole number of at least 1, got {value!r}")
        if not is_whole(self.seed):
            raise InvalidArgumentError(f"seed: expected a whole number, got {self.seed!r}")
        if self.init not in get_args(Init):
            raise InvalidArgumentError(f"init: expected one of {get_args(Init)}, got {self.init!r}")
        if not is_number(self.scale) or not math.isfinite(self.scale):
            raise InvalidArgumentError(f"scale: expected a finite number, got {self.scale!r}")
        if self.dtype not in DTYPES:
            raise InvalidArgumentError(f"dtype: expected one of {[*DTYPES]}, got {self.dtype!r}")

    @property
    def key(self) -> int:
        """The key of the first values: of the seed and the name alone."""
        digest = hashlib.blake2b(f"{self.seed}/{self.name}".encode(), digest_size=8).digest()
        return int.from_bytes(digest, "little")


@register_message
@dataclass(frozen=True)
class OptimizerSettings:
    """How gradients change rows; the names are those of ``torch.optim``.

    Attributes:
        kind: which optimizer.
        lr: its learning rate.
        eps: added to the root in the denominator; not of SGD.
        beta1: decay of Adam's mean.
        beta2: decay of Adam's mean of squares.
    """

    kind: str
    lr: float
    eps: float = 1e-8
    beta1: float = 0.9
    beta2: float = 0.999

    def __post_init__(self) -> None:
        if self.kind not in get_args(OptimizerKind):
            raise InvalidArgumentError(f"kind: expected one of {get_args(OptimizerKind)}, got {self.kind!r}")
        for argument, value in (("lr", self.lr), ("eps", self.eps)):
            if not is_number(value) or not 0 <= value < math.inf:
                raise InvalidArgumentError(f"{argument}: expected a finite number of at least 0, got {value!r}")
        if not all(is_number(beta) and 0 <= beta < 1 for beta in (self.beta1, self.beta2)):
            raise InvalidArgumentError(f"betas: expected 0 <= beta < 1, got {(self.beta1, self.beta2)}")
