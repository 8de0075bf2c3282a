"""Random faults: five jobs with one fault each; ``make faults`` runs as many as one likes, ``make test-all`` 200."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from tests.faults.job import judge
from tests.faults.kinds import FAULTS, Fault
from tests.support.processes import ROOT

pytestmark = pytest.mark.faults

_GRACE_S = "60"  # a busy machine takes its time; ten seconds are for one that is quiet
_DEADLINE_S = 900.0


_HARMLESS = next(fault for fault in FAULTS if not fault.error)
_DEADLY = Fault("deadly", None, error=r"trainer \d was killed by SIGKILL")
_EXPECTED = {"0": ["a", "b", "c"], "1": ["d", "e"]}


@pytest.mark.parametrize(
    ("got", "error", "problem"),
    [
        ({"0": ["a", "b", "c"], "1": ["d", "e"]}, "", ""),
        ({"0": ["a", "b", "c"], "1": ["d"]}, "", "without all batches"),
        ({"0": ["a", "a", "b", "c"], "1": ["d", "e"]}, "", "trainer 0: batch 1 is not"),
        ({"0": ["a", "b", "c"], "1": ["d", "e", "e"]}, "", "trainer 1: batch 2 is not"),
        ({"0": ["a", "x", "c"], "1": ["d", "e"]}, "", "trainer 0: batch 1 is not"),
        ({"0": ["a"], "1": []}, "server 0 exited with code 1", "should not have"),
    ],
)
def test_what_is_judged_of_a_harmless_fault(got: dict[str, list[str]], error: str, problem: str) -> None:
    problems = "\n".join(judge(_HARMLESS, got, _EXPECTED, error).problems)
    assert problem in problems
    assert bool(problem) == bool(problems)


@pytest.mark.parametrize(
    ("got", "error", "problem"),
    [
        ({"0": ["a"], "1": []}, "trainer 0 was killed by SIGKILL", ""),
        ({"0": ["a"], "1": ["e"]}, "trainer 0 was killed by SIGKILL", "trainer 1: batch 0 is not"),
        ({"0": ["a"], "1": []}, "server 0 exited with code 1", "does not say"),
        (_EXPECTED, "", "an error was expected"),
    ],
)
def test_what_is_judged_of_a_fault_that_ends_a_job(got: dict[str, list[str]], error: str, problem: str) -> None:
    problems = "\n".join(judge(_DEADLY, got, _EXPECTED, error).problems)
    assert problem in problems
    assert bool(problem) == bool(problems)


def test_what_the_launcher_must_not_say() -> None:
    notes = ["[launcher] server 0 froze and was killed; starting it again (1 of 3 times)"]
    assert judge(_HARMLESS, _EXPECTED, _EXPECTED, "", notes).problems == []
    (problem,) = judge(Fault("held", None, never="froze"), _EXPECTED, _EXPECTED, "", notes).problems
    assert problem == f"it must not say: {notes[0]}"


def test_five_random_faults() -> None:
    """Each job has exactly the batches of the local loader, or one error that names the cause; nothing is left."""
    command = [sys.executable, "-m", "tests.faults.run", "-n", "5", "--grace", _GRACE_S]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, start_new_session=True) as run:
        try:
            said, _ = run.communicate(timeout=_DEADLINE_S)
        except BaseException:
            os.killpg(run.pid, signal.SIGKILL)  # launchers that die take their jobs with them
            raise
    assert run.returncode == 0, said
    assert "5 faults in" in said
    assert ", 0 wrong, 0 hung, 0 errors of the harness" in said
