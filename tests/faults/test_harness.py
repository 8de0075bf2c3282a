"""The harness of random faults itself: whatever becomes of it, each case ends with a verdict that says why."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.faults.job import Case, Harness, Verdict, save_verdict
from tests.faults.kinds import FAULTS
from tests.faults.run import Driver

pytestmark = pytest.mark.faults

_PR_SET_NAME = 15
_HARMLESS = next(number for number, fault in enumerate(FAULTS) if fault.inject is None and not fault.error)


def _case() -> Case:
    return Case(7, _HARMLESS, "remote", 0, 0, early=False)


def _end_well(directory: Path) -> None:
    save_verdict(Verdict("same batches", 1.5), directory)


def _end_wrong(directory: Path) -> None:
    save_verdict(Verdict("same batches", 1.5, problems=["left behind: /dev/shm/x"]), directory)


def _end_with_a_failure_of_the_harness(directory: Path) -> None:
    save_verdict(Verdict("same batches", 1.5, harness="the fault cannot be injected"), directory)


def _be_terminated(directory: Path) -> None:
    (directory / "harness.txt").write_text("its last words")
    os.kill(os.getpid(), signal.SIGTERM)
    signal.pause()


def _be_killed_after_the_verdict(directory: Path) -> None:
    _end_well(directory)
    os.kill(os.getpid(), signal.SIGKILL)
    signal.pause()


def _leave_half_a_verdict(directory: Path) -> None:
    (directory / "verdict.new").write_text('{"outcome": "same')
    os._exit(0)


def _fail(directory: Path) -> None:
    raise ValueError("the harness has a bug")


def _hang(directory: Path) -> None:
    signal.pause()


@pytest.mark.parametrize(
    ("play", "kind", "said"),
    [
        (_end_well, "right", "same batches\n"),
        (_end_wrong, "wrong", "WRONG: left behind: /dev/shm/x; see"),
        (_end_with_a_failure_of_the_harness, "harness error", "HARNESS ERROR: the fault cannot be injected; see"),
        (_be_terminated, "harness error", "its process was killed by SIGTERM without a verdict\nits last words; see"),
        (_be_killed_after_the_verdict, "harness error", "its process was killed by SIGKILL"),
        (_leave_half_a_verdict, "harness error", "its process exited with code 0 without a verdict"),
        (_fail, "harness error", "its process exited with code 1 without a verdict"),
        (_hang, "hang", "HANG: its harness had to be killed"),
    ],
)
def test_every_case_has_a_verdict(
    play: Callable[[Path], None], kind: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    driver = Driver(tmp_path, lambda _, own: play(own), 0.5 if play is _hang else 60.0)
    driver.run([_case()], parallel=1)
    ((_, verdict),) = driver.rows
    assert verdict.kind == kind
    assert said in capsys.readouterr().out
    assert (tmp_path / "7").exists() == (kind != "right")  # what it wrote is kept where it may be needed
    assert f"{int(kind == 'hang')} hung, {int(kind == 'harness error')} errors of the harness" in driver.counts()


@pytest.mark.parametrize("name", ["kill a trainer", "freeze a trainer briefly"])
def test_a_trainer_that_ends_while_it_is_looked_for(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fault comes too late then, which is no failure of the harness."""
    os.mkfifo(tmp_path / "go")
    named = f"ctypes.CDLL(None).prctl({_PR_SET_NAME}, b'gld-client-0')"
    program = f"import ctypes, signal; {named}; print(flush=True); signal.pause()"
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as trainer:
        assert trainer.stdout is not None
        trainer.stdout.readline()  # it bears its name
        iterdir = Path.iterdir

        def look_and_end_it(path: Path) -> Iterator[Path]:
            yield from iterdir(path)
            if path == Path("/proc"):
                trainer.kill()
                trainer.wait()

        monkeypatch.setattr(Path, "iterdir", look_and_end_it)
        number = next(number for number, fault in enumerate(FAULTS) if fault.name == name)
        harness = Harness(Case(7, number, "mp", 1, 0, early=False), tmp_path, 60.0, None)
        went = threading.Event()
        monkeypatch.setattr(harness.scene, "go", went.set)
        monkeypatch.setattr(harness, "_go", went.set)
        with harness.scope():
            harness.on_now()
            assert went.wait(60.0)
    assert (harness.failure, harness.scene.did) == ("", "client-0 (came too late)")


def test_a_job_that_ends_while_it_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The signal for the launcher comes when that has gone: the harness lives on, and judges the job."""
    os.mkfifo(tmp_path / "go")
    sent, kill = threading.Event(), os.kill

    def kill_and_tell(pid: int, signum: int) -> None:
        kill(pid, signum)
        if signum == signal.SIGTERM:
            sent.set()

    monkeypatch.setattr(os, "kill", kill_and_tell)
    before = signal.getsignal(signal.SIGTERM)
    harness = Harness(_case(), tmp_path, 0.0, None)
    with harness.scope():
        harness.on_now()
        assert sent.wait(60.0)
    assert harness.hang == "it had not ended 0 s after its fault"
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_signal_from_outside(tmp_path: Path) -> None:
    """While there is no job to stop it ends the harness, with a word."""
    os.mkfifo(tmp_path / "go")
    harness = Harness(_case(), tmp_path, 0.0, None)
    with pytest.raises(RuntimeError, match="was sent SIGTERM"), harness.scope():
        os.kill(os.getpid(), signal.SIGTERM)
