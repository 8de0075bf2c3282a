"""Who has the rows of a learned table, as a trainer sees it: this process, or the servers of the partitions."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from typing import Protocol

import torch

from ...core import check_index_tensor
from ...errors import InvalidArgumentError
from ...partition import PartitionBook
from ...rpc.calls.remote import Remote
from .. import rpc
from ..dist_client import client_context
from ..dist_context import get_context
from ..dist_server import DistServer
from ..sampling.served_dataset import ServedDataset
from .service import EmbeddingService
from .settings import DTYPES, EmbeddingSettings, OptimizerSettings
from .table import EmbeddingTable


class Owners(Protocol):
    """All rows of a table."""

    step: int

    def pull(self, ids: torch.Tensor) -> torch.Tensor:
        """Rows ``[n, dim]`` of global ids, int64 ``[n]``."""

    def push(self, optimizer: OptimizerSettings, ids: torch.Tensor, grads: torch.Tensor) -> Sequence[Future[None]]:
        """Begins a step with the gradients of distinct ids; it is taken when all futures are done."""


class HeldRows:
    """All rows are in this process."""

    def __init__(self, settings: EmbeddingSettings) -> None:
        self._table = EmbeddingTable(settings, torch.arange(settings.num))
        self.step = 0

    def pull(self, ids: torch.Tensor) -> torch.Tensor:
        """See ``Owners``."""
        checked = check_index_tensor(ids, "ids", num_ids=self._table.settings.num).long()
        return self._table.pull(self.step, checked)

    def push(self, optimizer: OptimizerSettings, ids: torch.Tensor, grads: torch.Tensor) -> Sequence[Future[None]]:
        """See ``Owners``; the step is taken at once."""
        self._table.apply(optimizer, ids, grads)
        return ()


class ServedRows:
    """Rows are on the servers of this client."""

    def __init__(self, settings: EmbeddingSettings, timeout_s: float) -> None:
        context = client_context()
        endpoint, count = rpc.get_endpoint(), context.num_servers()
        self._settings, self._rank = settings, context.rank
        self._book = _book_of(settings, timeout_s)
        servers = [("server", rank) for rank in range(count)]
        asked = [Remote[DistServer](endpoint, server).ask(DistServer.get_dataset_meta) for server in servers]
        parts = [answer.result()[1] for answer in asked]
        if len({*parts}) != len(parts):
            raise InvalidArgumentError(f"servers: expected one for each partition, got those of partitions {parts}")
        remotes = [Remote[EmbeddingService](endpoint, server, timeout_s=timeout_s) for server in servers]
        self._owners = [remotes[parts.index(part)] for part in range(count)]
        opened = [
            owner.ask(EmbeddingService.open_embedding, settings, context.rank, context.world_size)
            for owner in self._owners
        ]
        steps = [answer.result() for answer in opened]
        if len({*steps}) != 1:
            raise InvalidArgumentError(f"embedding {settings.name!r}: servers are at different steps: {steps}")
        self.step = steps[0]

    def pull(self, ids: torch.Tensor) -> torch.Tensor:
        """See ``Owners``."""
        ids = check_index_tensor(ids, "ids", num_ids=self._settings.num).long()
        owners = self._book[ids]
        places = [(owners == part).nonzero()[:, 0] for part in range(len(self._owners))]
        asked = [
            (at, owner.ask(EmbeddingService.pull_embedding, self._settings.name, self.step, ids[at]))
            for owner, at in zip(self._owners, places, strict=True)
            if len(at)
        ]
        rows = torch.empty((len(ids), self._settings.dim), dtype=DTYPES[self._settings.dtype])
        for at, answer in asked:
            rows[at] = answer.result()
        return rows

    def push(self, optimizer: OptimizerSettings, ids: torch.Tensor, grads: torch.Tensor) -> Sequence[Future[None]]:
        """See ``Owners``. Every server hears of every step, since each counts them."""
        owners, name = self._book[ids], self._settings.name
        masks = [owners == part for part in range(len(self._owners))]
        return [
            owner.ask(EmbeddingService.push_embedding, name, self.step, self._rank, optimizer, ids[mask], grads[mask])
            for owner, mask in zip(self._owners, masks, strict=True)
        ]


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
