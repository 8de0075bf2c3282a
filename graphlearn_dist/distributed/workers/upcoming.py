"""The batches of a run that a sampling worker samples before their rows are wanted, see ``sampler.foresight``."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from time import perf_counter_ns

from ...data.disk_tier import Announced
from ...messages import SampledBatch
from ...sampler.foresight import WINDOW
from ..sampling.batches import PartitionedBatches


class Upcoming:
    """Samples the batches of a run some places ahead, where rows are read from disk.

    Args:
        batches: makes them.
        run: number of the run.
        epoch: of the batches.
        indices: of the batches, in the order in which they are taken.
    """

    def __init__(self, batches: PartitionedBatches, run: int, epoch: int, indices: Sequence[int]) -> None:
        self._batches, self._run, self._epoch, self._indices = batches, run, epoch, indices
        self._window = WINDOW if batches.reads_disk else 0
        self._num_begun = 0
        self._sampling: dict[int, asyncio.Task[SampledBatch]] = {}
        self._announced: dict[int, Announced] = {}
        self._last: asyncio.Task[SampledBatch] | None = None

    def look_ahead(self, place: int) -> None:
        """Begins to sample what comes until some places behind one."""
        if self._window == 0:
            return
        stop = min(place + self._window + 1, len(self._indices))
        for index in self._indices[max(self._num_begun, place) : stop]:
            self._last = self._sampling[index] = asyncio.create_task(self._sample(index, self._last))
        self._num_begun = max(self._num_begun, stop)

    def take(self, index: int) -> Awaitable[SampledBatch] | None:
        """A batch, without its rows, when it is sampled; None where that was not begun.

        Who waits for it and is cancelled may take it again.
        """
        sampling = self._sampling.get(index)
        return None if sampling is None else asyncio.shield(sampling)

    def finish(self, index: int) -> None:
        """The rows of a batch were looked up, or will not be."""
        if (sampling := self._sampling.pop(index, None)) is not None:
            sampling.cancel()  # without effect when it is sampled
        if (announced := self._announced.pop(index, None)) is not None:
            announced.finish()

    async def close(self) -> None:
        """What was sampled will not be taken."""
        left = list(self._sampling.values())
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        for index in list(self._announced):
            self.finish(index)

    async def _sample(self, index: int, previous: asyncio.Task[SampledBatch] | None) -> SampledBatch:
        begun = perf_counter_ns()
        batch = await self._batches.sample(self._epoch, index, self._run)
        self._batches.counts.add_times(sample_ns=perf_counter_ns() - begun)
        if previous is not None and not previous.done():
            await asyncio.wait([previous])  # announcements are in the order of the batches
        self._announced[index] = self._batches.announce(batch)
        return batch
