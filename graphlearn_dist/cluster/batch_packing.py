"""Which rows of a batch go together, by the cost of each row: pure arithmetic on lists.

A row's cost is a length in tokens, or the expected size of a seed's sampled neighborhood: whatever bounds a
micro-batch.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import InvalidArgumentError

PACKING_ALGORITHMS = ("first_fit_decreasing", "concatenative")


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
        algorithm: one of ``PACKING_ALGORITHMS``.
        sequence_length_pad_multiple: a row counts as the next multiple of it.
        input_lengths_key: key of the row lengths, int64 ``[num_rows]``.
        input_key: key of the rows themselves; not looked at here.
    """

    max_tokens_per_microbatch: int
    algorithm: str = "first_fit_decreasing"
    sequence_length_pad_multiple: int = 1
    input_lengths_key: str = "input_lengths"
    input_key: str = "input_ids"

    def __post_init__(self) -> None:
        _check_positive(self, "max_tokens_per_microbatch", "sequence_length_pad_multiple")
        if self.algorithm not in PACKING_ALGORITHMS:
            raise InvalidArgumentError(f"algorithm: expected one of {PACKING_ALGORITHMS}, got {self.algorithm!r}")


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
    """Rows in bins no heavier than the bound: in order, or the heaviest first, each where it fits first."""
    bound = settings.max_tokens_per_microbatch
    in_order = settings.algorithm == "concatenative"
    order = range(len(costs)) if in_order else sorted(range(len(costs)), key=lambda row: -costs[row])
    bins: list[list[int]] = []
    loads: list[int] = []
    for row in order:
        open_bins = range(max(0, len(bins) - 1), len(bins)) if in_order else range(len(bins))
        place = next((i for i in open_bins if loads[i] + costs[row] <= bound), None)
        if place is None:
            place = len(bins)
            bins.append([])
            loads.append(0)
        bins[place].append(row)
        loads[place] += costs[row]
    return bins


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
