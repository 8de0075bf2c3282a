"""Who has the rows of a learned table, as a trainer sees it: this process, or the servers of the partitions."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, wait
from pathlib import Path
from typing import Any, Protocol

import torch

from ... import _C
from ...core import check_index_tensor, pooled_empty, to_tensor
from ...errors import EmbeddingStateError, InvalidArgumentError
from ...partition import PartitionBook
from ...rpc.calls.remote import Remote
from .. import rpc
from ..dist_client import client_context
from ..dist_context import get_context
from ..dist_server import DistServer
from ..sampling.partitioned_sampler import OwnerSplit, split_by_owner
from ..sampling.served_dataset import ServedDataset
from .checkpoint import Checkpoint, save, write_part
from .service import EmbeddingService
from .settings import DTYPES, EmbeddingSettings, OptimizerSettings
from .table import EmbeddingTable

_MAX_READS = 5  # of a checkpoint that all trainers load, and that is replaced each time before all have read it


class Owners(Protocol):
    """All rows of a table."""

    step: int
    tag: str  # of the checkpoint that was loaded last, and on servers, behind "-", of that load

    def pull(self, ids: torch.Tensor) -> torch.Tensor:
        """Rows ``[n, dim]`` of global ids, int64 ``[n]``."""

    def push(self, optimizer: OptimizerSettings, ids: torch.Tensor, grads: torch.Tensor) -> Sequence[Future[None]]:
        """Begins a step with the gradients of distinct ids; it is taken when all futures are done."""

    def save(self, folder: Path) -> None:
        """Writes a checkpoint of all rows."""

    def load(self, folder: Path) -> None:
        """Goes on from a checkpoint; all trainers do."""


class HeldRows:
    """All rows are in this process."""

    def __init__(self, settings: EmbeddingSettings) -> None:
        self._table = EmbeddingTable(settings, torch.arange(settings.num))
        self.step, self.tag = 0, ""

    def pull(self, ids: torch.Tensor) -> torch.Tensor:
        """See ``Owners``."""
        checked = check_index_tensor(ids, "ids", num_ids=self._table.settings.num).long()
        return self._table.pull(checked)

    def push(self, optimizer: OptimizerSettings, ids: torch.Tensor, grads: torch.Tensor) -> Sequence[Future[None]]:
        """See ``Owners``; the step is taken at once."""
        self._table.apply(optimizer, ids, grads)
        return ()

    def save(self, folder: Path) -> None:
        """See ``Owners``."""
        table, ids = self._table, torch.arange(self._table.settings.num)
        save(
            folder,
            table.settings,
            self.step,
            lambda tag: (table.state.optimizer, [write_part(folder, tag, 0, ids, table)]),
        )

    def load(self, folder: Path) -> None:
        """See ``Owners``."""
        found = Checkpoint.read(folder, self._table.settings)
        ids = torch.arange(self._table.settings.num)
        self._table.restore(found.state_of(ids, lambda wanted: wanted, self._table.settings), found.tag)
        self.step, self.tag = found.step, found.tag


class ServedRows:
    """Rows are on the servers of this client."""

    def __init__(self, settings: EmbeddingSettings, timeout_s: float) -> None:
        context = client_context()
        endpoint, count = rpc.get_endpoint(), context.num_servers()
        self._settings, self._rank = settings, context.rank
        self._book, self._pool = _book_of(settings, timeout_s), _C.ThreadPool(1)
        servers = [("server", rank) for rank in range(count)]
        asked = [Remote[DistServer](endpoint, server).ask(DistServer.get_dataset_meta) for server in servers]
        parts = [answer.result()[1] for answer in asked]
        if len({*parts}) != len(parts):
            raise InvalidArgumentError(f"servers: expected one for each partition, got those of partitions {parts}")
        remotes = [Remote[EmbeddingService](endpoint, server, timeout_s=timeout_s) for server in servers]
        self._owners = [remotes[parts.index(part)] for part in range(count)]
        self._trainers = context.world_size
        opened = [
            owner.ask(EmbeddingService.open_embedding, settings, self._rank, self._trainers) for owner in self._owners
        ]
        states = [answer.result() for answer in opened]
        # Where they differ, a server was started anew: only load() brings them together.
        self.step, self.tag = states[0] if len({*states}) == 1 else (-1, "")
        self._steps = [step for step, _ in states]

    def _check(self) -> None:
        if self.step < 0:
            raise EmbeddingStateError(
                f"embedding {self._settings.name!r}: servers have taken different steps: {self._steps}; all trainers "
                "have to load() a checkpoint"
            )

    def pull(self, ids: torch.Tensor) -> torch.Tensor:
        """See ``Owners``."""
        self._check()
        ids = check_index_tensor(ids, "ids", num_ids=self._settings.num).long()
        split = split_by_owner(self._book.native, ids, self._pool)
        at = self._settings.name, self.step, self.tag
        asked = [
            (positions, owner.ask(EmbeddingService.pull_embedding, *at, wanted))
            for owner, (wanted, positions) in zip(self._owners, _buckets(split), strict=True)
            if len(wanted)
        ]
        rows = pooled_empty((len(ids), self._settings.dim), DTYPES[self._settings.dtype])
        for positions, answer in asked:
            found = answer.result().contiguous()
            _C.RowStore([found]).gather(torch.arange(len(found)), self._pool, positions, rows)
        return rows

    def push(self, optimizer: OptimizerSettings, ids: torch.Tensor, grads: torch.Tensor) -> Sequence[Future[None]]:
        """See ``Owners``. Every server hears of every step, since each counts them."""
        self._check()
        split, rows = split_by_owner(self._book.native, ids, self._pool), _C.RowStore([grads])
        at = self._settings.name, self.step, self.tag, self._rank
        return [
            owner.ask(
                EmbeddingService.push_embedding, *at, optimizer, changed, to_tensor(rows.gather(positions, self._pool))
            )
            for owner, (changed, positions) in zip(self._owners, _buckets(split), strict=True)
        ]

    def save(self, folder: Path) -> None:
        """See ``Owners``; servers write at the same time."""
        self._check()
        save(folder, self._settings, self.step, lambda tag: self._write(folder, tag))

    def _write(self, folder: Path, tag: str) -> tuple[str, list[list[dict[str, Any]]]]:
        at = self._settings.name, self.step, self.tag, str(folder), tag
        asked = [owner.ask(EmbeddingService.save_embedding, *at) for owner in self._owners]
        wait(asked)  # whoever still writes would leave its files
        written = [answer.result() for answer in asked]
        return written[0][0], [files for _, files in written]

    def load(self, folder: Path) -> None:
        """See ``Owners``."""
        for _ in range(_MAX_READS):
            found = Checkpoint.read(folder, self._settings)
            how = self._settings, self._rank, self._trainers, str(folder), found.tag
            met = self._owners[0].ask(EmbeddingService.meet_to_load, *how).result()
            if met is not None:
                break
        else:
            raise InvalidArgumentError(
                f"directory: expected the same checkpoint for all trainers, which share {folder}"
            )
        attempt = f"{found.tag}-{met}"
        asked = [owner.ask(EmbeddingService.load_embedding, *how, attempt) for owner in self._owners]
        wait(asked)
        for answer in asked:
            answer.result()
        self.step, self.tag = found.step, attempt


def _buckets(split: OwnerSplit) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """By owner its ids, and where they stand in what was divided."""
    parts = range(len(split.bounds) - 1)
    return [(split.part(split.ids, part), split.part(split.positions, part)) for part in parts]


def _book_of(settings: EmbeddingSettings, timeout_s: float) -> PartitionBook:
    book = ServedDataset.connect(timeout_s).node_books().get(settings.node_type)
    if book is None:
        raise InvalidArgumentError(f"node_type: unknown node type {settings.node_type!r}")
    if book.num_ids != settings.num:
        raise InvalidArgumentError(f"num: expected {book.num_ids}, the nodes of the type, got {settings.num}")
    return book


def owners_of(settings: EmbeddingSettings, timeout_s: float) -> Owners:
    """The servers where this process is a client, else this process, which must be alone."""
    context = get_context()
    if context is not None and context.is_client():
        return ServedRows(settings, timeout_s)
    if context is not None and context.world_size > 1:
        raise InvalidArgumentError(
            f"DistEmbedding: expected a client of servers or a process alone, got one of {context.world_size} workers"
        )
    return HeldRows(settings)
