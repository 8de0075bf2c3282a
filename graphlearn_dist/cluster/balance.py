"""Which worker serves a call that any of them may serve."""

from __future__ import annotations

import random
from collections.abc import Mapping

from ..errors import InvalidArgumentError

STRATEGIES = ("round_robin", "least_loaded", "random")


class Balancer:
    """Chooses workers.

    Args:
        strategy: ``round_robin`` takes them in turn, ``least_loaded`` the one with the fewest calls in flight (the
            lowest rank of several), ``random`` any.
        seed: of ``random``.
    """

    def __init__(self, strategy: str, seed: int = 0) -> None:
        if strategy not in STRATEGIES:
            raise InvalidArgumentError(f"load_balancing_strategy: expected one of {STRATEGIES}, got {strategy!r}")
        self._strategy = strategy
        self._random = random.Random(seed)
        self._last = -1

    def pick(self, in_flight: Mapping[int, int]) -> int:
        """A rank.

        Args:
            in_flight: calls in flight of each worker that may be chosen, by rank.

        Raises:
            InvalidArgumentError: there is none.
        """
        ranks = sorted(in_flight)
        if not ranks:
            raise InvalidArgumentError("workers: expected at least one that is ready, got none")
        if self._strategy == "least_loaded":
            return min(ranks, key=lambda rank: in_flight[rank])
        if self._strategy == "random":
            return self._random.choice(ranks)
        self._last = next((rank for rank in ranks if rank > self._last), ranks[0])
        return self._last
