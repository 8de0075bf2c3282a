"""The GIL while the interpreter ends: a thread that wants it then waits for the end, and aborts nothing."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

CSRC = Path(__file__).resolve().parents[3] / "csrc"
DEADLINE_S = 120.0

# A daemon thread waits in native code, without the GIL, until the interpreter ends: then an object of a module, which
# goes with it, sends what the thread waits for, and looks until the thread sleeps once more. (A thread that looked for
# signals just then wants the GIL without having received anything: then nothing more is to be seen of it.)
PROGRAM = """
import os, sys, threading, time, types
from pathlib import Path
from graphlearn_dist import _C

class AtTheEnd:
    def __init__(self, ring, thread):
        self.ring, self.thread = ring, thread
        self.stat, self.wait = Path(f"/proc/self/task/{thread}/stat"), os.sched_yield
        self.now = time.monotonic

    def __del__(self):
        self.ring.send([b"x"])
        give_up = self.now() + 10
        while self.now() < give_up and (self.ring.pending or ") S " not in self.stat.read_text()):
            self.wait()
        os.write(1, b"the thread sleeps")

def receive():
    threads.append(threading.get_native_id())
    started.set()
    ring.recv()
    os.write(1, b"the thread runs")

ring, threads, started = _C.ShmRing(1 << 16), [], threading.Event()
threading.Thread(target=receive, daemon=True).start()
started.wait()
sys.modules["end"] = types.ModuleType("end")
sys.modules["end"].held = AtTheEnd(ring, threads[0])
sys.exit(3)
"""


def test_a_wait_that_ends_while_the_interpreter_does() -> None:
    ended = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, timeout=DEADLINE_S, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (3, b"the thread sleeps", b"")


def test_the_core_takes_the_gil_in_one_way() -> None:
    """pybind11's own classes end the process there: see ``bindings/gil.h``."""
    others = [path.name for path in CSRC.rglob("*.*") if re.search(r"gil_scoped_(release|acquire)", path.read_text())]
    assert others == []
