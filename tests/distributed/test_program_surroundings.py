"""Programs whose sampling workers would not come up, or do harm, if they took their surroundings from elsewhere."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from graphlearn_dist.distributed import DistNeighborLoader, MpDistSamplingWorkerOptions
from graphlearn_dist.errors import SamplingWorkerError
from tests.support.jobs import load, make_partitions
from tests.support.processes import ROOT

DEADLINE_S = 120.0

# Its arguments: the data set, and a file for what it has seen. The search path is that of the test, set at run time.
PROGRAM = f"""
import json, os, sys
sys.path[:] = [*sys.path, *{[str(ROOT), *sys.path]!r}]
directory, report = sys.argv[1:3]
PREPARE
import torch
from graphlearn_dist.distributed import DistDataset, DistNeighborLoader, MpDistSamplingWorkerOptions
from tests.support.jobs import workers_of

def told(pid, what):
    return open(f"/proc/{{pid}}/{{what}}").read()

if __name__ == "__main__":
    dataset = DistDataset()
    dataset.load(directory, 0)
    options = MpDistSamplingWorkerOptions(num_workers=1, channel_size="16MB")
    REMOVE
    with DistNeighborLoader(dataset, [3], torch.arange(40), 10, edge_dir="in", worker_options=options) as loader:
        (worker,) = workers_of(os.getpid())
        status = dict(line.split(":\\t") for line in told(worker, "status").splitlines())
        seen = {{
            "batches": len(list(loader)),
            "command": told(status["PPid"], "cmdline").split("\\0"),
            "output": os.readlink(f"/proc/{{worker}}/fd/1"),
        }}
    with open(report, "w") as file:
        json.dump(seen, file)
"""


def run(command: list[str], cwd: Path, report: Path) -> tuple[dict[str, object], str]:
    """What a program has seen, and what it wrote to standard error; it must end well."""
    done = subprocess.run(command, cwd=cwd, timeout=DEADLINE_S, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(report.read_text()), done.stderr


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_partitions(tmp_path_factory.mktemp("whole") / "graph", 1)


def test_a_search_path_of_its_own_and_strange_modules_where_it_runs(whole: Path, tmp_path: Path) -> None:
    """Workers find what the program finds, and do not import what happens to lie in its working directory."""
    there, report, program = tmp_path / "there", tmp_path / "report.json", tmp_path / "program.py"
    there.mkdir()
    for name in ("struct", "random", "numpy", "sitecustomize"):
        (there / f"{name}.py").write_text("open('imported', 'w').close(); raise SystemExit(7)")
    program.write_text(PROGRAM.replace("PREPARE", "").replace("REMOVE", ""))
    interpreter = getattr(sys, "_base_executable", sys.executable)  # without what the environment adds to its path
    seen, _ = run([interpreter, str(program), str(whole), str(report)], there, report)
    assert seen["batches"] == 4
    assert not (there / "imported").exists()


def test_a_working_directory_that_has_changed_since_the_imports(whole: Path, tmp_path: Path) -> None:
    """An empty entry of the search path, as interactive programs have it, says another directory then; and children
    whose ends are ignored, as some shells and supervisors hand it down."""
    there, report, program = tmp_path / "there", tmp_path / "report.json", tmp_path / "program.py"
    there.mkdir()
    for name in ("struct", "random", "numpy", "graphlearn_dist"):
        (there / f"{name}.py").write_text(f"open({str(there / 'imported')!r}, 'w').close(); raise SystemExit(7)")
    leave = f"import signal; sys.path.insert(0, ''); os.chdir({str(there)!r}); "
    leave += "signal.signal(signal.SIGCHLD, signal.SIG_IGN); import torch_geometric"
    program.write_text(PROGRAM.replace("PREPARE", "").replace("REMOVE", leave))
    seen, errors = run([sys.executable, str(program), str(whole), str(report)], tmp_path, report)
    assert seen["batches"] == 4
    assert not (there / "imported").exists()
    assert errors == ""


@pytest.mark.parametrize("interpreter", [None, "", "/nowhere/python"])
def test_a_program_that_does_not_know_its_interpreter(
    monkeypatch: pytest.MonkeyPatch, whole: Path, interpreter: str | None
) -> None:
    """As those that embed Python."""
    monkeypatch.setattr(sys, "executable", interpreter)
    with pytest.raises(SamplingWorkerError, match=r"sys\.executable.*got (None|''|'/nowhere/python')$"):
        DistNeighborLoader(load(whole), [3], torch.arange(9), worker_options=MpDistSamplingWorkerOptions(1))


@pytest.mark.thorough
def test_no_working_directory_no_standard_output_and_flags(whole: Path, tmp_path: Path) -> None:
    """The directory was removed; descriptor 1 is a file that no worker may write to; ``-I`` holds for all processes."""
    there, report, program, other = (
        tmp_path / "there",
        tmp_path / "report.json",
        tmp_path / "program.py",
        tmp_path / "1",
    )
    there.mkdir()
    taken = f"taken = os.open({str(other)!r}, os.O_CREAT | os.O_RDWR); assert taken == 1, taken"
    program.write_text(
        PROGRAM.replace("PREPARE", taken).replace("REMOVE", f"import torch_geometric; os.rmdir({str(there)!r})")
    )
    command = [sys.executable, "-I", "-X", "utf8", str(program), str(whole), str(report)]
    seen, errors = run(["/bin/sh", "-c", 'exec "$@" >&-', "sh", *command], there, report)
    assert seen["batches"] == 4
    assert seen["output"] == "/dev/null"
    flags = seen["command"]
    assert isinstance(flags, list)
    assert "-I" in flags
    assert flags[flags.index("-X") + 1] == "utf8=1" or "utf8" in flags
    assert errors == ""
    assert other.read_bytes() == b""
