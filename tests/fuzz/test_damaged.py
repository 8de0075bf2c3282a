"""Some dozens of damaged partition directories; ``make fuzz-files`` uses thousands, with AddressSanitizer."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.fuzz import damaged_run
from tests.fuzz.damage import META, damaged

ROOT = Path(__file__).parents[2]
CASES = 60


def test_damaged_directories() -> None:
    """In a process of its own, which forks: each case is refused as what it is, or goes unnoticed."""
    command = [sys.executable, "-m", "tests.fuzz.damaged_run", "--cases", str(CASES), "--seed", "7"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=1200)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert f"{CASES} cases, " in ended.stdout
    assert " 0 refused" not in ended.stdout


def test_a_case_is_a_function_of_its_number() -> None:
    array = b"\x93NUMPY\x01\x00\x06\x00{...}\n" + bytes(80)
    files = {META: b'{"files": []}', **{f"part{i}/graph/indices.npy": array for i in range(5)}}
    for seed in range(200):
        assert damaged(files, random.Random(seed)) == damaged(files, random.Random(seed))


def test_cases_that_end_their_process_are_told(monkeypatch: Any) -> None:
    """The others of their fork, too; so are those that end in another error."""
    monkeypatch.setattr(damaged_run, "run_cases", _run_cases)
    monkeypatch.setattr(damaged_run, "_name", lambda directories, seed, number: f"case {number}")
    tally = damaged_run.run(0, range(10), limit_memory=False, directories={"x": {}})
    assert (tally.cases, tally.refused) == (10, 7)
    first, second, third = (failure.splitlines() for failure in tally.failures)
    assert first == ["case 3", "ended its process with -11"]
    assert second == ["case 5", "KeyError"]
    assert third == ["case 8", "ended its process with 4"]


def _run_cases(directories: Any, seed: int, numbers: range, output: Any, *, limit_memory: bool) -> None:
    for number in numbers:
        print("case", number, file=output, flush=True)
        if number == 3:
            signal.signal(signal.SIGSEGV, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGSEGV)
        if number == 8:
            os._exit(4)
        print(*(("failed", "KeyError") if number == 5 else ("done", 1)), file=output, flush=True)
