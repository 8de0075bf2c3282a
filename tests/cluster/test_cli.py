"""The command line."""

from __future__ import annotations

import subprocess
import sys

import pytest
from launch_job import DEADLINE_S

from graphlearn_dist import _C
from graphlearn_dist.cli import main


def test_info(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info"]) == 0
    out = capsys.readouterr().out
    assert _C.__version__ in out
    assert "torch" in out
    assert "cores" in out


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["--version"])
    assert capsys.readouterr().out == f"graphlearn-dist {_C.__version__}\n"


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["launch", "--servers", "0", "--data", "d", "t.py"], "num_servers"),
        (["launch", "t.py"], "data: expected a partition directory"),
        (["launch", "--on", "ssh", "--data", "d", "t.py"], "hosts"),
        (["launch", "--hosts", "/no/such/file", "--data", "d", "t.py"], "/no/such/file"),
        (["serve", "--data", "d"], "--rank"),
    ],
)
def test_expected_errors_are_one_line(
    argv: list[str], said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GLD_ROLE", raising=False)
    assert main(argv) == 1
    err = capsys.readouterr().err
    assert err.startswith("graphlearn-dist: ")
    assert said in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("argv", [[], ["launch"], ["launch", "--env", "novalue", "t.py"], ["partition", "--kind", "x"]])
def test_usage_errors(argv: list[str]) -> None:
    with pytest.raises(SystemExit) as error:
        main(argv)
    assert error.value.code == 2


def test_module_runs_as_program() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "graphlearn_dist", "--help"], capture_output=True, text=True, timeout=DEADLINE_S
    )
    assert done.returncode == 0
    for command in ("launch", "serve", "partition", "verify", "info"):
        assert command in done.stdout


def test_the_launcher_starts_without_torch() -> None:
    """It takes seconds to import, and the launcher needs none of it."""
    program = "import sys, graphlearn_dist.cli, graphlearn_dist.cluster; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], timeout=DEADLINE_S).returncode == 0


def test_a_script_that_makes_groups_starts_without_torch() -> None:
    """Each local worker runs the imports of its driver's script, whether it needs torch or not."""
    names = "NamedSharding, RayVirtualCluster, RayWorkerBuilder, RayWorkerGroup, heartbeat, idempotent, init_ray"
    program = f"import sys; from graphlearn_dist.cluster import {names}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], timeout=DEADLINE_S).returncode == 0
