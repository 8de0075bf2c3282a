"""Learned rows on a server: pulled by trainers, and changed when all trainers have pushed the gradients of a step."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import torch

from ...errors import InvalidArgumentError, PeerLostError
from ...partition import PartitionBook
from ...rpc.calls.remote import remote
from ...rpc.peers.identity import Peer, current_peer
from ..dist_dataset import DistDataset
from .settings import EmbeddingSettings, OptimizerSettings
from .table import EmbeddingTable, sum_by_id


@dataclass
class _Push:
    """What one trainer gives to a step."""

    optimizer: OptimizerSettings
    ids: torch.Tensor
    grads: torch.Tensor


@dataclass
class _Served:
    """A table, its trainers, and what of its next step has come."""

    table: EmbeddingTable
    book: PartitionBook
    num_trainers: int
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    trainers: dict[Peer, int] = field(default_factory=dict)
    pushes: dict[int, _Push] = field(default_factory=dict)
    applied: asyncio.Future[None] | None = None
    gone: dict[int, PeerLostError] = field(default_factory=dict)

    def end_step(self, error: Exception | None) -> None:
        """Tells all who pushed that the step is taken, or why it is not."""
        applied, self.applied, self.pushes = self.applied, None, {}
        if applied is None:
            return
        if error is None:
            applied.set_result(None)
        else:
            applied.set_exception(error)


class EmbeddingService:
    """The learned rows of one partition. All methods run on the endpoint's loop.

    Args:
        dataset: the partition, whose books say which rows are here.
    """

    def __init__(self, dataset: DistDataset) -> None:
        self._dataset = dataset
        self._tables: dict[str, _Served] = {}

    @remote
    async def open_embedding(self, settings: EmbeddingSettings, rank: int, num_trainers: int) -> int:
        """The steps that the table has taken; it is made where it is not there.

        Raises:
            InvalidArgumentError: there are no such nodes, or the table is another one under this name.
        """
        served = self._tables.get(settings.name)
        if served is None:
            served = self._tables[settings.name] = self._make(settings, num_trainers)
        if served.table.settings != settings or served.num_trainers != num_trainers:
            raise InvalidArgumentError(
                f"embedding {settings.name!r}: expected {served.table.settings} of {served.num_trainers} trainers "
                f"as the others, got {settings} of {num_trainers}"
            )
        caller = current_peer()
        for before in [peer for peer, of in served.trainers.items() if of == rank and peer != caller]:
            self.trainer_gone(before, "another process has its rank")  # its loss may become known later
        served.trainers[caller] = rank
        served.gone.pop(rank, None)
        return served.table.step

    def _make(self, settings: EmbeddingSettings, num_trainers: int) -> _Served:
        book = self._dataset.node_books().get(settings.node_type)
        if book is None:
            raise InvalidArgumentError(f"node_type: unknown node type {settings.node_type!r}")
        return _Served(EmbeddingTable(settings, book.local_ids()), book, num_trainers)

    def _find(self, name: str) -> _Served:
        served = self._tables.get(name)
        if served is None:
            raise InvalidArgumentError(f"name: this server has no embedding {name!r}; was it started anew?")
        return served

    @remote
    async def pull_embedding(self, name: str, step: int, ids: torch.Tensor) -> torch.Tensor:
        """Rows ``[n, dim]`` of ids of this partition, int64 ``[n]``, after ``step`` steps."""
        served = self._find(name)
        at = served.book.id2index[ids]
        async with served.lock:  # nobody reads rows that change
            return await asyncio.get_running_loop().run_in_executor(None, served.table.pull, step, at)

    @remote
    async def push_embedding(
        self, name: str, step: int, rank: int, optimizer: OptimizerSettings, ids: torch.Tensor, grads: torch.Tensor
    ) -> None:
        """One trainer's gradients of a step; answers when those of all trainers are applied, in order of their ranks.

        Raises:
            InvalidArgumentError: the step is not the table's next, or trainers differ in the optimizer.
            PeerLostError: a trainer left or died before it pushed.
        """
        served = self._find(name)
        served.table.check_step(step)
        if rank in served.pushes or not 0 <= rank < served.num_trainers:
            raise InvalidArgumentError(f"rank: trainer {rank} of {served.num_trainers} has pushed step {step} already")
        for error in served.gone.values():
            raise error
        served.pushes[rank] = _Push(optimizer, ids, grads)
        if served.applied is None:
            served.applied = asyncio.get_running_loop().create_future()
        applied = served.applied
        if len(served.pushes) == served.num_trainers:
            await self._apply(served)
        await asyncio.shield(applied)

    async def _apply(self, served: _Served) -> None:
        pushes = [served.pushes[rank] for rank in range(served.num_trainers)]
        try:
            async with served.lock:
                await asyncio.get_running_loop().run_in_executor(None, _take_step, served.table, served.book, pushes)
        except Exception as error:  # whoever pushed hears of it
            served.end_step(error)
        else:
            served.end_step(None)

    def trainer_gone(self, peer: Peer, why: str) -> None:
        """A trainer left or died: those who wait for its gradients are told, and so is who pushes before it is back."""
        for served in self._tables.values():
            rank = served.trainers.pop(peer, None)
            if rank is not None:
                error = served.gone[rank] = PeerLostError(str(peer), why)
                if len(served.pushes) < served.num_trainers:  # else the step is being taken
                    served.end_step(error)


def _take_step(table: EmbeddingTable, book: PartitionBook, pushes: list[_Push]) -> None:
    if any(push.optimizer != pushes[0].optimizer for push in pushes):
        raise InvalidArgumentError(f"optimizer: trainers differ: {[push.optimizer for push in pushes]}")
    ids, grads = pushes[0].ids, pushes[0].grads
    if len(pushes) > 1:
        ids, grads = sum_by_id(torch.cat([push.ids for push in pushes]), torch.cat([push.grads for push in pushes]))
    table.apply(pushes[0].optimizer, book.id2index[ids], grads)
