"""The list of sampling strategies: the names that users ask for, and the methods of the core behind them.

``docs/sampling.md`` says what each strategy takes, and how to add one.
"""

from __future__ import annotations

from dataclasses import dataclass

from .. import _C
from ..errors import InvalidArgumentError
from ..utils.shown import shown

TIME_RULES = {"ignore": _C.TimeRule.IGNORE, "before": _C.TimeRule.BEFORE, "latest": _C.TimeRule.LATEST}
TEMPORAL_STRATEGIES = {"uniform": "before", "last": "latest"}
"""By ``temporal_strategy``, the rule for times along edge types that have them."""


@dataclass(frozen=True)
class Method:
    """A way in which the core draws neighbors, of the list in ``csrc/sampling/methods.h``.

    Attributes:
        name: the core's name of it.
        reads_weights: it reads edge weights.
        may_replace: it can draw with replacement.
    """

    name: str
    reads_weights: bool
    may_replace: bool


METHODS = {name: Method(name, reads_weights, may_replace) for name, reads_weights, may_replace in _C.draw_methods()}


@dataclass(frozen=True)
class Strategy:
    """What ``strategy=`` of a loader names.

    Attributes:
        method: how neighbors are drawn; uniformly along edge types without weights if the method reads them.
        weighted: how they are drawn along edge types with weights for ``with_weight=True``; None refuses that.
        nature: what it does, for errors about arguments that it has no use for.
    """

    method: Method
    weighted: Method | None = None
    nature: str = "draws without weights or replacement"

    def method_for(self, *, with_weight: bool, has_weights: bool) -> Method:
        """How neighbors are drawn along an edge type."""
        method = self.weighted if with_weight and has_weights and self.weighted is not None else self.method
        return METHODS["uniform"] if method.reads_weights and not has_weights else method


STRATEGIES = {
    "random": Strategy(METHODS["uniform"], weighted=METHODS["weighted"]),
    "labor": Strategy(METHODS["labor"]),
    "topk": Strategy(METHODS["topk"], nature="takes the edges of largest weight and draws nothing"),
}


def check_strategy(name: str, *, with_weight: bool, replace: bool) -> None:
    """Checks a strategy against the other settings of a loader.

    Raises:
        InvalidArgumentError: it is unknown, or does not go with weights or replacement.
    """
    if name not in STRATEGIES:
        raise InvalidArgumentError(f"strategy: expected one of {tuple(STRATEGIES)}, got {shown(name)}")
    strategy = STRATEGIES[name]
    if (with_weight and strategy.weighted is None) or (replace and not strategy.method.may_replace):
        raise InvalidArgumentError(
            f"strategy: {name!r} {strategy.nature}; expected with_weight=False and replace=False"
        )
