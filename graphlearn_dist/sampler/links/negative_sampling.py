"""Which negatives are drawn for links."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

import torch

from ... import _C
from ...core import available_cores, thread_pool, to_tensor
from ...errors import InvalidArgumentError
from ...typing import EdgeType
from ...utils.message_types import register_message
from ...utils.mixin import CastMixin
from ...utils.shown import shown
from ...utils.tensor import host_tensor
from ...utils.values import check_weights


@register_message
class NegativeSamplingMode(Enum):
    """What is drawn: whole pairs, or targets for given sources."""

    binary = "binary"
    triplet = "triplet"


@register_message
@dataclass(frozen=True)
class NegativeSampling(CastMixin):
    """How many negatives are drawn, and from which nodes.

    Attributes:
        mode: ``binary`` draws both ends of each negative; ``triplet`` draws targets for the source of each positive. A
            string is taken by its name.
        amount: negatives for each positive: above 0 in binary mode, where the number of a batch is rounded up; a whole
            number of at least 1 in triplet mode.
        weight: weights of the target nodes, float ``[num_dst]``, not negative; all alike unless given.
        strict: draw no pair that is an edge. A batch may then hold fewer negatives than asked for, in binary mode.
            Otherwise pairs are any random nodes, as in PyG: see ``docs/sampling.md`` for why that is the default.
        src_weight: weights of the source nodes in binary mode, float ``[num_src]``; all alike unless given.
        hard: in triplet mode an edge type whose edges are hard negatives: of each source's targets the first are its
            neighbors along it, as many as there are and fit, and the others are drawn as without. Hard negatives are
            what they are called, ``strict`` or not.

    Raises:
        InvalidArgumentError: an unknown mode, an amount out of range, weights that cannot be weights, or ``hard`` in
            binary mode.
    """

    mode: NegativeSamplingMode | str
    amount: int | float = 1
    weight: torch.Tensor | None = None
    strict: bool = field(default=False, kw_only=True)
    src_weight: torch.Tensor | None = field(default=None, kw_only=True)
    hard: EdgeType | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        names = [member.value for member in NegativeSamplingMode]
        mode, amount = self.mode, self.amount
        if not isinstance(mode, NegativeSamplingMode) and mode not in names:
            raise InvalidArgumentError(f"mode: expected one of {names}, got {shown(mode)}")
        object.__setattr__(self, "mode", NegativeSamplingMode(mode))
        if isinstance(amount, bool) or not isinstance(amount, (int, float)) or not 0 < amount < math.inf:
            raise InvalidArgumentError(f"amount: expected a number above 0, got {shown(amount)}")
        if self.is_triplet() and (amount != int(amount) or amount < 1):
            raise InvalidArgumentError(f"amount: expected a whole number of at least 1 in triplet mode, got {amount}")
        if self.is_triplet() and self.src_weight is not None:
            raise InvalidArgumentError("src_weight: expected None in triplet mode, where sources are given")
        if self.hard is not None and not self.is_triplet():
            raise InvalidArgumentError("hard: expected None in binary mode, which draws the sources too")
        for name in ("weight", "src_weight"):
            if (weight := getattr(self, name)) is not None:
                checked_weights(weight, name)
                object.__setattr__(self, name, host_tensor(weight, name))

    def is_binary(self) -> bool:
        """Whether both ends of a negative are drawn."""
        return self.mode is NegativeSamplingMode.binary

    def is_triplet(self) -> bool:
        """Whether targets are drawn for given sources."""
        return self.mode is NegativeSamplingMode.triplet

    def count(self, num_positives: int) -> int:
        """Negatives of a batch of so many positives."""
        return math.ceil(self.amount * num_positives)

    def share_memory(self) -> NegativeSampling:
        """The same, its weights in memory that other processes can map."""
        for weight in (self.weight, self.src_weight):
            if weight is not None:
                weight.share_memory_()  # type: ignore[no-untyped-call]
        return self

    def to(self, device: torch.device | str) -> NegativeSampling:
        """The same, its weights on another device."""
        weight = None if self.weight is None else self.weight.to(device)
        src_weight = None if self.src_weight is None else self.src_weight.to(device)
        return replace(self, weight=weight, src_weight=src_weight)


def negatives_of(given: Any, *, strict: bool = False) -> NegativeSampling | None:
    """What loaders take as ``neg_sampling``: ours or PyG's ``NegativeSampling``, a mode, a tuple or dict of arguments.

    ``strict`` is for PyG's, which does not say.
    """
    if not hasattr(given, "dst_weight"):
        try:
            cast: NegativeSampling | None = NegativeSampling.cast(given)
        except TypeError as error:  # arguments that it does not have, or lacks
            wanted = "a NegativeSampling, a mode, or a tuple or dict of its arguments"
            raise InvalidArgumentError(f"neg_sampling: expected {wanted}, got {shown(given)}: {error}") from error
        return cast
    sources = None if given.is_triplet() else given.src_weight  # PyG's has it there, too, and does not look at it
    return NegativeSampling(given.mode.value, given.amount, given.dst_weight, src_weight=sources, strict=strict)


@dataclass(frozen=True)
class NodeWeights:
    """Weights of the nodes of one type, from which nodes are drawn.

    Attributes:
        weights: float64 ``[num_nodes]``, finite and at least 0; one of them is positive.
        sums: float64 ``[num_nodes]``, see csrc/graph/weights.h.
    """

    weights: torch.Tensor
    sums: torch.Tensor

    @classmethod
    def of(cls, weight: torch.Tensor, name: str, num_nodes: int | None = None) -> NodeWeights:
        """The weights that a user gave as argument ``name``.

        Raises:
            InvalidArgumentError: not one weight for each node, a weight that is negative or not finite, or none that
                is positive.
        """
        weights = checked_weights(weight, name, num_nodes)
        row = torch.tensor([0, weights.numel()])
        return cls(weights, to_tensor(_C.sum_weights(row, weights, thread_pool(available_cores()))[0]))


def checked_weights(weight: torch.Tensor, name: str, num_nodes: int | None = None) -> torch.Tensor:
    """Weights in host memory, float64 ``[num_nodes]``; raises as ``NodeWeights.of``."""
    if not isinstance(weight, torch.Tensor) or weight.dim() != 1 or weight.is_complex():
        got = tuple(weight.shape) if isinstance(weight, torch.Tensor) else type(weight).__name__
        raise InvalidArgumentError(f"{name}: expected a one-dimensional tensor of weights, got {got}")
    if num_nodes is not None and weight.numel() != num_nodes:
        raise InvalidArgumentError(f"{name}: expected one weight for each of {num_nodes} nodes, got {weight.numel()}")
    weights = host_tensor(weight, name).to(torch.float64).contiguous()
    check_weights(name, weights)
    if weights.numel() and not bool((weights > 0).any()):
        raise InvalidArgumentError(f"{name}: expected a positive weight, got {weights.numel()} of 0")
    return weights
