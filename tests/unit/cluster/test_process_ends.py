"""That the end of a process is told, whatever becomes of what it writes and of what is written to it."""

from __future__ import annotations

import errno
import io
import queue
import signal
import subprocess
import threading
from typing import Any

import pytest

from graphlearn_dist.cluster.actors.wire import Answer, dump_answer, load_answer
from graphlearn_dist.cluster.jobs.backend import Subprocess
from graphlearn_dist.cluster.jobs.job_output import JobOutput
from graphlearn_dist.cluster.jobs.plan import ProcessSpec

DEADLINE_S = 60.0  # only ever reached by a hang
SPEC = ProcessSpec("trainer", 0, "here", ("command",), {})


class Listener:
    """What a process said, and its exit code."""

    def __init__(self, error: Exception | None = None) -> None:
        self.said: queue.SimpleQueue[str | int] = queue.SimpleQueue()
        self._error = error

    def on_line(self, spec: ProcessSpec, line: str) -> None:
        self.said.put(line)
        if self._error is not None:
            raise self._error

    def on_exit(self, spec: ProcessSpec, code: int) -> None:
        self.said.put(code)


@pytest.fixture
def failures(monkeypatch: pytest.MonkeyPatch) -> list[BaseException | None]:
    """What ended threads."""
    found: list[BaseException | None] = []
    monkeypatch.setattr(threading, "excepthook", lambda args: found.append(args.exc_value))
    return found


def run(script: str, listener: Listener) -> Subprocess:
    popen = subprocess.Popen(["sh", "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    return Subprocess(SPEC, popen, listener)


def test_a_process_that_reads_no_news(failures: list[BaseException | None]) -> None:
    listener = Listener()
    process = run("exec <&-; echo closed; exec sleep 300", listener)
    assert listener.said.get(timeout=DEADLINE_S) == "closed"
    process.tell("news")
    process.stop()
    assert listener.said.get(timeout=DEADLINE_S) == 128 + signal.SIGTERM
    process._thread.join(DEADLINE_S)
    process.tell("more")
    assert failures == []


def test_a_listener_that_fails(failures: list[BaseException | None]) -> None:
    """The failure is seen, and the end is told all the same."""
    error = ValueError("a defect")
    listener = Listener(error)
    process = run("echo line; exec true", listener)
    assert [listener.said.get(timeout=DEADLINE_S) for _ in range(2)] == ["line", 0]
    process._thread.join(DEADLINE_S)
    assert failures == [error]


class FullDisk(io.StringIO):
    def write(self, text: str) -> int:
        raise OSError(errno.ENOSPC, "no space left")


def test_output_that_cannot_be_written() -> None:
    """A full disk ends no job, nor do characters that the terminal does not know."""
    output = JobOutput(None, FullDisk())
    output.open(SPEC)
    output.write(SPEC, "line")
    output.note("note")
    assert output.tail(SPEC) == ["line"]
    raw = io.BytesIO()
    output = JobOutput(None, io.TextIOWrapper(raw, encoding="ascii"))
    output.open(SPEC)
    output.write(SPEC, "caf\u00e9")
    assert raw.getvalue() == b"[trainer 0] caf\\xe9\n"


class Strange:
    """What can be pickled, and not be read again."""

    def __reduce__(self) -> Any:
        return int, ("x",)


def test_an_answer_that_cannot_be_read() -> None:
    answer = load_answer(dump_answer(Answer(7, Strange())))
    assert isinstance(answer, Answer)
    assert (answer.number, answer.more) == (7, False)
    assert isinstance(answer.error, ValueError)
    assert "invalid literal" in answer.value
    assert load_answer(dump_answer(Answer(8, "value", more=True))) == Answer(8, "value", more=True)
