"""The drawing of negatives: pairs of nodes, no later than their links and no edges where that is asked for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from .. import _C
from ..core import check_index_tensor, to_tensor
from ..errors import InvalidArgumentError
from ..utils.coroutines import run_local
from .negative_sampling import NegativeSampling, cumulative_weights
from .negative_slots import AsyncHasEdge, DrawnEnd, FilledSlots, FillSlots, NegativeSlots, TimeLimit, fill_by_asking

HasEdge = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""(sources int64 [n], targets int64 [n]), global ids, to bool [n]: whether there is an edge."""

DEFAULT_TRIALS = 5

# Negatives draw from a stream of their own: no sampling hop has this number.
_NEGATIVE_HOP = (1 << 31) - 2
# Pairs that the exact search asks about at once.
_EXACT_PAIRS = 1 << 20
_MANTISSA = 1 << 53


def negative_key(seed: int, epoch: int, index: int, edge_type: int) -> int:
    """The key of all negatives of one batch along one edge type."""
    return _C.draw_key(seed, epoch, index, _NEGATIVE_HOP, edge_type)


@dataclass(frozen=True)
class NegativePool:
    """The pairs of sources and targets of one edge type from which negatives are drawn.

    Every draw is a function of a key, of the round and of the slot it fills: the result depends neither on who draws
    nor on who answers ``has_edge``. With ``has_edge`` negatives are strict: up to ``trials`` rounds ask about the slots
    that are still open. With time limits, those are open too whose node is later than their link; where all trials of a
    slot met such nodes and nothing has to be strict, it gets the earliest of all nodes, even if that is later too: so
    does PyG.

    Attributes:
        num_src: sources are below this.
        num_dst: targets are below this.
        src_sums: float64 ``[num_src]``, see ``cumulative_weights``; None for sources that are all alike.
        dst_sums: float64 ``[num_dst]``, likewise for the targets.
    """

    num_src: int
    num_dst: int
    src_sums: torch.Tensor | None = None
    dst_sums: torch.Tensor | None = None

    @classmethod
    def of(cls, num_src: int, num_dst: int, sampling: NegativeSampling) -> NegativePool:
        """The pool of an edge type with the weights of ``sampling``.

        Raises:
            InvalidArgumentError: there are not as many weights as nodes.
        """
        weights = (("src_weight", sampling.src_weight, num_src), ("weight", sampling.weight, num_dst))
        sums = [None if weight is None else cumulative_weights(weight, name, n) for name, weight, n in weights]
        return cls(num_src, num_dst, *sums)

    def binary(
        self, count: int, key: int, *, has_edge: HasEdge | None = None, trials: int = DEFAULT_TRIALS
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The sources and targets of ``draw_pairs``, from a graph in this process."""
        src, dst, _ = run_local(self.draw_pairs(count, key, has_edge=_awaitable(has_edge), trials=trials))
        return src, dst

    async def draw_pairs(
        self,
        count: int,
        key: int,
        *,
        has_edge: AsyncHasEdge | None = None,
        trials: int = DEFAULT_TRIALS,
        limits: tuple[TimeLimit | None, TimeLimit | None] = (None, None),
        fill: FillSlots | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Up to ``count`` pairs: sources, targets and the slots they fill, int64 ``[n]`` each, in the order of slots.

        Fewer than ``count`` come where all trials of a slot met edges (none from a complete graph), or, if pairs have
        to be strict, nodes later than its link; or where there are no nodes.

        Args:
            count: pairs wanted.
            key: of all draws.
            has_edge: makes them strict.
            trials: rounds of drawing.
            limits: of the sources and of the targets, where those have times.
            fill: draws them, where that is not ``fill_by_asking``; the pairs lie where it makes them.

        Raises:
            InvalidArgumentError: ``count`` below 0 or ``trials`` below 1.
        """
        _check_counts(count, trials)
        if self.num_src == 0 or self.num_dst == 0:
            count = 0
        sources = DrawnEnd(self.num_src, self.src_sums, limits[0], stride=2)
        targets = DrawnEnd(self.num_dst, self.dst_sums, limits[1], stride=2, first=1)
        slots = NegativeSlots(count, key, trials, has_edge is not None, sources, targets)
        filled = await _filled(slots, has_edge, fill)
        if filled.open.numel() == 0:
            return filled.sources, filled.targets, torch.arange(count, device=filled.targets.device)
        is_filled = torch.ones(count, dtype=torch.bool, device=filled.targets.device)
        is_filled[filled.open] = False
        return filled.sources[is_filled], filled.targets[is_filled], is_filled.nonzero().view(-1)

    def triplet(
        self,
        src: torch.Tensor,
        amount: int,
        key: int,
        *,
        has_edge: HasEdge | None = None,
        trials: int = DEFAULT_TRIALS,
    ) -> torch.Tensor:
        """The targets of ``draw_targets``, from a graph in this process.

        Raises:
            UnknownIdError: a source is outside the pool.
        """
        sources = check_index_tensor(src, "src", num_ids=self.num_src)
        return run_local(self.draw_targets(sources, amount, key, has_edge=_awaitable(has_edge), trials=trials))

    async def draw_targets(
        self,
        src: torch.Tensor,
        amount: int,
        key: int,
        *,
        has_edge: AsyncHasEdge | None = None,
        trials: int = DEFAULT_TRIALS,
        limit: TimeLimit | None = None,
        fill: FillSlots | None = None,
    ) -> torch.Tensor:
        """Targets for given sources, int64 ``[n, amount]``.

        A slot that is open after all trials, where targets are strict, is filled by an exact search: it draws among the
        targets that are neither neighbors of its source nor later than its link.

        Args:
            src: int ``[n]``, global ids, none of them outside the pool.
            amount: targets for each source.
            key: of all draws.
            has_edge: makes them strict.
            trials: rounds of drawing before the search.
            limit: of the targets, where they have times; the slots of source ``i`` begin at ``i * amount``.
            fill: draws them, where that is not ``fill_by_asking``; the targets lie where it makes them.

        Raises:
            InvalidArgumentError: ``amount`` below 0, ``trials`` below 1, or a source has no negative at all; the error
                names the source.
        """
        _check_counts(amount, trials)
        sources = src.to(torch.int64).repeat_interleave(amount)
        count = sources.numel()
        if count and self.num_dst == 0:
            raise InvalidArgumentError(f"src: source {int(sources[0])} has no negative: there are no targets")
        ends = sources, DrawnEnd(self.num_dst, self.dst_sums, limit)
        filled = await _filled(NegativeSlots(count, key, trials, has_edge is not None, *ends), has_edge, fill)
        if has_edge is not None and filled.open.numel() > 0:
            # The search adds up weights in the order of nodes, which a GPU does not: it is the host's in any case.
            slots = filled.open.cpu()
            shares = _shares(key, trials * count + slots)
            found = await self._search(sources[filled.open].cpu(), slots, shares, has_edge, limit)
            filled.targets[filled.open] = found.to(filled.targets.device)
        return filled.targets.view(src.numel(), amount)

    async def _search(
        self,
        sources: torch.Tensor,
        slots: torch.Tensor,
        shares: torch.Tensor,
        has_edge: AsyncHasEdge,
        limit: TimeLimit | None,
    ) -> torch.Tensor:
        """One target for each slot, at its share of the weight of all targets that are negatives of its source."""
        weight = torch.ones(self.num_dst, dtype=torch.float64)
        if self.dst_sums is not None:
            weight = torch.diff(self.dst_sums, prepend=self.dst_sums.new_zeros(1))
        # Slots of one source, and of one time, choose from the same targets.
        limits = torch.zeros_like(sources) if limit is None else limit.limits.cpu()[slots]
        times = None if limit is None else await limit.times_of(torch.arange(self.num_dst))
        (distinct, latest), slot_group, num_slots = torch.unique(
            torch.stack([sources, limits]), dim=1, return_inverse=True, return_counts=True
        )
        first_slot = num_slots.cumsum(0) - num_slots
        by_group = torch.argsort(slot_group, stable=True)
        rank = torch.empty_like(by_group)  # of a slot among those of its group
        rank[by_group] = torch.arange(by_group.numel()) - first_slot.repeat_interleave(num_slots)
        found = torch.empty_like(sources)
        at_once = max(1, _EXACT_PAIRS // self.num_dst)
        for begin in range(0, distinct.numel(), at_once):
            group = slice(begin, begin + at_once)
            allowed = await self._is_negative(distinct[group], has_edge)
            if times is not None:
                allowed &= times <= latest[group].view(-1, 1)
            sums = (allowed * weight).cumsum(1)
            none = (sums[:, -1] <= 0).nonzero()
            if none.numel():
                raise self._no_negative(int(distinct[group][none[0]]), limit)
            here = by_group[int(first_slot[begin]) :][: int(num_slots[group].sum())]
            place = (slot_group[here] - begin, rank[here])
            wanted = sums.new_zeros(sums.size(0), int(num_slots[group].max()))
            wanted[place] = shares[here]
            found[here] = torch.searchsorted(sums, wanted * sums[:, -1:], right=True)[place]
        return found

    def _no_negative(self, source: int, limit: TimeLimit | None) -> InvalidArgumentError:
        weighted = "" if self.dst_sums is None else " that have a weight"
        in_time = "" if limit is None else " that are not later than its link"
        return InvalidArgumentError(
            f"src: source {source} has no negative: it has an edge to each of {self.num_dst} targets{weighted}{in_time}"
        )

    async def _is_negative(self, sources: torch.Tensor, has_edge: AsyncHasEdge) -> torch.Tensor:
        """bool ``[n, num_dst]``: where there is no edge."""
        total = sources.numel() * self.num_dst
        answers = []
        for begin in range(0, total, _EXACT_PAIRS):
            pair = torch.arange(begin, min(begin + _EXACT_PAIRS, total))
            answers.append(await has_edge(sources[pair // self.num_dst], pair % self.num_dst))
        return torch.cat(answers).logical_not().view(-1, self.num_dst)


async def _filled(slots: NegativeSlots, has_edge: AsyncHasEdge | None, fill: FillSlots | None) -> FilledSlots:
    return await (fill_by_asking(slots, has_edge) if fill is None else fill(slots))


def _awaitable(has_edge: HasEdge | None) -> AsyncHasEdge | None:
    """An answer that is there already, for who awaits it."""
    if has_edge is None:
        return None

    async def answer(src: torch.Tensor, dst: torch.Tensor) -> torch.Tensor:
        return has_edge(src, dst)

    return answer


def _check_counts(count: int, trials: int) -> None:
    if count < 0:
        raise InvalidArgumentError(f"count: expected at least 0 negatives, got {count}")
    if trials < 1:
        raise InvalidArgumentError(f"trials: expected at least 1, got {trials}")


def _shares(key: int, positions: torch.Tensor) -> torch.Tensor:
    """Uniform in [0, 1), float64 ``[n]``."""
    return to_tensor(_C.random_ids(key, positions, _MANTISSA)).to(torch.float64) / _MANTISSA
