"""Stand-in servers and trainers, and a launcher that cannot outlive its test."""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
import textwrap
import uuid
from pathlib import Path

from graphlearn_dist.cli import main

DEADLINE_S = 60.0  # only ever reached by a hang

SERVER = """
import os, socket, sys
rank, fd = os.environ["GLD_RANK"], int(os.environ["GLD_MASTER_FD"])
print("serving", rank)
if fd >= 0:
    listener = socket.socket(fileno=fd)
else:
    listener = socket.create_server(("127.0.0.1", 0))
if rank == "0":
    if fd < 0:
        listener = socket.create_server((os.environ["GLD_MASTER_ADDR"], int(os.environ["GLD_MASTER_PORT"])))
    for _ in range(int(os.environ["GLD_NUM_CLIENTS"])):  # ends when every client has come
        listener.settimeout(30)
        listener.accept()[0].close()
"""

TRAINER = """
import os, socket, sys
sys.argv.pop(0)
address = os.environ["GLD_MASTER_ADDR"], int(os.environ["GLD_MASTER_PORT"])
socket.create_connection(address, 30).close()
print("arguments", sys.argv)
print("ranks", *(os.environ[k] for k in ("GLD_ROLE", "GLD_RANK", "RANK", "LOCAL_RANK", "WORLD_SIZE")))
"""

# Says so when it runs, has a child in a session of its own, and ends at a signal only.
LINGER = """
import signal, subprocess, sys, os
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(120)"], start_new_session=True)
if "--stubborn" in sys.argv:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("lingering", flush=True)
signal.pause()
while True:
    signal.pause()
"""


class Job:
    """A launcher in a process of its own, whose processes can be found by a mark in their environment."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.mark = f"GLD_TEST_MARK={uuid.uuid4().hex}"
        self._started: list[subprocess.Popen[str]] = []

    def script(self, name: str, code: str) -> str:
        path = self.directory / name
        path.write_text(textwrap.dedent(code))
        return str(path)

    def start(self, *args: str) -> subprocess.Popen[str]:
        name, value = self.mark.split("=")
        process = subprocess.Popen(
            # A background job of a shell starts with SIGINT ignored, and the launcher heeds that.
            ["env", "--default-signal", sys.executable, "-m", "graphlearn_dist", "launch", *args],
            env={**os.environ, name: value},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self.directory,
            start_new_session=True,
        )
        self._started.append(process)
        return process

    def run(self, *args: str) -> subprocess.CompletedProcess[str]:
        """Runs the command line within this process, which saves the start of an interpreter."""
        out, err = io.StringIO(), io.StringIO()
        before = Path.cwd()
        os.chdir(self.directory)
        try:
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                code = main(["launch", "--env", self.mark, *args])
        finally:
            os.chdir(before)
        return subprocess.CompletedProcess(args, code, out.getvalue(), err.getvalue())

    def alive(self) -> list[int]:
        """Processes of this job, the launcher included; zombies do not count."""
        found = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdecimal():
                continue
            try:
                if self.mark.encode() in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
            except (FileNotFoundError, ProcessLookupError, PermissionError):
                continue  # it ended while we looked, or is another user's
        return found

    def kill_all(self) -> None:
        for process in self._started:
            process.kill()
            process.wait(DEADLINE_S)
            for stream in (process.stdout, process.stderr):
                if stream is not None:
                    stream.close()
        for pid in self.alive():
            os.kill(pid, 9)
