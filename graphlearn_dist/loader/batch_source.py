"""What makes a loader's batches of seeds: of a data set here, of PyG's data in ``pyg_source``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

import torch

from ..data.dataset import Dataset
from ..errors import InvalidArgumentError
from ..sampler.base import SamplingConfig
from ..sampler.batches import LocalBatches
from ..sampler.convert import to_pyg_v1
from ..telemetry import BatchCounts, DeviceCacheCounts
from .transform import to_pyg

Named = Callable[[int], tuple[torch.Tensor, tuple[int, int]]]


class BatchSource(Protocol):
    """Makes batches in two steps; safe to call from several threads at once, unless ``runs_others``.

    Attributes:
        uses_gpu: whether a GPU samples or gathers.
        counts: of the batches that it made.
    """

    uses_gpu: bool
    counts: BatchCounts

    @property
    def runs_others(self) -> bool:
        """Whether it calls code of others, which may not be made for threads."""

    @property
    def device_cache(self) -> DeviceCacheCounts | None:
        """What caches of the rows that it looks up were asked; None without such. Waits for the GPUs."""

    def sample(self, positions: torch.Tensor, place: tuple[int, int]) -> Any:
        """What is drawn for the seeds at some positions of the input, with the draws of a batch (epoch, index)."""

    @property
    def looks_ahead(self) -> bool:
        """Whether ``sampling`` asks for the arguments of later batches."""

    def sampling(self, named: Named, count: int) -> AbstractContextManager[Callable[[int], Any]]:
        """For one pass over ``count`` batches: ``sample`` by place, of which ``named`` gives the arguments."""

    def cut(self, sampled: Any, *, as_parts: bool = False) -> Any:
        """The batch of it, as a program gets it, or ``as_parts`` for a device that makes matrices of them."""

    def replace(self, name: str, value: Any, before: Any) -> Any:
        """Makes later batches with this in the place of what a loader had by that name, and returns it.

        Raises:
            InvalidArgumentError: batches are prepared for what was given.
        """

    def check(self, *, wait: bool = True) -> None:
        """Raises what was wrong with a batch that a GPU made; waits for all that it was asked for, where it is to."""


@contextmanager
def sampled_in_turn(source: BatchSource, named: Named) -> Iterator[Callable[[int], Any]]:
    """``BatchSource.sampling`` of sources that gain nothing by knowing what comes."""
    yield lambda place: source.sample(*named(place))


class DatasetSource:
    """Makes batches of a data set.

    Args:
        data: graph, features and labels.
        config: how to sample.
        batches: its batches.
        as_pyg_v1: give (batch size, ids, layers) instead of PyG objects.
    """

    runs_others = False

    def __init__(
        self,
        data: Dataset,
        config: SamplingConfig,
        batches: LocalBatches,
        *,
        as_pyg_v1: bool = False,
    ) -> None:
        self._batches = batches
        self.uses_gpu = batches.uses_gpu
        self.counts = batches.counts
        self._schema = data.schema
        self._constants = data.constants if config.collect_features else {}
        self._as_pyg_v1 = as_pyg_v1

    @property
    def device_cache(self) -> DeviceCacheCounts | None:
        """See ``BatchSource``."""
        return self._batches.device_cache

    def sample(self, positions: torch.Tensor, place: tuple[int, int]) -> Any:
        """See ``BatchSource``: the sampled batch with its rows."""
        return self._batches.make_of(positions, *place)

    @property
    def looks_ahead(self) -> bool:
        return self._batches.reads_disk

    @contextmanager
    def sampling(self, named: Named, count: int) -> Iterator[Callable[[int], Any]]:
        """See ``BatchSource``."""
        if not self.looks_ahead:
            with sampled_in_turn(self, named) as sample:
                yield sample
            return
        with self._batches.ahead(lambda at: (named(at)[0], *named(at)[1]), count) as ahead:
            yield ahead.make

    def cut(self, sampled: Any, *, as_parts: bool = False) -> Any:
        """See ``BatchSource``."""
        if self._as_pyg_v1:
            return to_pyg_v1(sampled)
        return to_pyg(sampled, self._schema, self._constants, as_parts=as_parts)

    def replace(self, name: str, value: Any, before: Any) -> Any:
        """See ``BatchSource``: a data set is prepared for sampling."""
        if value is before:
            return value
        raise InvalidArgumentError(f"{name}: a loader of a data set keeps what it was made with, make another one")

    def check(self, *, wait: bool = True) -> None:
        """See ``BatchSource``."""
        self._batches.check(wait=wait)
