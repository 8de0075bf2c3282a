"""Which input nodes make up which batch: a formula of (seed, epoch, batch index), without a shuffled list."""

from __future__ import annotations

import functools
import hashlib
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, pairwise
from typing import overload

import torch

from ... import _C
from ...core import to_tensor
from ...errors import InvalidArgumentError
from ...utils.message_types import register_message
from ...utils.turns import far_apart
from ...utils.values import to_count

_INDEX_BITS = 63


def batch_index(positions: torch.Tensor) -> int:
    """The number under which a batch draws that has none in an epoch: a hash of the positions of its seeds, below 2^63.

    PyG's loaders do not tell a sampler which batch they want; which seeds it has is all that is said.
    """
    digest = hashlib.blake2b(positions.to(torch.int64).contiguous().numpy().tobytes(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> (64 - _INDEX_BITS)


@register_message
@dataclass(frozen=True)
class BatchIndices(Sequence[int]):
    """Some batches of an epoch, in ascending order: single ones, then every ``step``-th of a range.

    A slice of it is one too: batches are shared out among trainers, servers and workers, and what is left of them is
    named, without a list.

    Attributes:
        start: the first of the range.
        stop: where the range ends.
        step: distance between batches of the range, at least 1.
        single: batches before the range.
    """

    start: int
    stop: int
    step: int = 1
    single: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        single = self.single if isinstance(self.single, (tuple, list)) else (None,)  # what travels may be anything
        are_numbers = all(isinstance(each, int) for each in (self.start, self.stop, self.step, *single))
        if not are_numbers or self.step < 1 or any(one >= other for one, other in pairwise((-1, *single, self.start))):
            raise InvalidArgumentError(f"indices: expected ascending numbers, none of them negative, got {self!r}")

    @classmethod
    def of(cls, indices: Iterable[int]) -> BatchIndices:
        """These batches, which ascend."""
        single = tuple(indices)
        end = single[-1] + 1 if single else 0
        return cls(end, end, 1, single)

    @functools.cached_property
    def _range(self) -> range:
        return range(self.start, self.stop, self.step)

    def __len__(self) -> int:
        return len(self.single) + len(self._range)

    def __iter__(self) -> Iterator[int]:
        return chain(self.single, self._range)

    @overload
    def __getitem__(self, at: int) -> int: ...

    @overload
    def __getitem__(self, at: slice) -> BatchIndices: ...

    def __getitem__(self, at: int | slice) -> int | BatchIndices:
        num_single = len(self.single)
        if isinstance(at, slice):
            first, stop, step = at.indices(len(self))
            in_range = first - num_single if first >= num_single else (first - num_single) % step
            rest = self._range[in_range : max(stop - num_single, 0) : step]
            return BatchIndices(rest.start, rest.stop, rest.step, self.single[first:stop:step])
        if num_single == 0:
            return self._range[at]
        at = range(len(self))[at]
        return self.single[at] if at < num_single else self._range[at - num_single]

    def place_of(self, index: int) -> int:
        """How many of these come before a batch.

        Raises:
            InvalidArgumentError: it is none of these.
        """
        place = bisect_left(self.single, index)
        if place < len(self.single) and self.single[place] == index:
            return place
        if index in self._range:
            return len(self.single) + self._range.index(index)
        raise InvalidArgumentError(f"index: expected one of {self}, got {index}")

    def __str__(self) -> str:
        """Such as ``"3, 5, 8, 10, ..., 20"``."""
        return _shown(self)


def _shown(batches: Sequence[int]) -> str:
    shown = [*map(str, batches[:4])]
    if len(batches) > len(shown):
        shown += ["...", str(batches[-1])]
    return ", ".join(shown) or "none"


@register_message
@dataclass(frozen=True)
class BatchShare(Sequence[int]):
    """The batches that one of several makes, in groups that travel together: every ``step``-th group of a run.

    A run's batches are cut into groups of ``size`` that follow each other. Where the groups begin depends on nothing
    else, so that whoever asks for batches and whoever makes them agree, also when a run is taken up in the middle.

    Attributes:
        indices: all batches of the run.
        size: batches of a group; the last one may have fewer.
        first: number of the first group of the share.
        step: distance between its groups.
        begin: what comes before this position of ``indices`` is not in the share; it may cut a group.
    """

    indices: BatchIndices
    size: int = 1
    first: int = 0
    step: int = 1
    begin: int = 0

    def __post_init__(self) -> None:
        if not isinstance(self.indices, BatchIndices):
            raise InvalidArgumentError(f"share: expected BatchIndices, got {type(self.indices).__name__}")
        if self.size < 1 or self.step < 1 or self.first < 0 or self.begin < 0:
            raise InvalidArgumentError(
                "share: expected size and step of at least 1, first and begin of at least 0, got "
                f"{(self.size, self.step, self.first, self.begin)}"
            )

    @functools.cached_property
    def _groups(self) -> range:
        """The numbers of its groups."""
        ahead = max(0, self.begin // self.size - self.first)
        return range(self.first + -(-ahead // self.step) * self.step, -(-len(self.indices) // self.size), self.step)

    @functools.cached_property
    def _num_cut(self) -> int:
        """Batches that are lacking at the front of its first group."""
        return max(0, self.begin - self._groups.start * self.size)

    @functools.cached_property
    def _length(self) -> int:
        if not self._groups:
            return 0
        lacking = max(0, (self._groups[-1] + 1) * self.size - len(self.indices))
        return max(0, len(self._groups) * self.size - self._num_cut - lacking)

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, at: int) -> int: ...

    @overload
    def __getitem__(self, at: slice) -> list[int]: ...

    def __getitem__(self, at: int | slice) -> int | list[int]:
        if isinstance(at, slice):
            return [self[place] for place in range(*at.indices(len(self)))]
        return self.indices[self._position(range(len(self))[at])]

    def _position(self, place: int) -> int:
        group, offset = divmod(place + self._num_cut, self.size)
        return self._groups[group] * self.size + offset

    def groups(self) -> Iterator[tuple[int, ...]]:
        """Its groups, in order."""
        for group in self._groups:
            if batches := tuple(self.indices[max(self.begin, group * self.size) : (group + 1) * self.size]):
                yield batches

    def group_of(self, index: int) -> int:
        """How many groups of the whole share, whatever its ``begin``, come before that of a batch.

        Raises:
            InvalidArgumentError: the batch is not in the share.
        """
        position = self.indices.place_of(index)
        turn, left = divmod(position // self.size - self.first, self.step)
        if turn < 0 or left or position < self.begin:
            raise InvalidArgumentError(f"index: expected one of {self}, got {index}")
        return turn

    def rest_of_group(self, index: int) -> BatchIndices:
        """A batch and those of its group behind it.

        Raises:
            InvalidArgumentError: the batch is none of the run.
        """
        position = self.indices.place_of(index)
        return self.indices[position : (position // self.size + 1) * self.size]

    def divided(self, turn: int, count: int) -> BatchShare:
        """The groups that one of ``count`` makes who take turns."""
        return replace(self, first=self.first + turn * self.step, step=self.step * count)

    def rest(self, num_done: int) -> BatchShare:
        """What is left of it after so many batches."""
        return replace(self, begin=self._position(num_done) if num_done < len(self) else len(self.indices))

    def __str__(self) -> str:
        """As that of ``BatchIndices``."""
        return _shown(self)


@dataclass(frozen=True)
class SeedSchedule:
    """The batches of every epoch.

    Batch ``i`` of an epoch holds positions ``[i * batch_size, (i + 1) * batch_size)`` of the epoch's order of the input
    nodes. With ``shuffle`` that order is a keyed permutation of (seed, epoch), of which each is equally likely: any
    batch's seeds are computed alone, by any process.

    With ``near``, an order in which near seeds follow each other, the seeds are cut in that order into
    ``num_stretches`` stretches of whole batches, of which batches take turns: batch ``i`` has seeds of the stretch with
    the turn ``i % num_stretches``. Those that follow each other in turn lie far apart, so that few consecutive batches
    have seeds from all over the data set. Each stretch is permuted by itself.

    Attributes:
        num_inputs: length of the list of input nodes.
        batch_size: seeds of a batch; the last one may have fewer.
        shuffle: permute in every epoch.
        drop_last: leave out the last batch if it is not full.
        seed: seed of the permutation.
        near: int64 ``[num_inputs]``, positions in the list of input nodes; None where nearness does not matter.
        num_stretches: how many stretches there are.
    """

    num_inputs: int
    batch_size: int
    shuffle: bool = False
    drop_last: bool = False
    seed: int = 0
    near: torch.Tensor | None = field(default=None, repr=False, compare=False)
    num_stretches: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "batch_size", to_count("batch_size", self.batch_size))
        if self.num_inputs < 0:
            raise InvalidArgumentError(f"num_inputs: expected at least 0, got {self.num_inputs}")

    @functools.cached_property
    def num_batches(self) -> int:
        """Batches of one epoch."""
        full, rest = divmod(self.num_inputs, self.batch_size)
        return full if self.drop_last or rest == 0 else full + 1

    def check_index(self, index: int) -> int:
        """Returns the index of a batch; raises ``InvalidArgumentError`` where there is no such batch."""
        if not 0 <= index < self.num_batches:
            raise InvalidArgumentError(f"index: expected a batch in [0, {self.num_batches}), got {index}")
        return index

    def positions(self, epoch: int, index: int) -> torch.Tensor:
        """Positions, within the list of input nodes, of the seeds of one batch; int64 ``[num_seeds]``.

        Raises:
            InvalidArgumentError: there is no such batch.
        """
        place, turn = divmod(self.check_index(index), self.num_stretches)
        stretch = self._stretches[turn]
        begin = place * self.batch_size
        end = min(begin + self.batch_size, len(stretch))
        if self.shuffle:
            key = _C.shuffle_key(self.seed, epoch)
            if self.near is not None:
                key = _C.shuffle_key(key - (1 << 63), turn)
            places = to_tensor(_C.take_shuffled(begin, end, len(stretch), key))
        else:
            places = torch.arange(begin, end)
        return places if self.near is None else self.near[stretch.start + places]

    @functools.cached_property
    def _stretches(self) -> tuple[range, ...]:
        """By turn, which part of ``near`` is cut into batches; the last batch of an epoch alone may not be full."""
        num_batches = -(-self.num_inputs // self.batch_size)
        sizes = [
            len(range(turn, num_batches, self.num_stretches)) * self.batch_size for turn in range(self.num_stretches)
        ]
        sizes[(num_batches - 1) % self.num_stretches] -= num_batches * self.batch_size - self.num_inputs
        stretches, end = [range(0)] * self.num_stretches, 0
        for _, turn in sorted(zip(far_apart(self.num_stretches), range(self.num_stretches), strict=True)):
            stretches[turn] = range(end, end + sizes[turn])
            end += sizes[turn]
        return tuple(stretches)

    def owners(self, owners: torch.Tensor) -> tuple[int, ...]:
        """By turn, who owns the most seeds of its stretch (of several, the first).

        Args:
            owners: int ``[num_inputs]``, of each input.
        """
        in_order = owners if self.near is None else owners[self.near]
        return tuple(int(in_order[s.start : s.stop].bincount().argmax()) if s else 0 for s in self._stretches)

    def inputs_of(self, owners: Sequence[int], owner: int) -> torch.Tensor:
        """The inputs of the stretches that one owns most of, int64, positions in the list; all where it owns none.

        Args:
            owners: by turn, see ``owners``.
            owner: whose.
        """
        own = [s for s, of in zip(self._stretches, owners, strict=True) if of == owner and s]
        if self.near is None or not own:
            return torch.arange(self.num_inputs)
        return torch.cat([self.near[s.start : s.stop] for s in own])
