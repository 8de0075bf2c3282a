"""The drawing of negatives: pairs of nodes, no later than their links and no edges where that is asked for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from ... import _C
from ...core import available_cores, check_index_tensor, thread_pool, to_optional_tensor, to_tensor
from ...errors import InvalidArgumentError
from ...utils.coroutines import run_local
from .negative_sampling import NegativeSampling, NodeWeights
from .negative_slots import AsyncHasEdge, DrawnEnd, FilledSlots, FillSlots, NegativeSlots, TimeLimit, fill_by_asking

HasEdge = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""(sources int64 [n], targets int64 [n]), global ids, to bool [n]: whether there is an edge."""

DEFAULT_TRIALS = 5

# Negatives draw from a stream of their own: no sampling hop has this number.
_NEGATIVE_HOP = (1 << 31) - 2
# Pairs that the exact search asks about at once.
_EXACT_PAIRS = 1 << 20


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
        src_weights: of the sources; None for sources that are all alike.
        dst_weights: of the targets, likewise.
    """

    num_src: int
    num_dst: int
    src_weights: NodeWeights | None = None
    dst_weights: NodeWeights | None = None

    @classmethod
    def of(cls, num_src: int, num_dst: int, sampling: NegativeSampling) -> NegativePool:
        """The pool of an edge type with the weights of ``sampling``.

        Raises:
            InvalidArgumentError: there are not as many weights as nodes.
        """
        weights = (("src_weight", sampling.src_weight, num_src), ("weight", sampling.weight, num_dst))
        made = [None if weight is None else NodeWeights.of(weight, name, n) for name, weight, n in weights]
        return cls(num_src, num_dst, *made)

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
        sources = DrawnEnd(self.num_src, self.src_weights, limits[0], stride=2)
        targets = DrawnEnd(self.num_dst, self.dst_weights, limits[1], stride=2, first=1)
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
        ends = sources, DrawnEnd(self.num_dst, self.dst_weights, limit)
        filled = await _filled(NegativeSlots(count, key, trials, has_edge is not None, *ends), has_edge, fill)
        if has_edge is not None and filled.open.numel() > 0:
            slots = filled.open.cpu()  # the search is the host's in any case
            draws = _Draws(key, trials * count + slots)
            found = await self._search(sources[filled.open].cpu(), slots, draws, has_edge, limit)
            filled.targets[filled.open] = found.to(filled.targets.device)
        return filled.targets.view(src.numel(), amount)

    async def _search(
        self,
        sources: torch.Tensor,
        slots: torch.Tensor,
        draws: _Draws,
        has_edge: AsyncHasEdge,
        limit: TimeLimit | None,
    ) -> torch.Tensor:
        """One target for each slot, by weight from all targets that are negatives of its source."""
        weight = torch.ones(self.num_dst, dtype=torch.float64)
        if self.dst_weights is not None:
            weight = self.dst_weights.weights
        # Slots of one source, and of one time, choose from the same targets.
        limits = torch.zeros_like(sources) if limit is None else limit.limits.cpu()[slots]
        times = None if limit is None else await limit.times_of(torch.arange(self.num_dst))
        (distinct, latest), slot_group = torch.unique(torch.stack([sources, limits]), dim=1, return_inverse=True)
        found = torch.empty_like(sources)
        at_once = max(1, _EXACT_PAIRS // self.num_dst)
        for begin in range(0, distinct.numel(), at_once):
            group = slice(begin, begin + at_once)
            allowed = await self._is_negative(distinct[group], has_edge)
            if times is not None:
                allowed &= times <= latest[group].view(-1, 1)
            weights = allowed * weight
            none = (weights.amax(1) <= 0).nonzero()
            if none.numel():
                raise self._no_negative(int(distinct[group][none[0]]), limit)
            here = ((slot_group >= begin) & (slot_group < begin + at_once)).nonzero().view(-1)
            found[here] = draws.from_rows(weights, slot_group[here] - begin, here)
        return found

    def _no_negative(self, source: int, limit: TimeLimit | None) -> InvalidArgumentError:
        weighted = "" if self.dst_weights is None else " that have a weight"
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


@dataclass(frozen=True)
class _Draws:
    """The numbered draws of a key, one for each slot.

    Attributes:
        key: of them all.
        numbers: int64 ``[slots]``.
    """

    key: int
    numbers: torch.Tensor

    def from_rows(self, weights: torch.Tensor, rows: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
        """For each of some slots a column drawn by the weights (float64 ``[n, columns]``) of its row, int64.

        Slots of a row are nodes that have all columns as neighbors, and draw one of them.
        """
        pool = thread_pool(available_cores())
        indptr = torch.arange(weights.size(0) + 1) * weights.size(1)
        columns = torch.arange(weights.size(1)).repeat(weights.size(0))
        sums = map(to_optional_tensor, _C.sum_weights(indptr, weights.view(-1), pool))
        graph = _C.Csr(indptr, columns, None, weights.size(1), None, weights.view(-1), *sums)
        how = _C.DrawMethod("weighted", True)
        return to_tensor(_C.sample_neighbors(graph, self.numbers[slots], rows, 1, how, self.key, False, pool)[1])
