"""One pass over the order that a program's own ``sampler`` or ``batch_sampler`` gives."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch

from ..errors import InvalidArgumentError
from ..sampler.epochs.schedule import BatchIndices


@dataclass(frozen=True)
class OrderMark:
    """The first batches of an order.

    Attributes:
        count: how many.
        digest: of their positions, 16 hexadecimal digits.
    """

    count: int
    digest: str


class OwnOrder:
    """Batches of an epoch, whose positions are asked for one by one.

    Args:
        batches: the positions of each batch of the whole epoch, int64 ``[batch_size]``, as they come.
        indices: those that are wanted, of which there may be fewer.
        before: what was given of the order before, in another process perhaps; None: nothing.
    """

    def __init__(self, batches: Iterable[torch.Tensor], indices: BatchIndices, before: OrderMark | None) -> None:
        self._batches = batches
        self._indices = indices
        self._before = before
        self._drawn: dict[int, tuple[torch.Tensor, OrderMark]] = {}

    def places(self, num_late: int) -> Iterator[int]:
        """The places among ``indices``, each when so many behind it are drawn, or all are.

        Raises:
            InvalidArgumentError: the order does not begin as it did before.
        """
        known: deque[int] = deque()
        failure: Exception | None = None
        try:
            for place in self._draw():
                known.append(place)
                if len(known) > num_late:
                    yield known.popleft()
        except Exception as error:
            failure = error
        yield from known
        if failure is not None:
            raise failure

    def positions(self, place: int) -> torch.Tensor:
        """Of a batch that was drawn and not taken."""
        return self._drawn[place][0]

    def take(self, place: int) -> OrderMark:
        """Forgets a batch; gives the mark of the order up to its end."""
        return self._drawn.pop(place)[1]

    def _draw(self) -> Iterator[int]:
        wanted = enumerate(self._indices)
        place, index = next(wanted)
        digest, count = hashlib.blake2b(digest_size=8), 0
        for count, positions in enumerate(self._batches, 1):
            digest.update(len(positions).to_bytes(8, "little"))
            digest.update(positions.cpu().contiguous().numpy().tobytes())
            mark = OrderMark(count, digest.hexdigest())
            if self._before is not None and self._before.count == count:
                self._check(mark)
            if count - 1 == index:
                self._drawn[place] = positions, mark
                yield place
                place, index = next(wanted)
        if self._before is not None and self._before.count > count:
            self._check(OrderMark(count, digest.hexdigest()))

    def _check(self, found: OrderMark) -> None:
        if found != self._before:
            raise InvalidArgumentError(
                f"sampler, batch_sampler: expected an order that begins with the batches of the state, {self._before}, "
                f"got {found}; give it the same seed in the same epoch, or begin one: set_epoch()"
            )
