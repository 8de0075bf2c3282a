"""Learned rows on a server: pulled by trainers, and changed when all trainers have pushed the gradients of a step."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Coroutine
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch

from ...core import pooled_empty
from ...errors import EmbeddingStateError, InvalidArgumentError, PeerLostError, StorageError
from ...partition import PartitionBook
from ...rpc.calls.remote import remote
from ...rpc.peers.identity import Peer, current_peer
from ..dist_dataset import DistDataset
from .checkpoint import Checkpoint, places_in, write_part
from .settings import EmbeddingSettings, OptimizerSettings
from .table import EmbeddingTable, RowState, sum_by_id


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
    loads: dict[int, tuple[str, str]] = field(default_factory=dict)  # by rank, the directory and tag that it loads
    met: asyncio.Future[str | None] | None = None  # when all have said so

    def end_step(self, error: Exception | None) -> None:
        """Tells all who pushed that the step is taken, or why it is not."""
        applied, self.applied, self.pushes = self.applied, None, {}
        _settle(applied, error)

    def loading_error(self) -> EmbeddingStateError:
        """What those are told who go on while others load."""
        name, ranks = self.table.settings.name, sorted(self.loads)
        return EmbeddingStateError(
            f"embedding {name!r}: trainers {ranks} load a checkpoint; all trainers have to load() it"
        )

    def check_loads(self) -> None:
        """Raises ``EmbeddingStateError`` where a trainer loads a checkpoint."""
        if self.loads:
            raise self.loading_error()


def _settle(future: asyncio.Future[None] | None, error: Exception | None) -> None:
    if future is None or future.done():
        return
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)
        future.exception()  # seen: those who waited may be gone


class EmbeddingService:
    """The learned rows of one partition. All methods run on the endpoint's loop.

    Args:
        dataset: the partition, whose books say which rows are here.
    """

    def __init__(self, dataset: DistDataset) -> None:
        self._dataset = dataset
        self._tables: dict[str, _Served] = {}
        self._making = asyncio.Lock()
        self._under_way: set[asyncio.Task[None]] = set()

    @remote
    async def open_embedding(self, settings: EmbeddingSettings, rank: int, num_trainers: int) -> tuple[int, str]:
        """The steps that the table has taken, and since which checkpoint; it is made where it is not there.

        Raises:
            InvalidArgumentError: there are no such nodes, or the table is another one under this name.
        """
        table = (await self._open(settings, rank, num_trainers)).table
        return table.step, table.tag

    async def _open(self, settings: EmbeddingSettings, rank: int, num_trainers: int) -> _Served:
        async with self._making:  # first rows take a while: meanwhile the loop goes on, and others do not begin again
            served = self._tables.get(settings.name)
            if served is None:
                make = asyncio.get_running_loop().run_in_executor(None, self._make, settings, num_trainers)
                served = self._tables[settings.name] = await make
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
        return served

    def _make(self, settings: EmbeddingSettings, num_trainers: int) -> _Served:
        book = self._dataset.node_books().get(settings.node_type)
        if book is None:
            raise InvalidArgumentError(f"node_type: unknown node type {settings.node_type!r}")
        return _Served(EmbeddingTable(settings, book.local_ids()), book, num_trainers)

    def _find(self, name: str) -> _Served:
        served = self._tables.get(name)
        if served is None:
            raise EmbeddingStateError(
                f"this server has no embedding {name!r}: it was started anew; all trainers have to load() a checkpoint"
            )
        return served

    @remote
    async def pull_embedding(self, name: str, step: int, tag: str, ids: torch.Tensor) -> torch.Tensor:
        """Rows ``[n, dim]`` of ids of this partition, int64 ``[n]``, after ``step`` steps since checkpoint ``tag``.

        Raises:
            EmbeddingStateError: the table is not there.
        """
        served = self._find(name)
        served.check_loads()
        at = served.book.id2index[ids]
        async with served.lock:  # nobody reads rows that change
            served.table.check(step, tag)
            return await asyncio.get_running_loop().run_in_executor(None, served.table.pull, at)

    @remote
    async def push_embedding(
        self,
        name: str,
        step: int,
        tag: str,
        rank: int,
        optimizer: OptimizerSettings,
        ids: torch.Tensor,
        grads: torch.Tensor,
    ) -> None:
        """One trainer's gradients of a step; answers when those of all trainers are applied, in order of their ranks.

        Raises:
            EmbeddingStateError: the step is not the table's next.
            InvalidArgumentError: trainers differ in the optimizer.
            PeerLostError: a trainer left or died before it pushed.
        """
        served = self._find(name)
        served.check_loads()
        served.table.check(step, tag)
        if rank in served.pushes or not 0 <= rank < served.num_trainers:
            raise InvalidArgumentError(f"rank: trainer {rank} of {served.num_trainers} has pushed step {step} already")
        for error in served.gone.values():
            raise error
        served.pushes[rank] = _Push(optimizer, ids, grads)
        if served.applied is None:
            served.applied = asyncio.get_running_loop().create_future()
        applied = served.applied
        if len(served.pushes) == served.num_trainers:
            self._begin(self._apply(served))
        await asyncio.shield(applied)

    @remote
    async def save_embedding(
        self, name: str, step: int, tag: str, directory: str, new_tag: str
    ) -> tuple[str, list[dict[str, Any]]]:
        """Writes the rows of this partition and what the optimizer keeps of them; gives its kind and the files.

        Raises:
            EmbeddingStateError: the table is not at this step.
            StorageError: the disk is full, or the directory cannot be written.
        """
        served = self._find(name)
        async with served.lock:
            served.table.check(step, tag)
            write = partial(
                write_part,
                Path(directory),
                new_tag,
                served.book.partition_idx,
                served.book.local_ids().long(),
                served.table,
            )
            return served.table.state.optimizer, await asyncio.get_running_loop().run_in_executor(None, write)

    @remote
    async def meet_to_load(
        self, settings: EmbeddingSettings, rank: int, num_trainers: int, directory: str, tag: str
    ) -> str | None:
        """Returns when all trainers load the same checkpoint; gives a name to this attempt. Asked of one owner alone.

        None where they have read different ones in one directory: another was saved between two reads, and all shall
        read again.

        Trainers that met at each owner apart could be told by one that all is done, and by another to come again.
        Steps that were begun are off. A trainer that is not there yet is waited for.

        Raises:
            InvalidArgumentError: trainers load from different directories.
        """
        served = await self._open(settings, rank, num_trainers)
        served.loads[rank] = directory, tag
        served.end_step(served.loading_error())  # else those who pushed and those who load would wait for each other
        if served.met is None:
            served.met = asyncio.get_running_loop().create_future()
        met = served.met
        if len(served.loads) == num_trainers:
            wanted, served.met, served.loads = {*served.loads.values()}, None, {}
            directories = {each for each, _ in wanted}
            if len(directories) > 1:
                met.set_exception(
                    InvalidArgumentError(f"directory: expected the same of all trainers, got {sorted(directories)}")
                )
            else:
                met.set_result(secrets.token_hex(4) if len(wanted) == 1 else None)
        try:
            return await asyncio.shield(met)
        except asyncio.CancelledError:
            if served.met is met:
                served.loads.pop(rank, None)
            raise

    @remote
    async def load_embedding(
        self, settings: EmbeddingSettings, rank: int, num_trainers: int, directory: str, tag: str, attempt: str
    ) -> None:
        """Goes on from a checkpoint that all trainers load; the first of them to ask in an attempt has it read.

        Raises:
            InvalidArgumentError: it does not fit the table.
            StorageError: it cannot be read; the rows stay as they are.
        """
        served = await self._open(settings, rank, num_trainers)
        async with served.lock:
            if served.table.tag == attempt:
                return
            state = await asyncio.get_running_loop().run_in_executor(None, _read_state, served, directory, tag)
            served.end_step(EmbeddingStateError(f"embedding {settings.name!r}: a checkpoint was loaded"))
            served.table.restore(state, attempt)
            served.gone.clear()  # all have met since

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        """What several trainers wait for goes on where the one that began it is gone."""
        task = asyncio.get_running_loop().create_task(work)
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)

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
                served.loads.pop(rank, None)
                error = served.gone[rank] = PeerLostError(str(peer), why)
                if len(served.pushes) < served.num_trainers:  # else the step is being taken
                    served.end_step(error)


def _read_state(served: _Served, directory: str, tag: str) -> RowState:
    found = Checkpoint.read(Path(directory), served.table.settings)
    if found.tag != tag:
        raise StorageError(f"{directory}: expected checkpoint {tag}, which a trainer found, got {found.tag}")
    return found.state_of(
        served.book.local_ids().long(), places_in(served.book, served.book.partition_idx), served.table.settings
    )


def _take_step(table: EmbeddingTable, book: PartitionBook, pushes: list[_Push]) -> None:
    if any(push.optimizer != pushes[0].optimizer for push in pushes):
        raise InvalidArgumentError(f"optimizer: trainers differ: {[push.optimizer for push in pushes]}")
    ids, grads = pushes[0].ids, pushes[0].grads
    if len(pushes) > 1:
        count = sum(len(push.ids) for push in pushes)
        together = pooled_empty((count, grads.size(1)), grads.dtype)
        torch.cat([push.grads for push in pushes], out=together)
        ids, grads = sum_by_id(torch.cat([push.ids for push in pushes]), together)
    table.apply(pushes[0].optimizer, book.id2index[ids], grads)
