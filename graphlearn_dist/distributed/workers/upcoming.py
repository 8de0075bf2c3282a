"""The batches of a run that a sampling worker samples before their rows are wanted, see ``foresight``."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable, Sequence
from time import perf_counter_ns

from ...data.disk_tier import Announced
from ...messages import SampledBatch
from ...sampler.epochs.foresight import WINDOW
from ..sampling.batches import PartitionedBatches

_Sampling = asyncio.Task[list[SampledBatch]]


class Upcoming:
    """Samples the batches of a run some places ahead, where rows are read from disk.

    Args:
        batches: makes them.
        run: number of the run.
        epoch: of the batches.
        groups: indices of the batches, in the order in which they are taken; those of a group are sampled together,
            and taken one by one or together.
    """

    def __init__(self, batches: PartitionedBatches, run: int, epoch: int, groups: Iterable[Sequence[int]]) -> None:
        self._batches, self._run, self._epoch, self._groups = batches, run, epoch, iter(groups)
        self._window = WINDOW if batches.reads_disk else 0
        self._num_seen = 0  # batches of groups that were begun, or left out
        self._sampling: dict[int, tuple[_Sampling, int]] = {}  # by index, and which of those it is
        self._announced: dict[int, Announced] = {}
        self._last: _Sampling | None = None
        self._under_way: set[_Sampling] = set()

    def look_ahead(self, place: int) -> None:
        """Begins to sample what comes until some places behind one."""
        if self._window == 0:
            return
        while self._num_seen <= place + self._window and (indices := next(self._groups, None)) is not None:
            if self._num_seen >= place:
                self._last = asyncio.create_task(self._sample(indices, self._last))
                self._under_way.add(self._last)
                self._last.add_done_callback(self._under_way.discard)
                self._sampling |= {index: (self._last, at) for at, index in enumerate(indices)}
            self._num_seen += len(indices)

    def take(self, indices: Sequence[int]) -> Awaitable[list[SampledBatch]] | None:
        """Batches, without their rows, when they are sampled; None where that was not begun, or did not succeed.

        Who waits for them and is cancelled may take them again.
        """
        sampling, first = self._sampling.get(indices[0], (None, 0))
        if sampling is None or (sampling.done() and (sampling.cancelled() or sampling.exception() is not None)):
            return None
        return _some_of(sampling, first, len(indices))

    def finish(self, indices: Sequence[int]) -> None:
        """The rows of batches were looked up, or will not be."""
        for index in indices:
            sampling, _ = self._sampling.pop(index, (None, 0))
            if sampling is not None and all(other is not sampling for other, _ in self._sampling.values()):
                sampling.cancel()  # without effect when they are sampled
            if (announced := self._announced.pop(index, None)) is not None:
                announced.finish()

    async def close(self) -> None:
        """What was sampled will not be taken."""
        # Those that ``finish`` has called off may not have ended yet.
        left = self._under_way | {sampling for sampling, _ in self._sampling.values()}
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        self.finish([*self._announced, *self._sampling])
        self._last = None  # the traceback of an error in it leads here: memory must not wait for a garbage collection

    async def _sample(self, indices: Sequence[int], previous: _Sampling | None) -> list[SampledBatch]:
        begun = perf_counter_ns()
        batches = await self._batches.sample(self._epoch, indices, self._run)
        self._batches.counts.add_times(sample_ns=perf_counter_ns() - begun)
        if previous is not None and not previous.done():
            await asyncio.wait([previous])  # announcements are in the order of the batches
        self._announced |= {index: self._batches.announce(of) for index, of in zip(indices, batches, strict=True)}
        return batches


async def _some_of(sampling: _Sampling, first: int, count: int) -> list[SampledBatch]:
    return (await asyncio.shield(sampling))[first : first + count]
