"""Negative edges: pairs of nodes that are drawn, and where it is asked for, are checked not to be edges."""

from __future__ import annotations

import itertools
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Literal

import torch

from .. import _C
from ..core import check_index_tensor, thread_pool, to_tensor
from ..data.graph import Graph
from ..errors import InvalidArgumentError
from ..utils.coroutines import run_local
from ..utils.mixin import CastMixin

HasEdge = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""(sources int64 [n], targets int64 [n]), global ids, to bool [n]: whether there is an edge."""

AsyncHasEdge = Callable[[torch.Tensor, torch.Tensor], Awaitable[torch.Tensor]]
"""The same, answered by whoever owns the sources or targets."""

DEFAULT_TRIALS = 5

# Negatives draw from a stream of their own: no sampling hop has this number.
_NEGATIVE_HOP = (1 << 31) - 2
# Pairs that the exact search asks about at once.
_EXACT_PAIRS = 1 << 20
_MANTISSA = 1 << 53


class NegativeSamplingMode(Enum):
    """What is drawn: whole pairs, or targets for given sources."""

    binary = "binary"
    triplet = "triplet"


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
        src_weight: weights of the source nodes in binary mode, float ``[num_src]``; all alike unless given.

    Raises:
        InvalidArgumentError: an unknown mode, an amount out of range, or weights that cannot be weights.
    """

    mode: NegativeSamplingMode | str
    amount: int | float = 1
    weight: torch.Tensor | None = None
    strict: bool = field(default=False, kw_only=True)
    src_weight: torch.Tensor | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        names = [member.value for member in NegativeSamplingMode]
        mode, amount = self.mode, self.amount
        if not isinstance(mode, NegativeSamplingMode) and mode not in names:
            raise InvalidArgumentError(f"mode: expected one of {names}, got {mode!r}")
        object.__setattr__(self, "mode", NegativeSamplingMode(mode))
        if isinstance(amount, bool) or not isinstance(amount, (int, float)) or not 0 < amount < math.inf:
            raise InvalidArgumentError(f"amount: expected a number above 0, got {amount!r}")
        if self.is_triplet() and (amount != int(amount) or amount < 1):
            raise InvalidArgumentError(f"amount: expected a whole number of at least 1 in triplet mode, got {amount}")
        if self.is_triplet() and self.src_weight is not None:
            raise InvalidArgumentError("src_weight: expected None in triplet mode, where sources are given")
        for name in ("weight", "src_weight"):
            if getattr(self, name) is not None:
                cumulative_weights(getattr(self, name), name)

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
        return NegativeSampling(self.mode, self.amount, weight, strict=self.strict, src_weight=src_weight)


def cumulative_weights(weight: torch.Tensor, name: str, num_nodes: int | None = None) -> torch.Tensor:
    """Sums of weights up to each node, float64 ``[num_nodes]``.

    Raises:
        InvalidArgumentError: not one weight for each node, a weight that is negative or not a number, or a sum that is
            zero or not finite.
    """
    if not isinstance(weight, torch.Tensor) or weight.dim() != 1 or weight.is_complex():
        got = tuple(weight.shape) if isinstance(weight, torch.Tensor) else type(weight).__name__
        raise InvalidArgumentError(f"{name}: expected a one-dimensional tensor of weights, got {got}")
    if num_nodes is not None and weight.numel() != num_nodes:
        raise InvalidArgumentError(f"{name}: expected one weight for each of {num_nodes} nodes, got {weight.numel()}")
    weight = weight.detach().to("cpu", torch.float64)
    bad = ~(weight >= 0)
    if bool(bad.any()):
        node = int(bad.nonzero()[0])
        raise InvalidArgumentError(f"{name}[{node}]: expected a weight of at least 0, got {float(weight[node])}")
    sums = weight.cumsum(0)
    if sums.numel() and not 0 < float(sums[-1]) < math.inf:
        raise InvalidArgumentError(f"{name}: expected a positive and finite sum of weights, got {float(sums[-1])}")
    return sums


def negative_key(seed: int, epoch: int, index: int, edge_type: int) -> int:
    """The key of all negatives of one batch along one edge type."""
    return _C.draw_key(seed, epoch, index, _NEGATIVE_HOP, edge_type)


def local_has_edge(graph: Graph, edge_dir: Literal["in", "out"], num_threads: int = 1) -> HasEdge:
    """``HasEdge`` of a graph held whole, whose rows are sources (``edge_dir`` "out") or targets ("in")."""
    if edge_dir not in ("in", "out"):
        raise InvalidArgumentError(f"edge_dir: expected 'in' or 'out', got {edge_dir!r}")
    handler, pool = graph.graph_handler, thread_pool(num_threads)

    def has_edge(src: torch.Tensor, dst: torch.Tensor) -> torch.Tensor:
        rows, cols = (src, dst) if edge_dir == "out" else (dst, src)
        return to_tensor(_C.has_edges(handler, rows, cols, pool)).view(torch.bool)

    return has_edge


@dataclass(frozen=True)
class NegativePool:
    """The pairs of sources and targets of one edge type from which negatives are drawn.

    Every draw is a function of a key, of the round and of the slot it fills: the result depends neither on who draws
    nor on who answers ``has_edge``. With ``has_edge`` negatives are strict: up to ``trials`` rounds ask about the slots
    that are still open.

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
        self, count: int, key: int, *, has_edge: AsyncHasEdge | None = None, trials: int = DEFAULT_TRIALS
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Up to ``count`` pairs: sources, targets and the slots they fill, int64 ``[n]`` each, in the order of slots.

        Fewer than ``count`` come where all trials of a slot met edges (none from a complete graph), or where there are
        no nodes.

        Raises:
            InvalidArgumentError: ``count`` below 0 or ``trials`` below 1.
        """
        _check_counts(count, trials)
        if self.num_src == 0 or self.num_dst == 0:
            count = 0
        slots = torch.arange(count)
        src, dst = self._draw_pairs(slots, key)
        if has_edge is None or count == 0:
            return src, dst, slots
        slots = slots[await has_edge(src, dst)]
        for trial in range(1, trials):
            if slots.numel() == 0:
                return src, dst, torch.arange(count)
            src[slots], dst[slots] = self._draw_pairs(trial * count + slots, key)
            slots = slots[await has_edge(src[slots], dst[slots])]
        filled = torch.ones(count, dtype=torch.bool)
        filled[slots] = False
        return src[filled], dst[filled], filled.nonzero().view(-1)

    def triplet(
        self,
        src: torch.Tensor,
        amount: int,
        key: int,
        *,
        has_edge: HasEdge | None = None,
        trials: int = DEFAULT_TRIALS,
    ) -> torch.Tensor:
        """The targets of ``draw_targets``, from a graph in this process."""
        return run_local(self.draw_targets(src, amount, key, has_edge=_awaitable(has_edge), trials=trials))

    async def draw_targets(
        self,
        src: torch.Tensor,
        amount: int,
        key: int,
        *,
        has_edge: AsyncHasEdge | None = None,
        trials: int = DEFAULT_TRIALS,
    ) -> torch.Tensor:
        """Targets for given sources, int64 ``[n, amount]``.

        A slot that is open after all trials is filled by an exact search: it draws among the targets that are not
        neighbors of its source.

        Args:
            src: int ``[n]``, global ids.
            amount: targets for each source.
            key: of all draws.
            has_edge: makes them strict.
            trials: rounds of drawing before the search.

        Raises:
            InvalidArgumentError: ``amount`` below 0, ``trials`` below 1, or a source has no negative at all; the error
                names the source.
            UnknownIdError: a source is outside the pool.
        """
        _check_counts(amount, trials)
        sources = check_index_tensor(src, "src", num_ids=self.num_src).to(torch.int64).repeat_interleave(amount)
        count = sources.numel()
        if count and self.num_dst == 0:
            raise InvalidArgumentError(f"src: source {int(sources[0])} has no negative: there are no targets")
        slots = torch.arange(count)
        dst = self._draw_targets(slots, key)
        if has_edge is not None and count > 0:
            slots = slots[await has_edge(sources, dst)]
            for trial in range(1, trials):
                if slots.numel() == 0:
                    break
                dst[slots] = self._draw_targets(trial * count + slots, key)
                slots = slots[await has_edge(sources[slots], dst[slots])]
            if slots.numel() > 0:
                dst[slots] = await self._search(sources[slots], key, trials * count + slots, has_edge)
        return dst.view(src.numel(), amount)

    def _draw_pairs(self, positions: torch.Tensor, key: int) -> tuple[torch.Tensor, torch.Tensor]:
        return _draw(key, 2 * positions, self.num_src, self.src_sums), self._draw_targets(2 * positions + 1, key)

    def _draw_targets(self, positions: torch.Tensor, key: int) -> torch.Tensor:
        return _draw(key, positions, self.num_dst, self.dst_sums)

    async def _search(
        self, sources: torch.Tensor, key: int, positions: torch.Tensor, has_edge: AsyncHasEdge
    ) -> torch.Tensor:
        """One target for each slot, drawn among all those that are not neighbors of the slot's source."""
        shares = to_tensor(_C.random_ids(key, positions, _MANTISSA)).to(torch.float64) / _MANTISSA
        weight = torch.ones(self.num_dst, dtype=torch.float64)
        if self.dst_sums is not None:
            weight = torch.diff(self.dst_sums, prepend=self.dst_sums.new_zeros(1))
        distinct, slot_source, num_slots = torch.unique(sources, return_inverse=True, return_counts=True)
        first_slot = num_slots.cumsum(0) - num_slots
        by_source = torch.argsort(slot_source, stable=True)
        rank = torch.empty_like(by_source)  # of a slot among those of its source
        rank[by_source] = torch.arange(by_source.numel()) - first_slot.repeat_interleave(num_slots)
        found = torch.empty_like(sources)
        at_once = max(1, _EXACT_PAIRS // self.num_dst)
        for begin in range(0, distinct.numel(), at_once):
            group = slice(begin, begin + at_once)
            sums = (await self._is_negative(distinct[group], has_edge) * weight).cumsum(1)
            none = (sums[:, -1] <= 0).nonzero()
            if none.numel():
                raise InvalidArgumentError(
                    f"src: source {int(distinct[group][none[0]])} has no negative: it has an edge to each of "
                    f"{self.num_dst} targets" + ("" if self.dst_sums is None else " that have a weight")
                )
            slots = by_source[int(first_slot[begin]) :][: int(num_slots[group].sum())]
            place = (slot_source[slots] - begin, rank[slots])
            wanted = sums.new_zeros(sums.size(0), int(num_slots[group].max()))
            wanted[place] = shares[slots]
            found[slots] = torch.searchsorted(sums, wanted * sums[:, -1:], right=True)[place]
        return found

    async def _is_negative(self, sources: torch.Tensor, has_edge: AsyncHasEdge) -> torch.Tensor:
        """bool ``[n, num_dst]``: where there is no edge."""
        total = sources.numel() * self.num_dst
        answers = []
        for begin in range(0, total, _EXACT_PAIRS):
            pair = torch.arange(begin, min(begin + _EXACT_PAIRS, total))
            answers.append(await has_edge(sources[pair // self.num_dst], pair % self.num_dst))
        return torch.cat(answers).logical_not().view(-1, self.num_dst)


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


def _draw(key: int, positions: torch.Tensor, bound: int, sums: torch.Tensor | None) -> torch.Tensor:
    return to_tensor(_C.random_ids(key, positions, bound, sums))


class RandomNegativeSampler:
    """Pairs of nodes that are not edges, uniformly from all such pairs.

    Successive calls are successive batches: call ``n`` after construction draws with batch index ``n``.

    Args:
        graph: the edges.
        mode: ``"CPU"`` or ``"CUDA"``; both draw on the CPU.
        edge_dir: whether the rows of the graph are sources ("out") or targets ("in").
        seed: seed of all draws.
    """

    def __init__(self, graph: Graph, mode: str = "CPU", edge_dir: Literal["in", "out"] = "out", seed: int = 0) -> None:
        if mode not in ("CPU", "CUDA"):
            raise InvalidArgumentError(f"mode: expected 'CPU' or 'CUDA', got {mode!r}")
        self._has_edge = local_has_edge(graph, edge_dir)
        extents = (graph.row_count, graph.col_count)
        self._pool = NegativePool(*(extents if edge_dir == "out" else extents[::-1]))
        self._seed = seed
        self._calls = itertools.count()

    def sample(self, req_num: int, trials_num: int = 5, padding: bool = False) -> torch.Tensor:
        """Up to ``req_num`` pairs, int64 ``[2, n]``: sources, targets.

        With ``padding`` exactly ``req_num``: where too few were found, pairs that may be edges follow them.

        Raises:
            InvalidArgumentError: ``req_num`` below 0 or ``trials_num`` below 1.
        """
        index = next(self._calls)
        key = negative_key(self._seed, 0, index, 0)
        pairs = torch.stack(self._pool.binary(req_num, key, has_edge=self._has_edge, trials=trials_num))
        missing = req_num - pairs.size(1)
        if not padding or missing == 0:
            return pairs
        fill = self._pool.binary(missing, negative_key(self._seed, 0, index, 1))
        return torch.cat([pairs, torch.stack(fill)], dim=1)
