"""What ``make gpu`` runs: no step keeps another from running, and what is missing is told. No GPU is needed here."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.gpu import run
from tests.gpu.run import Step, choose, main, make_steps, report, run_step
from tests.support.gpu import parse_processes


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def test_each_step_has_its_verdict(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    steps = [
        Step(
            "good", "a number", python("import os; print('seven', os.environ['WHAT'])"), environment={"WHAT": "it is"}
        ),
        Step("bad", "an end", python("import sys; print('no', file=sys.stderr); sys.exit(3)")),
        Step("lacking", "nothing", ["true"], needs=["sh", "no-such-program"]),
    ]
    outcomes = [run_step(step, tmp_path) for step in steps]
    assert [outcome.verdict for outcome in outcomes] == ["ok", "failed", "missing"]
    assert (tmp_path / "good.log").read_text() == "seven it is\n"
    assert (tmp_path / "bad.log").read_text() == "no\n"
    assert outcomes[1].note.startswith("exit code 3, ")
    assert outcomes[2].note == "no-such-program is not on PATH"
    assert report(outcomes) == 1
    assert report([outcomes[0], outcomes[2]]) == 0
    assert "lacking  missing  nothing (no-such-program is not on PATH)" in capsys.readouterr().out


def test_steps_are_asked_for_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    steps = make_steps(["-k", "some"])
    assert [step.name for step in choose(steps, ["ncu", "tests"])] == ["tests", "ncu"]
    assert choose(steps, []) == steps
    assert list(steps[0].command[-2:]) == ["-k", "some"]
    with pytest.raises(SystemExit, match="nothing: expected some of tests, memcheck, racecheck, initcheck, "):
        choose(steps, ["nothing"])
    assert main(["--list", "initcheck"]) == 0
    assert "--tool initcheck" in capsys.readouterr().out


def test_arguments_of_pytest_are_those_of_make(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Quotes and all: they come by the environment, past the shell."""
    wanted = '-k "one or other" -x'
    made = subprocess.run(
        [
            "make",
            "--no-print-directory",
            "-n",
            "gpu",
            "GPU_PYTHON=python",
            f"PYTEST_ARGS={wanted}",
            "GPU_STEPS=tests ncu",
        ],
        cwd=run.ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    assert made.rstrip().endswith("$python -m tests.gpu.run tests ncu")
    monkeypatch.setenv("PYTEST_ARGS", wanted)
    assert main(["--list", "tests"]) == 0
    assert capsys.readouterr().out.rstrip().endswith("-k 'one or other' -x")


@pytest.mark.parametrize(
    ("is_built", "match"), [(True, "no GPU is usable: nothing was run"), (False, "the core was built without CUDA")]
)
def test_where_there_is_no_gpu_nothing_passes(monkeypatch: pytest.MonkeyPatch, is_built: bool, match: str) -> None:
    monkeypatch.setattr(run, "run_step", lambda *_: pytest.fail("a step was run"))
    monkeypatch.setattr(run, "_C", SimpleNamespace(cuda_is_built=lambda: is_built, cuda_device_count=lambda: 0))
    with pytest.raises(SystemExit, match=match):
        main([])


def test_steps_run_what_is_there() -> None:
    """Tests by their names, and every benchmark of a GPU."""
    steps, root = make_steps(), run.ROOT
    files = {part for step in steps for part in step.command if part.endswith(".py")}
    assert {str(path.relative_to(root)) for path in root.glob("benchmarks/bench_*_gpu.py")} | {run.KERNELS} == files
    assert len({step.name for step in steps}) == len(steps)


def test_tests_of_initcheck_are_there() -> None:
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-m", "gpu", run.KERNELS]
    answer = subprocess.run(command, cwd=run.ROOT, check=True, capture_output=True, text=True).stdout
    assert {f"{run.KERNELS}::{test}" for test in run.INITCHECK} <= set(answer.splitlines())


def test_processes_by_nvidia_smi() -> None:
    answer = "12, GPU-5f\n345, GPU-aa\n[Insufficient Permissions], GPU-aa\n\nNo devices were found\n"
    assert parse_processes(answer) == [(12, "GPU-5f"), (345, "GPU-aa")]
