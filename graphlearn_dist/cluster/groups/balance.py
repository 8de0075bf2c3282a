"""Which worker serves a call that any of them may serve."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...errors import InvalidArgumentError
from ..data.named_sharding import NamedSharding

if TYPE_CHECKING:
    from ...partition import PartitionBook

STRATEGIES = ("round_robin", "least_loaded", "random", "weighted", "locality")
_LAST_CALLS = 0.2  # weight of the newest call in a worker's mean time


@dataclass(frozen=True)
class Load:
    """What is known of a worker that may be chosen.

    Attributes:
        in_flight: calls that it has not answered.
        rate: calls per second that it answers while it has some; None before the first answer.
    """

    in_flight: int
    rate: float | None = None


class LoadMeter:
    """Counts the calls of one worker, which runs them one after the other, and measures its rate.

    Args:
        clock: seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._in_flight = 0
        self._since = 0.0  # when what it works on now came to its turn
        self._mean_s: float | None = None

    def sent(self) -> None:
        """A call was sent."""
        if not self._in_flight:
            self._since = self._clock()
        self._in_flight += 1

    def answered(self, *, is_result: bool) -> None:
        """A call was answered; one that failed says nothing of how fast the worker is."""
        now = self._clock()
        if is_result:
            took_s = now - self._since
            self._mean_s = took_s if self._mean_s is None else self._mean_s + _LAST_CALLS * (took_s - self._mean_s)
        self._since = now
        self._in_flight -= 1

    @property
    def load(self) -> Load:
        """Of now."""
        return Load(self._in_flight, None if self._mean_s is None else 1 / max(self._mean_s, 1e-9))


class SeedOwners:
    """Workers that hold the partition of most seeds of a call, for the strategy ``locality``.

    Args:
        partition_book: owner of each id, one book for all seeds.
        layout: the group's grid.
        axis: of the grid, with a coordinate for each partition.
        argument: name of the data that are seeds, int64 ``[num_seeds]``, global ids.
    """

    def __init__(
        self, partition_book: PartitionBook, layout: NamedSharding, *, axis: str = "partition", argument: str = "seeds"
    ) -> None:
        layout.get_axis_index(axis)
        self._partition_book, self._layout, self._axis, self._argument = partition_book, layout, axis, argument

    def __call__(self, data: Mapping[str, Any]) -> list[int]:
        """Ranks, none for a call without seeds.

        Args:
            data: of the call, by name.

        Raises:
            InvalidArgumentError: the call has no such data.
        """
        import torch  # here: a worker whose script makes groups starts without it

        if self._argument not in data:
            raise InvalidArgumentError(f"{self._argument}: expected seeds under this name, got {sorted(data)}")
        seeds = torch.as_tensor(data[self._argument])
        if not seeds.numel():
            return []
        owner = int(torch.bincount(self._partition_book[seeds]).argmax())
        return self._layout.get_ranks_by_coord(**{self._axis: owner})


class Balancer:
    """Chooses workers.

    Args:
        strategy: ``round_robin`` takes them in turn, ``least_loaded`` the one with the fewest calls in flight (the
            lowest rank of several), ``random`` any, ``weighted`` each as often as its measured rate has of the sum (one
            that was not measured counts as their mean), ``locality`` the least loaded of those that are local to the
            data, or of all where none of those is ready.
        seed: of ``random``.
    """

    def __init__(self, strategy: str, seed: int = 0) -> None:
        if strategy not in STRATEGIES:
            raise InvalidArgumentError(f"load_balancing_strategy: expected one of {STRATEGIES}, got {strategy!r}")
        self._strategy = strategy
        self._random = random.Random(seed)
        self._last = -1
        self._credits: dict[int, float] = {}

    def pick(self, loads: Mapping[int, Load], local: Collection[int] = ()) -> int:
        """A rank.

        Args:
            loads: of each worker that may be chosen, by rank.
            local: ranks that ``locality`` prefers.

        Raises:
            InvalidArgumentError: there is none.
        """
        ranks = sorted(loads)
        if not ranks:
            raise InvalidArgumentError("workers: expected at least one that is ready, got none")
        match self._strategy:
            case "random":
                return self._random.choice(ranks)
            case "weighted":
                return self._pick_weighted(loads)
            case "least_loaded":
                return _least_loaded(ranks, loads)
            case "locality":
                return _least_loaded([rank for rank in ranks if rank in local] or ranks, loads)
        self._last = next((rank for rank in ranks if rank > self._last), ranks[0])
        return self._last

    def _pick_weighted(self, loads: Mapping[int, Load]) -> int:
        """Smooth weighted round robin: each gains its share at each call, and whoever is chosen pays for all."""
        rates = [load.rate for load in loads.values() if load.rate is not None]
        mean = sum(rates) / len(rates) if rates else 1.0
        weights = {rank: mean if load.rate is None else load.rate for rank, load in loads.items()}
        total = sum(weights.values())
        credits = {rank: self._credits.get(rank, 0.0) + weight / total for rank, weight in weights.items()}
        chosen = max(sorted(credits), key=lambda rank: credits[rank])
        self._credits = {**credits, chosen: credits[chosen] - 1.0}
        return chosen


def _least_loaded(ranks: Collection[int], loads: Mapping[int, Load]) -> int:
    return min(ranks, key=lambda rank: (loads[rank].in_flight, rank))
