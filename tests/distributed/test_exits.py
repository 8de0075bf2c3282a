"""Programs that end, and programs that fork: exit codes are the program's own, and a fork leaves its parent alone."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.exit_programs import ENDINGS, MODES, make_partition
from tests.support.jobs import running_servers
from tests.support.processes import ROOT

DEADLINE_S = 120.0  # only ever reached by a hang
# What these print is the program's own.
TALKATIVE = {"error", "interrupt", "notebook"}


class Programs:
    """Runs functions of ``tests.support.exit_programs``, each as a program of its own."""

    def __init__(self, directory: Path, port: int) -> None:
        self.arguments = {"directory": str(directory), "port": port}
        self._popen = subprocess.Popen(
            [sys.executable, "-m", "tests.support.exit_programs"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,  # what is read ahead could not be waited for
            env=environ(),
        )

    def run(self, function: str, errors: Path, **arguments: Any) -> tuple[int, str]:
        """How it ended, as ``subprocess`` says it, and what it wrote to its standard error."""
        assert self._popen.stdin is not None
        assert self._popen.stdout is not None
        request = function, {**arguments, **self.arguments}, str(errors), DEADLINE_S
        self._popen.stdin.write(json.dumps(request).encode() + b"\n")
        self._popen.stdin.flush()
        while True:
            assert select.select([self._popen.stdout], [], [], 2 * DEADLINE_S)[0], "no answer"
            line = self._popen.stdout.readline().decode()
            if line.startswith("ended "):
                return int(line.split()[1]), errors.read_text()
            assert line, "the process that forks programs has ended"

    def close(self) -> None:
        """Ends what runs them."""
        self._popen.kill()
        self._popen.communicate()


def environ() -> dict[str, str]:
    """One thread, until the fork: numpy's and torch's own would not come along."""
    return {**os.environ, "PYTHONPATH": str(ROOT), "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_partition(tmp_path_factory.mktemp("whole"))


@pytest.fixture(scope="module")
def programs(directory: Path) -> Iterator[Programs]:
    with running_servers(directory) as job:
        running = Programs(directory, job.port)
        yield running
        running.close()


# A loader with threads in this process, and one with sockets besides, meet every way to end; the others, few.
FEW = ("break", "daemon", "dropped", "interrupt")
EXITS = [
    pytest.param(mode, ending, marks=() if mode in ("collocated", "remote") or ending in FEW else pytest.mark.thorough)
    for mode in MODES
    for ending in ENDINGS
]


@pytest.mark.parametrize(("mode", "ending"), EXITS)
def test_the_exit_code_is_the_programs_own(programs: Programs, tmp_path: Path, mode: str, ending: str) -> None:
    code, errors = programs.run("leave", tmp_path / "errors", mode=mode, ending=ending)
    assert code == ENDINGS[ending][1], errors
    if ending not in TALKATIVE:
        assert errors == ""


@pytest.mark.parametrize(
    ("mode", "ending"), [("collocated", "break"), pytest.param("mp", "daemon", marks=pytest.mark.thorough)]
)
def test_a_program_of_an_interpreter_started_for_it(directory: Path, mode: str, ending: str) -> None:
    """The same of a program that was not forked."""
    program = (
        "from tests.support.exit_programs import ENDINGS, make_loader; "
        f"ENDINGS[{ending!r}][0](make_loader({mode!r}, {str(directory)!r}, 0))"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, env=environ(), capture_output=True, timeout=DEADLINE_S, check=False
    )
    assert ended.returncode == ENDINGS[ending][1], ended.stderr.decode()
    assert ended.stderr == b""


@pytest.mark.parametrize("mode", MODES)
def test_forks_that_touch_everything_leave_their_parent_alone(programs: Programs, tmp_path: Path, mode: str) -> None:
    assert programs.run("forks", tmp_path / "errors", mode=mode) == (0, "")


@pytest.mark.parametrize("mode", MODES)
def test_a_loader_below_a_data_loader_of_torch_says_what_to_do(programs: Programs, tmp_path: Path, mode: str) -> None:
    code, errors = programs.run("data_loader", tmp_path / "errors", mode=mode)
    assert code == 0, errors


def test_what_else_belongs_to_a_process(programs: Programs, tmp_path: Path) -> None:
    assert programs.run("objects", tmp_path / "errors") == (0, "")
