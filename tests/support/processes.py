"""Run functions as processes of their own, with a deadline that kills, and see that nothing is left of them."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]

# Where the tests run in the background of a shell, Ctrl-C is ignored, and what they start would inherit that.
# Collections that look at all that was imported would be a third of what it takes to start a process and to end it.
_PROGRAM = """
import gc, importlib, json, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
module, function = sys.argv[1].rsplit(".", 1)
gc.disable()
imported = importlib.import_module(module)
gc.freeze()
gc.enable()
result = getattr(imported, function)(**json.loads(sys.argv[2]))
with open(sys.argv[3], "w") as out:
    json.dump(result, out)
"""


class ProcessFailure(AssertionError):
    """A process failed or did not end in time; the message carries the output of all that matter."""


class TestProcess:
    """One function running in a process group of its own.

    Args:
        function: dotted name of a module-level function, importable from the root of the repository.
        kwargs: its keyword arguments, as JSON can hold them. What it returns has to be JSON too.
        pass_fds: file descriptors that it inherits.
    """

    __test__ = False  # not a test class, whatever its name

    def __init__(self, function: str, kwargs: dict[str, Any], pass_fds: Sequence[int] = ()) -> None:
        self.function = function
        self._dir = tempfile.TemporaryDirectory(prefix="gld-test-")
        self._result = Path(self._dir.name) / "result.json"
        self._output = Path(self._dir.name) / "output.txt"
        with self._output.open("wb") as output:
            self._popen = subprocess.Popen(
                [sys.executable, "-c", _PROGRAM, function, json.dumps(kwargs), str(self._result)],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1"},
                start_new_session=True,
                pass_fds=pass_fds,
            )
        self.pid = self._popen.pid

    def readline(self) -> str:
        """The next line it prints; a process that ended is a failure."""
        if self._popen.stdout is None:
            raise ProcessFailure("no pipe")
        line = self._popen.stdout.readline().decode().strip()
        if not line:
            raise ProcessFailure(f"{self.function} ended before it said anything\n{self.output()}")
        return line

    def tell(self, line: str = "") -> None:
        """Write a line to its standard input."""
        if self._popen.stdin is None:
            raise ProcessFailure("no pipe")
        self._popen.stdin.write(f"{line}\n".encode())
        self._popen.stdin.flush()

    def send_signal(self, number: int) -> None:
        """Send a signal to it."""
        os.kill(self.pid, number)

    def freeze(self) -> None:
        """See ``freeze``."""
        freeze(self.pid)

    def output(self) -> str:
        """What it wrote to standard error."""
        return self._output.read_text(errors="replace")[-6000:] if self._output.exists() else ""

    def wait(self, timeout_s: float) -> Any:
        """What the function returned; ``ProcessFailure`` where it raised, died, or did not end in time."""
        try:
            code = self._popen.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
            raise ProcessFailure(f"{self.function} did not end within {timeout_s:g} s\n{self.output()}") from None
        if code != 0:
            raise ProcessFailure(f"{self.function} ended with {code}\n{self.output()}")
        return json.loads(self._result.read_text())

    def poll(self) -> int | None:
        """Its exit code, or None while it runs."""
        return self._popen.poll()

    def kill(self) -> None:
        """Kill its whole process group. Idempotent."""
        if self._popen.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
        self._popen.wait(10)

    def close(self) -> None:
        """Kill it and remove its files."""
        self.kill()
        for pipe in (self._popen.stdin, self._popen.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()
        self._dir.cleanup()


@contextlib.contextmanager
def start(function: str, *, pass_fds: Sequence[int] = (), **kwargs: Any) -> Iterator[TestProcess]:
    """A process for the time of a ``with`` block; killed at its end."""
    process = TestProcess(function, kwargs, pass_fds)
    try:
        yield process
    finally:
        process.close()


def run_processes(
    functions: Sequence[tuple[str, dict[str, Any]]], timeout_s: float = 60.0, *, pass_fds: Sequence[int] = ()
) -> list[Any]:
    """Run all functions at once, each in its own process; what they returned, in order.

    The first that fails ends all others, and its output is in the failure.

    Args:
        functions: dotted names with keyword arguments.
        timeout_s: for all together.
        pass_fds: file descriptors that all of them inherit.
    """
    deadline = time.monotonic() + timeout_s
    with contextlib.ExitStack() as stack:
        processes = [
            stack.enter_context(start(function, pass_fds=pass_fds, **kwargs)) for function, kwargs in functions
        ]
        while running := [process for process in processes if process.poll() is None]:
            failed = [process for process in processes if process not in running and process.poll() != 0]
            if failed or time.monotonic() > deadline:
                break
            _wait_for_any(running, deadline)
        failed = [process for process in processes if process.poll() not in (None, 0)]
        for process in failed or processes:
            process.wait(max(0.0, deadline - time.monotonic()))
        return [process.wait(1.0) for process in processes]


def _wait_for_any(running: Sequence[TestProcess], deadline: float) -> None:
    """Block until one of these ends, or the deadline; at once where one has ended since the caller looked."""
    descriptors = []
    try:
        for process in running:
            if process.poll() is not None:
                return
            descriptors.append(os.pidfd_open(process.pid))
        select.select(descriptors, [], [], max(0.0, deadline - time.monotonic()))
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def freeze(pid: int) -> None:
    """Stops a process with SIGSTOP; when this returns, none of its threads runs any more.

    The signal alone says nothing about when: a thread that runs on another core may finish an answer first.
    """
    os.kill(pid, signal.SIGSTOP)
    deadline = time.monotonic() + 10.0
    while any(_thread_state(path) not in "TZX" for path in Path(f"/proc/{pid}/task").glob("*/stat")):
        if time.monotonic() > deadline:
            raise ProcessFailure(f"process {pid} did not stop within 10 s of SIGSTOP")
        os.sched_yield()


def _thread_state(stat: Path) -> str:
    """The state letter of a thread (see proc(5)); "X" where it has just ended."""
    try:
        return stat.read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "X"


def assert_nothing_left(*pids: int) -> None:
    """No process of these (or of their groups) runs, and none of our files are in /dev/shm."""
    alive = [pid for pid in pids if _group_alive(pid)]
    if alive:
        raise AssertionError(f"still running: {alive}")
    left = [path.name for path in Path("/dev/shm").glob("*gld*")]
    if left:
        raise AssertionError(f"left in /dev/shm: {left}")


def _group_alive(pid: int) -> bool:
    try:
        os.killpg(pid, 0)
    except ProcessLookupError:
        return False
    return True
