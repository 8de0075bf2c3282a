"""What a job writes: to the launcher's output, and to log files."""

from __future__ import annotations

import contextlib
import re
import threading
import time
from collections import deque
from pathlib import Path
from typing import IO

from ...errors import InvalidArgumentError
from .plan import ProcessSpec

_TAIL_LINES = 20
_LAUNCHER = "launcher"
_LOG = re.compile(r"(launcher|(server|trainer)-\d+)\.log(\.(?P<number>\d+))?")


class JobOutput:
    """Prefixes the lines of all processes, writes them out, and remembers the last ones of each. Thread-safe.

    Args:
        log_dir: directory for a log of each process and one of the launcher; None for none. Logs that an earlier job
            has left there get a number.
        out: where all lines go.

    Raises:
        InvalidArgumentError: the directory cannot be made.
    """

    def __init__(self, log_dir: str | None, out: IO[str]) -> None:
        self._out = out
        self._lock = threading.Lock()
        self._tails: dict[str, deque[str]] = {}
        self._logs: dict[str, IO[bytes]] = {}
        self._log_dir = Path(log_dir) if log_dir is not None else None
        if self._log_dir is not None:
            try:
                self._log_dir.mkdir(parents=True, exist_ok=True)
                kept = _put_away(self._log_dir)
                self._logs[_LAUNCHER] = self._open_log(_LAUNCHER)
            except OSError as error:
                raise InvalidArgumentError(f"log_dir: cannot create {log_dir}: {error.strerror}") from error
            if kept:
                self.note(f"logs of an earlier job in {log_dir} are *.log.{kept} now")

    def _open_log(self, name: str) -> IO[bytes]:
        return Path(str(self._log_dir), f"{name}.log").open("wb", buffering=0)

    def note(self, text: str) -> None:
        """A line of the launcher itself."""
        with self._lock:
            self._write_log(_LAUNCHER, f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}")
            self._print(f"[launcher] {text}")

    def open(self, spec: ProcessSpec) -> None:
        """A process is about to be started for the first time."""
        self._tails[spec.name] = deque(maxlen=_TAIL_LINES)
        if self._log_dir is not None:
            self._logs[spec.name] = self._open_log(f"{spec.role}-{spec.rank}")

    def write(self, spec: ProcessSpec, line: str) -> None:
        """A line of a process."""
        with self._lock:
            self._tails[spec.name].append(line)
            self._write_log(spec.name, line)
            self._print(f"[{spec.name}] {line}")

    def _print(self, text: str) -> None:
        """A reader that went away, a full disk and strange characters must not end a job; it runs on, and logs."""
        if encoding := getattr(self._out, "encoding", None):
            text = text.encode(encoding, "backslashreplace").decode(encoding)
        with contextlib.suppress(OSError):
            print(text, file=self._out, flush=True)

    def _write_log(self, name: str, line: str) -> None:
        """A log that cannot be written (a full disk) is given up, and that is said: it must not end a job."""
        log = self._logs.get(name)
        if log is None:
            return
        try:
            log.write(f"{line}\n".encode())
        except OSError as error:
            del self._logs[name]
            log.close()
            why = f"its log cannot be written any more: {error.strerror}"
            self._print(f"[launcher] {name}: {why}; it goes on without")

    def tail(self, spec: ProcessSpec) -> list[str]:
        """The last lines of a process."""
        with self._lock:
            return list(self._tails[spec.name])

    def close(self) -> None:
        """Closes the logs."""
        with self._lock:
            for log in self._logs.values():
                log.close()
            self._logs.clear()


def _put_away(directory: Path) -> int:
    """Gives logs that are there a number that none has yet, all the same one; returns it, or 0 where there are none."""
    found = [(path, match) for path in directory.iterdir() if (match := _LOG.fullmatch(path.name))]
    # A link to a device or a pipe was put there to be written to.
    present = [path for path, match in found if match["number"] is None and path.is_file() and not path.is_symlink()]
    if not present:
        return 0
    number = 1 + max(int(match["number"] or 0) for _, match in found)
    for path in present:
        path.rename(f"{path}.{number}")
    return number
