"""One sampling worker, as the process sees it that started it: its commands, and its deaths.

A worker outlives its process: one that dies is started again, and makes again what it had not announced.
"""

from __future__ import annotations

import asyncio
import socket
from dataclasses import replace
from typing import Any

from ...errors import SamplingWorkerError
from ...utils.system.restarts import RestartBudget
from .batch_shelf import BatchShelf
from .worker_memory import WorkerMemory
from .worker_messages import StartRun
from .worker_process import WorkerDeath, WorkerOrigin, WorkerProcess

_MAX_DEATHS_OF_A_BATCH = 2


class WorkerHandle:
    """One sampling worker, as its owner sees it. On one asyncio loop.

    Args:
        name: of the worker, for errors.
        shelf: where its batches go.
        number: of the worker there.
        memory: for its batches.
        max_restarts: processes that may follow the first, within an hour.
    """

    def __init__(self, name: str, shelf: BatchShelf, number: int, memory: WorkerMemory, max_restarts: int) -> None:
        self.name = name
        self._shelf = shelf
        self._number = number
        self._memory = memory
        self._budget = RestartBudget(max_restarts)
        self._process: WorkerProcess | None = None  # the one that is up, or None
        self._last: WorkerProcess | None = None  # the one that ended, and that none follows
        self._restarting: asyncio.Task[None] | None = None
        self._start: StartRun | None = None
        self._lasting: dict[type, Any] = {}  # what was said last, of each kind
        self._is_told = False  # whether the process knows of the run
        self._deaths = (-1, 0)  # at which batch processes died, and how many in a row
        self._failure: SamplingWorkerError | None = None

    async def start(self, origin: WorkerOrigin) -> None:
        """Starts the process, as its successors later, and waits until it is set up.

        Raises:
            SamplingWorkerError: it failed on the way, or died too often.
        """
        await self._launch(origin)

    async def _launch(self, origin: WorkerOrigin) -> None:
        while True:
            self._process = process = WorkerProcess(
                self.name, self._shelf, self._number, self._memory, self._on_end, origin
            )
            try:
                death = await process.start()
            except BaseException:
                self._process = None
                await process.close()
                raise
            if death is None:
                break
            self._process = None
            await process.close()
            if (verdict := self._take_restart()) is not None:
                raise self._death_error(process.pid, death, "stage set-up", verdict)
        for message in [*self._lasting.values()]:  # its setup may be older
            process.send(message)

    @property
    def pid(self) -> int:
        """Process id; 0 before ``start`` and while it is started again."""
        return self._process.pid if self._process is not None else 0

    @property
    def num_restarts(self) -> int:
        """Processes that followed the first."""
        return self._budget.num_taken

    @property
    def is_up(self) -> bool:
        """Whether its process is set up."""
        return self._process is not None and self._process.is_up

    def start_run(self, start: StartRun) -> None:
        """Begins a run, which the shelf has begun."""
        self._start = start
        self._deaths = (-1, 0)
        if self._process is not None and self._process.is_up:
            self._is_told = True
            self._process.send(start)

    def tell(self, message: Any) -> None:
        """Tells its process something that holds from now on, for those that follow it too."""
        self._lasting[type(message)] = message
        if self._process is not None and self._process.is_up:
            self._process.send(message)

    # --- what its process says ---------------------------------------------------------------------------------

    @property
    def _num_announced(self) -> int:
        """Batches of the run."""
        return self._shelf.native.announced(self._number)

    @property
    def _is_run_over(self) -> bool:
        return self._start is None or self._num_announced >= len(self._start.share)

    def _on_end(self, process: WorkerProcess, why: SamplingWorkerError | WorkerDeath) -> None:
        """A failure that was told is final, a death is not."""
        if self._failure is not None or process is not self._process:
            return
        self._process, self._is_told = None, False
        if isinstance(why, SamplingWorkerError):
            self._last = process
            self._fail(why)
        elif (verdict := self._judge()) is not None:
            self._last = process
            self._fail(self._death_error(process.pid, why, self._stage, verdict))
        else:
            self._restarting = asyncio.get_running_loop().create_task(self._restart(process))

    def _judge(self) -> str | None:
        """Why a worker that died is not started again, or None."""
        batch, deaths = self._deaths
        self._deaths = (self._num_announced, deaths + 1 if batch == self._num_announced else 1)
        if not self._is_run_over and self._deaths[1] >= _MAX_DEATHS_OF_A_BATCH:
            return f"this batch ended its worker {self._deaths[1]} times"
        return self._take_restart()

    def _take_restart(self) -> str | None:
        return None if self._budget.take() else f"max_restarts={self._budget.limit} within an hour are used up"

    @property
    def _stage(self) -> str:
        if self._start is None or self._is_run_over:
            return "stage idle"
        return f"stage sample, batch {self._start.share[self._num_announced]} of epoch {self._start.epoch}"

    def _death_error(self, pid: int, death: WorkerDeath, stage: str, verdict: str) -> SamplingWorkerError:
        host = socket.gethostname()
        return SamplingWorkerError(f"{self.name} (pid {pid}) ended: {death.how}; on {host}, {stage}; {verdict}")

    async def _restart(self, dead: WorkerProcess) -> None:
        """Puts another process in place of one that died; the batches that it had announced stay good."""
        try:
            await dead.close()
            await self._launch(dead.origin)
        except SamplingWorkerError as error:
            self._fail(error)
        except Exception as error:  # no memory for a process, say: whoever waits must know
            failure = SamplingWorkerError(f"{self.name} could not be started again: {type(error).__name__}: {error}")
            failure.__cause__ = error
            self._fail(failure)
        if self._process is None or self._start is None or self._is_told or self._is_run_over:
            return
        self._is_told = True
        rest = self._start.share.rest(self._num_announced)
        self._process.send(replace(self._start, share=rest, careful=True))

    def _fail(self, error: SamplingWorkerError) -> None:
        if self._failure is None:
            self._failure = error
            self._shelf.fail(self._number, error)

    async def close(self) -> None:
        """Ends the process: asks, then kills. Idempotent."""
        self._fail(SamplingWorkerError(f"{self.name} was shut down"))
        restarting, self._restarting = self._restarting, None  # its traceback leads here
        if restarting is not None:
            restarting.cancel()
            await asyncio.gather(restarting, return_exceptions=True)
        for process in (self._process, self._last):
            if process is not None:
                await process.close()
        self._process = self._last = None  # with the last reference its shared memory goes
