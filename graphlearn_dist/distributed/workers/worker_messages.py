"""What a process and its sampling workers say to each other."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from enum import IntEnum

import torch

from ...data.disk_tier import FeatureMemory
from ...messages import TensorHandle
from ...rpc.peers.identity import PeerAddress
from ...sampler.base import EdgeSamplerInput, NodeSamplerInput, SamplingConfig
from ...sampler.epochs.schedule import BatchShare
from ...utils.message_types import register_message
from ..partitions.dataset_handle import CacheHandle, DatasetHandle
from ..partitions.partition_peers import PartitionHolders


@register_message
@dataclass(frozen=True)
class WorkerSetup:
    """Everything a sampling worker needs, once.

    Attributes:
        name: of the worker, for errors.
        environ: environment variables of the process that it works for.
        dataset: the partition to map.
        sampler_input: the loader's input, checked.
        config: how to sample.
        ring_path: where finished batches are announced.
        returns_path: where it hears of slots that are needed no more.
        region_bytes: shared memory for batches; committed as it is used.
        concurrency: batches under way at once.
        num_threads: threads of one batch.
        holders: who serves the other partitions.
        rank: of the worker among those of its producer.
        request_timeout_s: deadline of a request to a peer.
        reconnect_timeout_s: how long a peer that is gone may take to come back.
        copies: rows of other partitions that the host keeps, see ``UseCopies``.
        row_counts: where it counts their use, see ``RowCounts``; None where nobody wants to know.
        near: int64 ``[num_inputs]``, see ``make_schedule``; None where batches are not of near seeds.
        key: of the loader, by which its batches are named in a trace.
        batch_counts: where it counts its batches, see ``SharedBatchCounts``.
        feature_memory: for rows that it reads from files; None leaves them mapped.
        recent_bytes: for rows that other partitions answered lately.
    """

    name: str
    environ: dict[bytes, bytes] = field(repr=False)  # it may hold secrets
    dataset: DatasetHandle
    sampler_input: NodeSamplerInput | EdgeSamplerInput
    config: SamplingConfig
    ring_path: str
    returns_path: str
    region_bytes: int
    concurrency: int
    num_threads: int
    holders: PartitionHolders
    rank: int
    request_timeout_s: float
    reconnect_timeout_s: float
    key: int
    batch_counts: TensorHandle
    copies: tuple[CacheHandle, ...] = ()
    row_counts: TensorHandle | None = None
    near: torch.Tensor | None = None
    feature_memory: FeatureMemory | None = None
    recent_bytes: int = 0


@register_message
@dataclass(frozen=True)
class WorkerReady:
    """The worker is set up; where its batches will lie."""

    region_path: str
    region_bytes: int
    region_nonce: bytes


@register_message
@dataclass(frozen=True)
class StartRun:
    """Sample these batches of ``epoch``; whatever an older run asked for is off.

    ``careful``: those that a predecessor may have died of, the first few, are made, and sent, one at a time.
    """

    run: int
    epoch: int
    share: BatchShare
    careful: bool = False


@register_message
@dataclass(frozen=True)
class MoveHolders:
    """The other partitions are served there from now on, see ``PartitionHolders.addresses``."""

    addresses: dict[int, PeerAddress]


@register_message
@dataclass(frozen=True)
class UseCopies:
    """Copies of other partitions' rows that all workers of the host use from now on, in place of earlier ones."""

    copies: tuple[CacheHandle, ...]


@register_message
@dataclass(frozen=True)
class StopWorker:
    """End."""


class ItemKind(IntEnum):
    """What an item in the ring is."""

    BATCH = 1
    END = 2
    FAILURE = 3


@dataclass(frozen=True)
class ItemHeader:
    """The first 64 bytes of an item: enough to route it without decoding it (``csrc/serving/worker_feed.cpp``).

    Attributes:
        kind: what follows.
        run: the run it belongs to.
        epoch: its epoch.
        index: its batch, or the first of those that travel together.
        offset: where its payload lies in the worker's region; 0 where the payload follows in the ring.
        nbytes: bytes of the payload in the region.
        head_len: bytes of the head that follows, where the payload lies in the region.
        count: batches that it is, or stands for.
    """

    kind: ItemKind
    run: int
    epoch: int
    index: int
    offset: int = 0
    nbytes: int = 0
    head_len: int = 0
    count: int = 1

    def pack(self) -> bytes:
        place = self.offset, self.nbytes, self.head_len
        return _ITEM.pack(self.kind, self.run, self.epoch, self.index, *place, self.count)


_ITEM = struct.Struct("<8q")
ITEM_HEADER_BYTES = _ITEM.size
