"""The object of an actor that runs one process of a job on its machine. Imports no torch: it starts in a blink."""

from __future__ import annotations

import contextlib
import os
import queue
import socket
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path

from ...utils.system.ports import free_port
from .backend import LocalBackend, RunningProcess
from .plan import ProcessSpec

_START_TIMEOUT_S = 60.0
_MAX_LINES = 10_000  # of a process's output that wait for the launcher
# An engine's own variables, and the number of threads that Ray chooses for its actors, are not the process's.
_OWN_VARIABLES = ("RAY_", "OMP_NUM_THREADS")


@dataclass(frozen=True)
class MachineReport:
    """What a machine has for a job.

    Attributes:
        address: as others reach it.
        free_port: a port of it that was free just now.
        partitions: ranks of the servers whose files are here.
    """

    address: str
    free_port: int
    partitions: frozenset[int]


class _Events:
    """Queues what a process does; its end is its exit code. One that writes faster than is read has to wait."""

    def __init__(self) -> None:
        self._queue: queue.Queue[str | int] = queue.Queue(_MAX_LINES)

    def on_line(self, spec: ProcessSpec, line: str) -> None:
        self._queue.put(line)

    def on_sign(self, spec: ProcessSpec, sign: str) -> None:
        pass  # Ray says how its actors are

    def on_exit(self, spec: ProcessSpec, code: int) -> None:
        self._queue.put(code)

    def batches(self) -> Iterator[list[str | int]]:
        """All that has come since the last batch, at least one; the exit code ends it."""
        while True:
            batch = [self._queue.get()]
            with contextlib.suppress(queue.Empty):
                while True:
                    batch.append(self._queue.get_nowait())
            yield batch
            if isinstance(batch[-1], int):
                return


class ProcessHost:
    """Runs one process; what is still left of it ends with the actor.

    Args:
        directory: where it runs.
    """

    def __init__(self, directory: str) -> None:
        os.chdir(directory)
        self._process: Future[RunningProcess] = Future()

    def look(self, address: str, data: str | None, num_servers: int) -> MachineReport:
        """What is here; without ``data`` every server may run here."""
        ranks = range(num_servers)
        found = ranks if data is None else [rank for rank in ranks if Path(data, f"part{rank}").is_dir()]
        return MachineReport(address, free_port(""), frozenset(found))

    def run(self, spec: ProcessSpec, environ: Mapping[str, str], token: bytes) -> Iterator[Sequence[str | int]]:
        """Starts the process; gives its lines as they come, some at a time, and at last its exit code.

        Args:
            spec: the process.
            environ: variables of the launcher, below those of ``spec``.
            token: the job's.

        Raises:
            LaunchError: it cannot be started.
        """
        events = _Events()
        for name in list(os.environ):
            if name.startswith(_OWN_VARIABLES):
                del os.environ[name]
        own = replace(spec, env={**environ, **spec.env}, host=socket.gethostname())
        try:
            # In this thread, which stays until the process has ended: the kernel ends it with the thread.
            self._process.set_result(LocalBackend(token).start(own, events))
        except BaseException as error:
            self._process.set_exception(error)
            raise
        for batch in events.batches():
            for line in batch:
                if isinstance(line, str):
                    print(line, flush=True)  # into the actor's own log
            yield batch

    def stop(self) -> None:
        """Asks the process to end; it is killed ``spec.stop_s`` later."""
        self._process.result(_START_TIMEOUT_S).stop()

    def kill(self) -> None:
        """Ends the process and all it started."""
        self._process.result(_START_TIMEOUT_S).kill()

    def tell(self, line: str) -> None:
        """Writes a line to the process's pipe of messages."""
        self._process.result(_START_TIMEOUT_S).tell(line)
