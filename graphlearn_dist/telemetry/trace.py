"""A timeline of what a process did, written as it goes, to be put together with those of the others of its job.

Where ``GLD_TRACE`` names a folder, each process of a job writes a file of spans there. ``telemetry.timeline`` makes one
timeline of them. Times are those of the host's monotonic clock, which its processes share.
"""

from __future__ import annotations

import atexit
import contextvars
import json
import logging
import os
import threading
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from time import perf_counter_ns, time_ns
from typing import TypeAlias

from ..errors import StorageError

PART_SUFFIX = ".part.jsonl"
# What a batch is called in all processes that have a part in it: the loader's key, epoch and index.
BatchName: TypeAlias = tuple[int, int, int]
# Two things that follow each other, in one line: what a worker did for a batch, and what a loop did.
MADE, LOOP = "made", "loop"
_FLUSH_SPANS = 512
_FLUSH_NS = 1_000_000_000
_log = logging.getLogger(__name__)
_batches: contextvars.ContextVar[tuple[BatchName, ...]] = contextvars.ContextVar("traced_batches", default=())
# Name, track, beginning, the moment between two things or 0, end, batch.
_Line: TypeAlias = tuple[str, str, int, int, int, BatchName | None]


@lru_cache(256)
def _quoted(text: str) -> str:
    return json.dumps(text)


def _written(lines: Iterable[_Line]) -> str:
    """Lines of JSON, by hand, in a third of the time that a general writer takes: there are some for each batch."""
    written = []
    for name, track, begun, middle, ended, batch in lines:
        what = "null" if batch is None else f'"{batch[0]:x}.{batch[1]}.{batch[2]}"'
        written.append(f"[{_quoted(name)}, {_quoted(track)}, {begun}, {middle}, {ended}, {what}]\n")
    return "".join(written)


class Tracer:
    """Writes the spans of this process; from any thread.

    Args:
        folder: where to; it is made.
        process: what the process is called.
        host: tells machines apart, see ``boot_id``.
        indices: first and last index of the batches to write of; None for all.

    Raises:
        StorageError: it cannot be written there.
    """

    def __init__(self, folder: str | Path, process: str, host: str, indices: tuple[int, int] | None = None) -> None:
        self._indices = indices
        self._is_broken = False
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._lines: list[_Line] = []
        self._flushed_ns = perf_counter_ns()
        path = Path(folder) / f"{process.replace('/', '_')}-{self._pid}{PART_SUFFIX}"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = open(path, "a", encoding="utf-8")  # noqa: SIM115 as long as the process
        except OSError as error:
            raise StorageError(f"trace: cannot write {path}: {error.strerror}") from error
        now = perf_counter_ns()
        first = {"process": process, "pid": self._pid, "host": host, "wall_ns": time_ns() - now}
        self._write(f"{json.dumps(first)}\n")
        atexit.register(self.close)

    def _add(self, line: _Line) -> None:
        # A list takes a line without a lock. They are written out some at a time: the trace of a process that is killed
        # lacks no more than its last second.
        lines = self._lines
        lines.append(line)
        if len(lines) >= _FLUSH_SPANS or line[4] - self._flushed_ns >= _FLUSH_NS:
            self._flushed_ns = line[4]
            self._flush()

    def _flush(self) -> None:
        with self._lock:
            count = len(self._lines)
            self._write(_written(self._lines[:count]))
            del self._lines[:count]  # what other threads have appended since then stays

    def _write(self, text: str) -> None:
        if os.getpid() != self._pid or self._is_broken:
            return
        try:
            self._file.write(text)
            self._file.flush()
        except OSError as error:  # a full disk, say: batches are worth more than their trace
            self._is_broken = True
            _log.warning("trace: %s cannot be written any more, and ends here: %s", self._file.name, error.strerror)

    def span(self, name: str, track: str, begun_ns: int, batch: BatchName | None, *, ended_ns: int = 0) -> None:
        """Something ended now, unless it says when, that began then (``perf_counter_ns``), for a batch or for none."""
        if batch is None or self._is_wanted(batch):
            self._add((name, track, begun_ns, 0, ended_ns or perf_counter_ns(), batch))

    def _is_wanted(self, batch: BatchName) -> bool:
        return self._indices is None or self._indices[0] <= batch[2] <= self._indices[1]

    def made(self, begun_ns: int, sampled_ns: int, batch: BatchName) -> None:
        """A batch that was begun then had its nodes at that moment, and has its rows now."""
        if self._is_wanted(batch):
            self._add((MADE, "batches", begun_ns, sampled_ns, perf_counter_ns(), batch))

    def loop(self, given_ns: int, asked_ns: int, loader: str, batch: BatchName) -> None:
        """A loop gets a batch now that it asked for then; the one before it had been given at ``given_ns``, or 0."""
        if self._is_wanted(batch):
            self._add((LOOP, loader, given_ns or asked_ns, asked_ns, perf_counter_ns(), batch))

    def clock(self, offset_ns: int) -> None:
        """How much the monotonic clock of the registry's host is ahead of this host's."""
        with self._lock:
            self._write(f"{json.dumps({'offset_ns': offset_ns})}\n")

    def close(self) -> None:
        """Writes what is left. Idempotent."""
        self._flush()


_tracer: Tracer | None = None


def start_tracing(setting: tuple[str, tuple[int, int] | None] | None, process: str, host: str) -> None:
    """Begins to write the spans of this process, once; ``setting`` as ``config.trace_setting`` gives it."""
    global _tracer
    if setting is not None and (_tracer is None or _tracer._pid != os.getpid()):
        folder, indices = setting
        _tracer = Tracer(folder, process, host, indices)


def stop_tracing() -> None:
    """Writes what is left, in a process that ends without Python's own farewell."""
    if _tracer is not None:
        _tracer.close()


def clear_parts(folder: str | Path) -> None:
    """Removes what an earlier job has written into a folder."""
    for path in Path(folder).glob(f"*{PART_SUFFIX}"):
        path.unlink(missing_ok=True)


def tracer() -> Tracer | None:
    """This process's; None where nothing is to be written."""
    return _tracer


def set_batches(names: tuple[BatchName, ...]) -> None:
    """The running task or thread works at these batches from now on."""
    _batches.set(names)


def current_batches() -> tuple[BatchName, ...]:
    """The batches that the running task or thread works at."""
    return _batches.get()


def trace_stages(begun_ns: int, sampled_ns: int) -> None:
    """The batches at which this task or thread works have their nodes since then, and their rows now."""
    if _tracer is not None:
        for batch in _batches.get():
            _tracer.made(begun_ns, sampled_ns, batch)
