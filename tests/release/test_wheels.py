"""A wheel of `dist`, in a fresh environment where no compiler is found, trains the job of docs/cluster.md."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import urllib.request
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support.document_programs import ROOT, document

pytestmark = pytest.mark.wheels
TORCH_CPU = "https://download.pytorch.org/whl/cpu"
DEADLINE_S = 1500.0  # only ever reached by a hang: downloads are in it


def _wheel() -> Path:
    tag = f"cp{sys.version_info.major}{sys.version_info.minor}"
    wheels = sorted((ROOT / "dist").glob(f"graphlearn_dist-*-{tag}-{tag}-*.whl"), key=lambda file: file.stat().st_mtime)
    if not wheels:
        pytest.skip("dist has no wheel of this Python: make test-release makes it")
    return wheels[-1]


def _reaches_cpu_builds() -> bool:
    try:
        urllib.request.urlopen(f"{TORCH_CPU}/torch/", timeout=5).close()
    except OSError:
        return False
    return True


def _torch(which: str) -> tuple[str, list[str]]:
    """A version of torch, and pip's options for it; skips where that is gigabytes of CUDA that nobody asked for.

    ``own`` is the one that this project is built and tested with, ``oldest`` what pyproject.toml admits.
    """
    if which not in ("own", "oldest"):
        return which, []
    if which == "own":
        [version] = re.findall(r"^torch==([\d.]+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
        return version, ["--extra-index-url", TORCH_CPU] if _reaches_cpu_builds() else []
    [version] = re.findall(r'"torch>=([\d.]+)"', (ROOT / "pyproject.toml").read_text())
    if not _reaches_cpu_builds():
        pytest.skip(f"torch {version} has no small CPU build within reach; TORCH={version}.0 takes the one with CUDA")
    return f"{version}.0", ["--extra-index-url", TORCH_CPU]


def _run(command: Sequence[str], directory: Path, path: str) -> str:
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "GLD_"))}
    environ |= {"PATH": path, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, cwd=directory, env=environ, capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )
    assert done.returncode == 0, f"{command}: {done.returncode}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return done.stdout


def _program(name: str) -> str:
    [text] = re.findall(rf"^```python {name}\n(.*?)^```$", document("cluster.md"), re.DOTALL | re.MULTILINE)
    return str(text)


def test_the_wheel_asks_for_no_torch_of_its_own_making() -> None:
    with zipfile.ZipFile(_wheel()) as files:
        [metadata] = [name for name in files.namelist() if name.endswith(".dist-info/METADATA")]
        text = files.read(metadata).decode()
        [core] = [name for name in files.namelist() if name.startswith("graphlearn_dist/_C.") and ".so" in name]
        assert b"libtorch" not in files.read(core)
    assert set(re.findall(r"^Provides-Extra: (.*)$", text, re.MULTILINE)) >= {"ray", "tables", "metrics", "docs"}
    assert re.search(r"^Requires-Dist: torch>=[\d.]+$", text, re.MULTILINE)


@pytest.mark.parametrize("which", os.environ.get("TORCH", "own oldest").split())
def test_a_job_without_a_compiler(which: str, tmp_path: Path) -> None:
    version, options = _torch(which)
    environment = tmp_path / "environment"
    subprocess.run([sys.executable, "-m", "venv", str(environment)], check=True, timeout=DEADLINE_S)
    programs = str(environment / "bin")
    python = f"{programs}/python"
    pip = [python, "-m", "pip", "install", "-q", "--disable-pip-version-check", *options]
    _run([*pip, f"torch=={version}", str(_wheel())], tmp_path, programs)
    found = (
        "import shutil, torch; print(torch.__version__, [shutil.which(t) for t in ('c++', 'gcc', 'cmake', 'ninja')])"
    )
    said = _run([python, "-c", found], tmp_path, programs).strip()
    assert re.fullmatch(rf"{re.escape(version)}(\+\w+)? \[None, None, None, None\]", said)

    for name in ("make_graph.py", "train.py"):
        (tmp_path / name).write_text(_program(name))
    _run([python, "make_graph.py"], tmp_path, programs)
    command = f"{programs}/graphlearn-dist"
    _run([command, "partition", "--data", "graph.npz", "--out", "partitions", "--parts", "2"], tmp_path, programs)
    job = ["launch", "--data", "partitions", "--servers", "2", "--trainers", "2", "train.py"]
    lines = _run([command, *job], tmp_path, programs).splitlines()
    for rank in (0, 1):
        losses = [
            float(each[1]) for line in lines if (each := re.match(rf"\[trainer {rank}\] epoch \d: loss (.*)", line))
        ]
        assert len(losses) == 2
        assert losses[1] < losses[0]
