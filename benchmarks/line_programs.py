"""Processes that are told what to do: a line of JSON on their standard input, a line of JSON as the answer."""

from __future__ import annotations

import json
import selectors
import subprocess
from collections.abc import Sequence
from types import TracebackType
from typing import Any


class WorkerLost(Exception):
    """A process ended or did not answer in time."""


class LineProgram:
    """Such a process. Use as a context manager: it ends with the block, whatever happened.

    Args:
        label: what errors call it.
        command: its command line.
        options: of ``subprocess.Popen``.
    """

    def __init__(self, label: str, command: Sequence[str], **options: Any) -> None:
        self.label = label
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, **options)

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    def ask(self, timeout_s: float, **command: Any) -> dict[str, Any]:
        """Sends a command and waits for its answer.

        Raises:
            WorkerLost: the process ended, or did not answer within ``timeout_s``.
        """
        self.tell(**command)
        return self.answer(timeout_s, command.get("op", ""))

    def tell(self, **command: Any) -> None:
        """Sends a command; ``WorkerLost`` where nobody reads it."""
        process = self._process
        assert process.stdin is not None
        try:
            process.stdin.write(json.dumps(command) + "\n")
            process.stdin.flush()
        except BrokenPipeError as error:
            raise WorkerLost(f"{self.label}: its process ended with {process.wait(10)}") from error

    def answer(self, timeout_s: float, what: str = "") -> dict[str, Any]:
        """The next answer; ``WorkerLost`` as of ``ask``."""
        process = self._process
        assert process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            if not selector.select(timeout_s):
                process.kill()
                raise WorkerLost(f"{self.label}: no answer to {what} in {timeout_s:.0f} s")
        line = process.stdout.readline()
        if not line:
            raise WorkerLost(f"{self.label}: its process ended with {process.wait(10)}")
        reply: dict[str, Any] = json.loads(line)
        return reply

    def __enter__(self) -> LineProgram:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.communicate()
