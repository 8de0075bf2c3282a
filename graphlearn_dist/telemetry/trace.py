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
from functools import lru_cache
from pathlib import Path
from time import perf_counter_ns, time_ns

from ..errors import StorageError

PART_SUFFIX = ".part.jsonl"
_FLUSH_SPANS = 512
_FLUSH_NS = 1_000_000_000
_log = logging.getLogger(__name__)
_batch: contextvars.ContextVar[str | None] = contextvars.ContextVar("traced_batch", default=None)


@lru_cache(256)
def _quoted(text: str) -> str:
    return json.dumps(text)


def batch_name(key: int, epoch: int, index: int) -> str:
    """What a batch is called in all processes that have a part in it; ``key`` is the loader's."""
    return f"{key:x}.{epoch}.{index}"


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
        self._lines: list[str] = []
        self._flushed_ns = perf_counter_ns()
        path = Path(folder) / f"{process.replace('/', '_')}-{self._pid}{PART_SUFFIX}"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = open(path, "a", encoding="utf-8")  # noqa: SIM115 as long as the process
        except OSError as error:
            raise StorageError(f"trace: cannot write {path}: {error.strerror}") from error
        now = perf_counter_ns()
        first = {"process": process, "pid": self._pid, "host": host, "wall_ns": time_ns() - now}
        self._write(json.dumps(first), now)
        atexit.register(self.close)

    def _write(self, line: str, now_ns: int) -> None:
        with self._lock:
            self._lines.append(line)
            if len(self._lines) >= _FLUSH_SPANS or now_ns - self._flushed_ns >= _FLUSH_NS:
                self._flushed_ns = now_ns
                self._flush()

    def _flush(self) -> None:
        lines, self._lines = self._lines, []
        if os.getpid() != self._pid or self._is_broken:
            return
        try:
            self._file.write("".join(f"{line}\n" for line in lines))
            self._file.flush()
        except OSError as error:  # a full disk, say: batches are worth more than their trace
            self._is_broken = True
            _log.warning("trace: %s cannot be written any more, and ends here: %s", self._file.name, error.strerror)

    def span(self, name: str, track: str, begun_ns: int, batch: str | None, *, ended_ns: int | None = None) -> None:
        """Something ended now, unless it says when, that began then (``perf_counter_ns``), for a batch or for none."""
        if batch is not None and not self._is_wanted(batch):
            return
        ended = perf_counter_ns() if ended_ns is None else ended_ns
        # Written by hand, in a third of the time that a general writer of JSON takes: there are some for each batch.
        head = f'{{"name": {_quoted(name)}, "track": {_quoted(track)}, "at": {begun_ns}, "ns": {ended - begun_ns}, '
        self._write(head + ('"batch": null}' if batch is None else f'"batch": "{batch}"}}'), ended)

    def _is_wanted(self, batch: str) -> bool:
        return self._indices is None or self._indices[0] <= int(batch.rpartition(".")[2]) <= self._indices[1]

    def loop(self, given_ns: int, asked_ns: int, loader: str, batch: str) -> None:
        """A loop gets a batch now that it asked for then; the one before it had been given at ``given_ns``, or 0."""
        if given_ns:
            self.span("compute", loader, given_ns, batch, ended_ns=asked_ns)
        self.span("wait", loader, asked_ns, batch)

    def clock(self, offset_ns: int) -> None:
        """How much the monotonic clock of the registry's host is ahead of this host's."""
        self._write(json.dumps({"offset_ns": offset_ns}), perf_counter_ns())

    def close(self) -> None:
        """Writes what is left. Idempotent."""
        with self._lock:
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


def set_batch(name: str) -> None:
    """The running task or thread works at a batch from now on."""
    _batch.set(name)


def current_batch() -> str | None:
    """The batch that the running task or thread works at."""
    return _batch.get()


def trace_stages(begun_ns: int, sampled_ns: int) -> None:
    """The batch at which this task or thread works has its nodes since then, and its rows now."""
    if _tracer is not None:
        batch = _batch.get()
        _tracer.span("make", "batches", begun_ns, batch)
        _tracer.span("sample", "batches", begun_ns, batch, ended_ns=sampled_ns)
        _tracer.span("rows", "batches", sampled_ns, batch)
