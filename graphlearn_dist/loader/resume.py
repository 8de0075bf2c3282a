"""Where a job stands in its epochs, as a state that any number of trainers can go on from."""

from __future__ import annotations

import numbers
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import InvalidArgumentError
from ..sampler.epochs.fingerprint import Settings
from ..sampler.epochs.schedule import BatchIndices, SeedSchedule
from ..utils.shown import shown
from ..utils.values import check_seed

# What a seed draws is part of a state's meaning: whoever changes draws or shuffles raises this, and refuses old states.
# 2: weighted draws are exact, small epochs are shuffled by Fisher and Yates, LABOR breaks ties at random.
_VERSION = 2
_PLACE = ("version", "epoch", "next_batch", "ahead", "shard_index", "num_shards")
_NUMBERS = ("epoch", "next_batch", "shard_index", "num_shards", "num_inputs", "batch_size", "drop_last")


_MOST_BATCHES = 1 << 48  # of an epoch whose end nobody knows


@dataclass(frozen=True)
class Shard:
    """Batch ``i`` of the batches to deliver belongs to shard ``i % count``: shards together deliver each once."""

    index: int = 0
    count: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.index < self.count:
            raise InvalidArgumentError(f"shard: expected (index, count) with 0 <= index < count, got {self}")

    @classmethod
    def of_pair(cls, shard: Any) -> Shard:
        """What loaders take as ``shard``: ``(index, count)``, or None for all batches."""
        if shard is None:
            return cls()
        is_pair = isinstance(shard, (tuple, list)) and len(shard) == 2
        if not is_pair or not all(isinstance(number, numbers.Integral) for number in shard):
            raise InvalidArgumentError(f"shard: expected two integers (index, count) or None, got {shown(shard)}")
        return cls(*map(int, shard))

    def of(self, indices: BatchIndices) -> BatchIndices:
        """This shard's part of some batches."""
        return indices[self.index :: self.count]


@dataclass(frozen=True)
class EpochPlace:
    """What has been delivered, by all shards of a job together: earlier epochs, and some batches of one.

    Attributes:
        epoch: that one.
        next_batch: its first batch that was not delivered.
        ahead: its later batches that were: bit ``b`` stands for ``next_batch + b``. 0 where shards are in step.
    """

    epoch: int = 0
    next_batch: int = 0
    ahead: int = 0

    def rest(self, num_batches: int) -> BatchIndices:
        """What is left of an epoch of ``num_batches``."""
        end = self.next_batch + self.ahead.bit_length()
        left = (index for index in range(self.next_batch, end) if not self.ahead >> (index - self.next_batch) & 1)
        return BatchIndices(end, num_batches, 1, tuple(left))

    def after(self, rest: BatchIndices) -> EpochPlace:
        """The place at which only this rest of the epoch is left; where nothing is, the next epoch's begin."""
        if not rest:
            return EpochPlace(self.epoch + 1)
        return EpochPlace(self.epoch, rest[0], self.ahead >> (rest[0] - self.next_batch))


class EpochPass:
    """One shard's way through an epoch, or through what is left of it.

    Attributes:
        epoch: which.
        indices: the shard's batches, in the order in which they are delivered.
    """

    def __init__(self, start: EpochPlace, num_batches: int, shard: Shard) -> None:
        self.epoch = start.epoch
        self._start = start
        self._rest = start.rest(num_batches)
        self._shard = shard
        self.indices = shard.of(self._rest)
        self._num_delivered = 0
        self._ended = False

    def deliver(self, index: int) -> None:
        """The user has this batch."""
        self._num_delivered = self.indices.place_of(index) + 1

    def end(self, *, is_all: bool = False) -> None:
        """The user knows that there is no more; without effect after a failure, when there is.

        ``is_all``: what was delivered is all that there is, whatever was expected.
        """
        self._ended = is_all or self._num_delivered == len(self.indices)

    @property
    def num_left(self) -> int | None:
        """Batches that the shard has not delivered yet; None where the user knows that there are no more."""
        return None if self._ended else len(self.indices) - self._num_delivered

    @property
    def place(self) -> EpochPlace:
        """Where the job is if all its shards have taken as many steps as this one."""
        if self._ended:
            return EpochPlace(self.epoch + 1)
        return self._start.after(self._rest[self._num_delivered * self._shard.count :])


def to_state(place: EpochPlace, shard: Shard, settings: Settings) -> dict[str, Any]:
    """A state of strings and integers, below 1 KB where ``place.ahead`` is 0."""
    return {
        "version": _VERSION,
        "epoch": place.epoch,
        "next_batch": place.next_batch,
        "ahead": f"{place.ahead:x}",
        "shard_index": shard.index,
        "num_shards": shard.count,
        **settings,
    }


def to_place(state: Mapping[str, Any], settings: Settings) -> EpochPlace:
    """The place that a state names.

    Raises:
        InvalidArgumentError: it is no state of a loader, or one of a loader with other settings, which the error names.
    """
    saved = _check_form(state)
    changed = [
        f"{name} was {saved.get(name)!r} and is {settings.get(name)!r}"
        for name in {**saved, **settings}
        if saved.get(name) != settings.get(name)
    ]
    if changed:
        # Without a seed and without a shard, each trainer of a group has a seed of its own.
        other_seed = saved.get("seed") != settings.get("seed")
        hint = "; give it the seed of the state, or the state of its own trainer" if other_seed else ""
        raise InvalidArgumentError(f"state_dict: it was saved by a loader of other batches: {'; '.join(changed)}{hint}")
    place = EpochPlace(state["epoch"], state["next_batch"], int(state["ahead"], 16))
    if "order" in settings:  # a program's own: nobody knows how many there are
        if place.next_batch + place.ahead.bit_length() > _MOST_BATCHES:
            raise InvalidArgumentError(f"state_dict: expected a place below batch {_MOST_BATCHES}, got {place}")
        return place
    num_batches = _num_batches(settings)
    if place.next_batch + place.ahead.bit_length() > num_batches:
        raise InvalidArgumentError(f"state_dict: expected a place in an epoch of {num_batches} batches, got {place}")
    return place


def merge_states(states: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The state of a job from those of all its shards, which need not be in step.

    Args:
        states: what ``state_dict()`` of each shard's loader gave, in any order.

    Returns:
        A state for every shard of a job with any number of them. It takes one byte more for each four batches that the
        furthest shard is ahead.

    Raises:
        InvalidArgumentError: these are not the states of all shards of one job, or they are more than an epoch apart.
    """
    if not states:
        raise InvalidArgumentError("states: expected one for each shard, got none")
    settings = _check_form(states[0])
    places = [to_place(state, settings) for state in states]
    shards = [Shard(state["shard_index"], state["num_shards"]) for state in states]
    if {(shard.index, shard.count) for shard in shards} != {(index, len(shards)) for index in range(len(shards))}:
        raise InvalidArgumentError(f"states: expected one of each shard of a job, got those of {shards}")
    epoch = min(place.epoch for place in places)
    if any(place.epoch > epoch and place != EpochPlace(epoch + 1) for place in places):
        raise InvalidArgumentError(f"states: expected at most one epoch in progress, got {places}")
    if "order" in settings:  # whose loaders have no shards
        return dict(states[0])
    num_batches = _num_batches(settings)
    left: set[int] = set()
    for place, shard in zip(places, shards, strict=True):
        if place.epoch == epoch:
            left.update(shard.of(place.rest(num_batches)))
    return to_state(_place_before(epoch, left, num_batches), Shard(), settings)


def _place_before(epoch: int, left: set[int], num_batches: int) -> EpochPlace:
    if not left:
        return EpochPlace(epoch + 1)
    first = min(left)
    ahead = 0
    for index in set(range(first, num_batches)) - left:
        ahead |= 1 << (index - first)
    return EpochPlace(epoch, first, ahead)


def _num_batches(settings: Settings) -> int:
    num_inputs, batch_size = int(settings["num_inputs"]), int(settings["batch_size"])
    return SeedSchedule(num_inputs, batch_size, drop_last=bool(settings["drop_last"])).num_batches


def _check_form(state: Any) -> Settings:
    """The settings in a state."""
    if not isinstance(state, Mapping) or "version" not in state:
        raise InvalidArgumentError(f"state_dict: expected what state_dict() of a loader gave, got {state!r:.200}")
    if state["version"] != _VERSION:
        raise InvalidArgumentError(
            f"state_dict: expected version {_VERSION}, got {state['version']!r}: it was saved by a release that draws "
            f"other batches from the same seed. Go on with that release, or at an epoch's start: "
            f"set_epoch({state.get('epoch')!r})"
        )
    for name in _NUMBERS:
        if not isinstance(state.get(name), int) or state[name] < 0:
            raise InvalidArgumentError(
                f"state_dict: {name}: expected an integer of at least 0, got {shown(state.get(name))}"
            )
        check_seed(f"state_dict: {name}", state[name])
    ahead = state.get("ahead")
    if not isinstance(ahead, str) or not ahead or set(ahead) - set("0123456789abcdef"):
        raise InvalidArgumentError(f"state_dict: ahead: expected a hexadecimal number, got {shown(ahead)}")
    return {name: value for name, value in state.items() if name not in _PLACE}
