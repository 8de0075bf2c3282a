"""Run functions as processes of their own, with a deadline that kills, and see that nothing is left of them."""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.support.warm import WarmInterpreter

ROOT = Path(__file__).resolve().parents[2]

# Where the tests run in the background of a shell, Ctrl-C is ignored, and what they start would inherit that.
_PROGRAM = """
import importlib, json, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
module, function = sys.argv[1].rsplit(".", 1)
result = getattr(importlib.import_module(module), function)(**json.loads(sys.argv[2]))
with open(sys.argv[3], "w") as out:
    json.dump(result, out)
"""


@functools.cache
def warm_interpreter() -> WarmInterpreter:
    """What processes of these tests are forks of; started when the first is needed."""
    interpreter = WarmInterpreter()
    atexit.register(interpreter.close)
    return interpreter


class ProcessFailure(AssertionError):
    """A process failed or did not end in time; the message carries the output of all that matter."""


class TestProcess:
    """One function running in a process group of its own.

    Args:
        function: dotted name of a module-level function, importable from the root of the repository.
        kwargs: its keyword arguments, as JSON can hold them. What it returns has to be JSON too.
        pass_fds: file descriptors that it inherits.
        finalizes: whether its interpreter ends as that of any program, which frees all that it has: that takes longer
            than most tests, and is for those that are about it.
        prefix: a command line that runs another, which then starts the process: on another host, say.
    """

    __test__ = False  # not a test class, whatever its name

    def __init__(
        self,
        function: str,
        kwargs: dict[str, Any],
        pass_fds: Sequence[int] = (),
        *,
        finalizes: bool = False,
        prefix: Sequence[str] = (),
    ) -> None:
        self.function = function
        self._dir = tempfile.TemporaryDirectory(prefix="gld-test-")
        self._result = Path(self._dir.name) / "result.json"
        self._output = Path(self._dir.name) / "output.txt"
        argv = ["-c", _PROGRAM, function, json.dumps(kwargs), str(self._result)]
        env = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1"}
        self._popen: Any
        with self._output.open("wb") as output:
            if prefix:
                self._popen = subprocess.Popen(
                    [*prefix, sys.executable, *argv],
                    env=env,
                    cwd=ROOT,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=output,
                    start_new_session=True,
                )
            else:
                self._popen = warm_interpreter().popen(
                    argv,
                    env=env,
                    directory=ROOT,
                    stdin=subprocess.PIPE,
                    stderr=output.fileno(),
                    pass_fds=pass_fds,
                    finalizes=finalizes,
                )
        self.pid = self._popen.pid

    def readline(self) -> str:
        """The next line it prints; a process that ended is a failure."""
        line = self._popen.stdout.readline().decode().strip()
        if not line:
            raise ProcessFailure(f"{self.function} ended before it said anything\n{self.output()}")
        return line

    def tell(self, line: str = "") -> None:
        """Write a line to its standard input."""
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

    def fileno(self) -> int:
        """A descriptor that can be read when it has ended, until ``wait`` or ``poll`` has said so."""
        return self._popen.fileno()

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
            with contextlib.suppress(BrokenPipeError):
                pipe.close()
        self._dir.cleanup()


@contextlib.contextmanager
def start(
    function: str,
    *,
    pass_fds: Sequence[int] = (),
    finalizes: bool = False,
    prefix: Sequence[str] = (),
    **kwargs: Any,
) -> Iterator[TestProcess]:
    """A process for the time of a ``with`` block; killed at its end. Options are those of ``TestProcess``."""
    process = TestProcess(function, kwargs, pass_fds, finalizes=finalizes, prefix=prefix)
    try:
        yield process
    finally:
        process.close()


def run_program(
    *argv: str, directory: Path, timeout_s: float, environ: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Runs a command line of this interpreter (``program.py ...``, ``-m module ...``) as ``subprocess.run`` does.

    A fork of an interpreter that has made its imports. Killed with all that it started where it does not end in time.
    """
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        process = warm_interpreter().popen(
            argv,
            env={**(os.environ if environ is None else environ)},
            directory=directory,
            stdout=out.fileno(),
            stderr=err.fileno(),
        )
        try:
            code = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            code = process.wait(10.0)
        out.seek(0)
        err.seek(0)
        return subprocess.CompletedProcess(argv, code, out.read(), err.read())


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
            select.select(running, [], [], max(0.0, deadline - time.monotonic()))
        failed = [process for process in processes if process.poll() not in (None, 0)]
        for process in failed or processes:
            process.wait(max(0.0, deadline - time.monotonic()))
        return [process.wait(1.0) for process in processes]


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
