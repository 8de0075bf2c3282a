"""What a loader iterates over, whatever the mode: something that makes the batches asked for, in order."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from ...data.schema import GraphSchema
from ...messages import EndOfEpoch, SampledBatch
from ...sampler.fingerprint import Settings
from ...sampler.schedule import BatchIndices


class BatchProducer(ABC):
    """Makes the batches of one loader. Opened when it is constructed; ``close`` ends it."""

    @property
    @abstractmethod
    def schema(self) -> GraphSchema:
        """The types of the data set."""

    @property
    @abstractmethod
    def constants(self) -> Mapping[Any, Mapping[str, Any]]:
        """Attributes of the data set that have no rows, by type and name."""

    @property
    @abstractmethod
    def num_batches(self) -> int:
        """Batches in the global list of an epoch, those of other shards too."""

    @property
    @abstractmethod
    def input_settings(self) -> Settings:
        """The input of the loader as ``sampler.fingerprint.input_settings`` gives it."""

    @abstractmethod
    def start(self, run: int, epoch: int, indices: BatchIndices) -> None:
        """Begins to make these batches of an epoch; what an older run asked for is off.

        Args:
            run: greater than that of any start before.
            epoch: whose draws.
            indices: positions in the epoch's global list.
        """

    @abstractmethod
    def recv(self) -> SampledBatch | EndOfEpoch:
        """The next batch; ``EndOfEpoch`` after the last. Raises as ``BatchWindow.recv`` does."""

    @abstractmethod
    def is_ready(self) -> bool:
        """Whether ``recv`` would give something at once."""

    @abstractmethod
    def close(self) -> None:
        """Ends it, and whatever was started for it. Idempotent."""
