"""Which rows of a batch go together, by the cost of each row: pure arithmetic on lists.

A row's cost is a length in tokens, or the expected size of a seed's sampled neighborhood: whatever bounds a
micro-batch.
"""

from __future__ import annotations

import bisect
import itertools
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict

from ...errors import InvalidArgumentError

PACKING_ALGORITHMS = (
    "concatenative",
    "first_fit_decreasing",
    "first_fit_shuffle",
    "modified_first_fit_decreasing",
)


@dataclass(frozen=True)
class DynamicBatching:
    """Micro-batches of rows of similar length, padded to the longest of each.

    Attributes:
        max_tokens_per_microbatch: bound of rows times padded length.
        sequence_length_round: padded lengths are multiples of it.
        input_lengths_key: key of the row lengths, int64 ``[num_rows]``.
        input_key: key of the rows themselves; not looked at here.
    """

    max_tokens_per_microbatch: int
    sequence_length_round: int = 1
    input_lengths_key: str = "input_lengths"
    input_key: str = "input_ids"

    def __post_init__(self) -> None:
        _check_positive(self, "max_tokens_per_microbatch", "sequence_length_round")


@dataclass(frozen=True)
class SequencePacking:
    """Micro-batches of rows laid end to end, each no longer than a bound in all.

    Attributes:
        max_tokens_per_microbatch: bound of the sum of lengths.
        algorithm: ``concatenative`` keeps the order of the rows; ``first_fit_decreasing`` puts the longest rows first
            into the first bin that has room; ``first_fit_shuffle`` does so in an order drawn from ``seed``;
            ``modified_first_fit_decreasing`` needs fewer bins where many rows are longer than a sixth of the bound.
        sequence_length_pad_multiple: a row counts as the next multiple of it.
        input_lengths_key: key of the row lengths, int64 ``[num_rows]``.
        input_key: key of the rows themselves; not looked at here.
        seed: of ``first_fit_shuffle``; equal seeds give equal bins, on every rank.
    """

    max_tokens_per_microbatch: int
    algorithm: str = "first_fit_decreasing"
    sequence_length_pad_multiple: int = 1
    input_lengths_key: str = "input_lengths"
    input_key: str = "input_ids"
    seed: int = 0

    def __post_init__(self) -> None:
        _check_positive(self, "max_tokens_per_microbatch", "sequence_length_pad_multiple")
        if self.algorithm not in PACKING_ALGORITHMS:
            raise InvalidArgumentError(f"algorithm: expected one of {PACKING_ALGORITHMS}, got {self.algorithm!r}")


class _LengthKeys(TypedDict, total=False):
    input_key: str
    input_lengths_key: str


class _OfDynamicBatching(_LengthKeys, total=False):
    sequence_length_round: int


class DynamicBatchingArgs(_OfDynamicBatching):
    """``dynamic_batching_args`` of ``BatchedDataDict.shard_by_batch_size``; see ``DynamicBatching``."""

    max_tokens_per_microbatch: int


class _OfSequencePacking(_LengthKeys, total=False):
    algorithm: str
    sequence_length_pad_multiple: int
    seed: int


class SequencePackingArgs(_OfSequencePacking):
    """``sequence_packing_args`` of ``BatchedDataDict.shard_by_batch_size``; see ``SequencePacking``."""

    max_tokens_per_microbatch: int


@dataclass(frozen=True)
class Plan:
    """How the rows of one chunk are shared out.

    Attributes:
        rows: for each shard the rows it gets, in order, counted from the start of the chunk.
        micro_batches: for each shard ``[start, end]`` of its micro-batches among its rows; empty without any.
        lengths: for each shard the padded length of each micro-batch.
    """

    rows: list[list[int]]
    micro_batches: list[list[list[int]]]
    lengths: list[list[int]]


def parse(kind: type[Any], argument: str, settings: Mapping[str, Any]) -> Any:
    """``settings`` as a ``kind``; an error names ``argument`` where a key is missing or unknown."""
    try:
        return kind(**settings)
    except TypeError as error:
        raise InvalidArgumentError(f"{argument}: expected keys of {kind.__name__}, got {dict(settings)}") from error


def plan_even(num_rows: int, num_shards: int) -> Plan:
    """Rows in order, in shards that differ by one at the most, the longer ones first."""
    base, longer = divmod(num_rows, num_shards)
    starts = [shard * base + min(shard, longer) for shard in range(num_shards + 1)]
    rows = [list(range(start, end)) for start, end in itertools.pairwise(starts)]
    return Plan(rows, [[] for _ in rows], [[] for _ in rows])


def plan_dynamic(costs: Sequence[int], num_shards: int, settings: DynamicBatching) -> Plan:
    """Rows by ascending length, dealt out to the shards in turn, so that all shards get about the same work.

    Raises:
        InvalidArgumentError: a row alone exceeds the bound.
    """
    ascending = sorted(range(len(costs)), key=lambda row: costs[row])
    rows = [ascending[shard::num_shards] for shard in range(num_shards)]
    plan = Plan(rows, [], [])
    for own in rows:
        spans, lengths = _dynamic_micro_batches([costs[row] for row in own], settings)
        plan.micro_batches.append(spans)
        plan.lengths.append(lengths)
    return plan


def plan_packed(costs: Sequence[int], num_shards: int, settings: SequencePacking) -> Plan:
    """Bins of rows; every shard gets equally many, none empty unless there are fewer rows than bins.

    Raises:
        InvalidArgumentError: a row alone exceeds the bound.
    """
    multiple = settings.sequence_length_pad_multiple
    padded = [_round_up(cost, multiple) for cost in costs]
    _check_bound(padded, settings.max_tokens_per_microbatch)
    bins = _split_to_multiple(_pack(padded, settings), num_shards)
    plan = Plan([], [], [])
    for shard in range(num_shards):
        own = bins[shard::num_shards]
        spans: list[list[int]] = []
        rows: list[int] = []
        for members in own:
            spans.append([len(rows), len(rows) + len(members)])
            rows += members
        plan.rows.append(rows)
        plan.micro_batches.append(spans)
        plan.lengths.append([sum(padded[row] for row in members) for members in own])
    return plan


def _dynamic_micro_batches(costs: Sequence[int], settings: DynamicBatching) -> tuple[list[list[int]], list[int]]:
    """Greedy spans over ascending lengths: a row joins while all rows, padded to it, stay within the bound."""
    bound = settings.max_tokens_per_microbatch
    padded = [_round_up(cost, settings.sequence_length_round) for cost in costs]
    _check_bound(padded, bound)
    spans: list[list[int]] = []
    lengths: list[int] = []
    for row, length in enumerate(padded):
        if spans and (row + 1 - spans[-1][0]) * max(length, lengths[-1]) <= bound:
            spans[-1][1] = row + 1
            lengths[-1] = max(length, lengths[-1])
        else:
            spans.append([row, row + 1])
            lengths.append(length)
    return spans, lengths


def _pack(costs: Sequence[int], settings: SequencePacking) -> list[list[int]]:
    """Rows in bins no heavier than the bound."""
    bound = settings.max_tokens_per_microbatch
    decreasing = sorted(range(len(costs)), key=lambda row: -costs[row])
    match settings.algorithm:
        case "concatenative":
            return _first_fit(costs, range(len(costs)), bound, only_last=True)
        case "first_fit_decreasing":
            return _first_fit(costs, decreasing, bound)
        case "first_fit_shuffle":
            shuffled = list(range(len(costs)))
            random.Random(settings.seed).shuffle(shuffled)
            return _first_fit(costs, shuffled, bound)
        case _:
            return _modified_first_fit_decreasing(costs, decreasing, bound)


def _first_fit(costs: Sequence[int], order: Sequence[int], bound: int, only_last: bool = False) -> list[list[int]]:
    """Each row in the first bin that has room, in this order; with ``only_last`` only the last bin is tried."""
    bins: list[list[int]] = []
    loads: list[int] = []
    for row in order:
        open_bins = range(max(0, len(bins) - 1), len(bins)) if only_last else range(len(bins))
        place = next((i for i in open_bins if loads[i] + costs[row] <= bound), None)
        if place is None:
            place = len(bins)
            bins.append([])
            loads.append(0)
        bins[place].append(row)
        loads[place] += costs[row]
    return bins


def _modified_first_fit_decreasing(costs: Sequence[int], decreasing: Sequence[int], bound: int) -> list[list[int]]:
    """Johnson and Garey, "A 71/60 theorem for bin packing" (Journal of Complexity 1, 1985).

    A bin for each row above half of the bound is filled up with those above a third, then with pairs of those above a
    sixth, then with whatever fits; what is left after that goes first fit into bins of its own.
    """
    bins = [[row] for row in decreasing if 2 * costs[row] > bound]
    loads = [costs[row] for [row] in bins]
    medium = _Ascending(costs, [row for row in decreasing if 2 * costs[row] <= bound < 3 * costs[row]])
    small = _Ascending(costs, [row for row in decreasing if 3 * costs[row] <= bound < 6 * costs[row]])
    tiny = [row for row in decreasing if 6 * costs[row] <= bound]

    def put(place: int, row: int) -> None:
        bins[place].append(row)
        loads[place] += costs[row]

    for place in range(len(bins)):
        if (row := medium.pop_largest(bound - loads[place])) is not None:
            put(place, row)
    for place in reversed(range(len(bins))):
        if len(bins[place]) == 1 and small.has_two_within(bound - loads[place]):
            put(place, small.pop_smallest())
            if (row := small.pop_largest(bound - loads[place])) is not None:
                put(place, row)
    left = _Ascending(costs, sorted([*medium.rows, *small.rows, *tiny], key=lambda row: -costs[row]))
    for place in range(len(bins)):
        while (row := left.pop_largest(bound - loads[place])) is not None:
            put(place, row)
    return bins + _first_fit(costs, left.rows[::-1], bound)


class _Ascending:
    """Rows by ascending cost, made of rows by descending cost; of equal ones the last is the first in the batch."""

    def __init__(self, costs: Sequence[int], decreasing: Sequence[int]) -> None:
        self.rows = list(reversed(decreasing))
        self._costs = [costs[row] for row in self.rows]

    def has_two_within(self, room: int) -> bool:
        """Whether the two smallest fit together."""
        return len(self.rows) >= 2 and self._costs[0] + self._costs[1] <= room

    def pop_smallest(self) -> int:
        return self._pop(0)

    def pop_largest(self, room: int) -> int | None:
        """The largest row that fits, or None."""
        place = bisect.bisect_right(self._costs, room) - 1
        return None if place < 0 else self._pop(place)

    def _pop(self, place: int) -> int:
        del self._costs[place]
        return self.rows.pop(place)


def _split_to_multiple(bins: list[list[int]], multiple: int) -> list[list[int]]:
    """As many bins as the next multiple, made by halving those with most rows."""
    bins = [list(members) for members in bins]
    while not bins or len(bins) % multiple:
        fullest = max(range(len(bins)), key=lambda i: len(bins[i]), default=None)
        if fullest is None or len(bins[fullest]) < 2:
            bins.append([])
            continue
        half = (len(bins[fullest]) + 1) // 2
        bins.append(bins[fullest][half:])
        del bins[fullest][half:]
    return bins


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


def _check_bound(costs: Sequence[int], bound: int) -> None:
    if any(cost > bound for cost in costs):
        raise InvalidArgumentError(
            f"max_tokens_per_microbatch: expected room for the longest row ({max(costs)} with padding), got {bound}"
        )


def _check_positive(settings: Any, *names: str) -> None:
    for name in names:
        if getattr(settings, name) < 1:
            raise InvalidArgumentError(f"{name}: expected at least 1, got {getattr(settings, name)}")
