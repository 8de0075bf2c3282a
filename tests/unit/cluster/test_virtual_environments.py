"""Environments are built once, never seen in part, and a builder that dies is in nobody's way."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from graphlearn_dist.cluster.machines.virtual_environments import create_local_venv
from graphlearn_dist.config import force_rebuild_environments, virtual_environments_root
from graphlearn_dist.errors import InvalidArgumentError, LaunchError

DEADLINE_S = 60.0  # only ever reached by a hang
UV = shutil.which("uv")

# An "interpreter" that counts the environments it makes: a directory with an interpreter that says its number.
FAKE = """#!/bin/sh
for target; do :; done
mkdir -p "$target/bin"
echo built >> {folder}/builds
number=$(wc -l < {folder}/builds)
{then}
printf '#!/bin/sh\\necho %s\\n' "$number" > "$target/bin/python"
chmod +x "$target/bin/python"
"""


def fake(folder: Path, name: str = "python", then: str = ":") -> str:
    script = folder / name
    script.write_text(FAKE.format(folder=folder, then=then))
    script.chmod(0o755)
    return str(script)


def say(python: str, *arguments: str) -> str:
    return subprocess.run([python, *arguments], capture_output=True, text=True, check=True).stdout.strip()


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where environments go, without uv."""
    monkeypatch.setenv("GLD_VENV_DIR", str(tmp_path / "venvs"))
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    return tmp_path / "venvs"


def test_a_real_one(root: Path) -> None:
    python = create_local_venv(sys.executable, "own")
    assert python == str(root / "own/current/bin/python")
    prefix, version = say(python, "-c", "import sys; print(sys.prefix, sys.version_info[:2])").split(" ", 1)
    assert (prefix, version) == (str(root / "own/current"), str(sys.version_info[:2]))


@pytest.mark.skipif(UV is None, reason="uv is not on PATH")
def test_by_uv(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert UV is not None
    monkeypatch.setenv("PATH", f"{Path(UV).parent}:/usr/bin:/bin")
    project = tmp_path / "project"
    project.mkdir()
    (project / "pyproject.toml").write_text('[project]\nname = "own"\nversion = "1"\ndependencies = []\n')
    command = f"uv run --offline --python {sys.executable} --project {project}"
    for name, made_by in (("project", command), ("plain", sys.executable)):
        python = create_local_venv(made_by, name)
        assert say(python, "-c", "import sys; print(sys.prefix)") == str(root / name / "current")
    assert (project / "uv.lock").is_file()
    with pytest.raises(LaunchError, match=r"uv run .*ended with 2"):
        create_local_venv(f"{command} --locked --extra none", "project")


def test_many_at_once_build_one(root: Path, tmp_path: Path) -> None:
    made_by = fake(tmp_path)
    with ThreadPoolExecutor(8) as pool:
        told = list(pool.map(lambda _: say(create_local_venv(made_by, "shared")), range(16)))
    assert told == ["1"] * 16


def test_rebuilding(root: Path, tmp_path: Path) -> None:
    """Asked for, or by another command; what was in use stays once, and a build that fails changes nothing."""
    made_by = fake(tmp_path)
    python = create_local_venv(made_by, "own")
    first = str(Path(python).resolve())
    assert say(create_local_venv(made_by, "own", force_rebuild=True)) == "2"
    assert say(first) == "1"
    assert say(create_local_venv(fake(tmp_path, "other"), "own")) == "3"
    assert not Path(first).exists()
    with pytest.raises(LaunchError, match=r"failing -m venv .* ended with 3: no room"):
        create_local_venv(fake(tmp_path, "failing", "echo no room >&2; exit 3"), "own")
    assert say(python) == "3"
    assert len(list((root / "own").glob("build-*"))) == 1


def test_a_builder_that_is_killed(root: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "started")
    os.mkfifo(tmp_path / "never")
    stuck = fake(tmp_path, "stuck", f"echo half > {tmp_path}/started; cat {tmp_path}/never")
    module = "graphlearn_dist.cluster.machines.virtual_environments"
    program = f"from {module} import create_local_venv as c; c({stuck!r}, 'own')"
    repository = str(Path(__file__).resolve().parents[3])
    environ = {**os.environ, "PYTHONPATH": repository}
    builder = subprocess.Popen([sys.executable, "-c", program], env=environ, start_new_session=True)
    assert (tmp_path / "started").read_text() == "half\n"
    assert not (root / "own/current").exists()
    os.killpg(builder.pid, signal.SIGKILL)
    assert builder.wait(DEADLINE_S) == -signal.SIGKILL
    assert say(create_local_venv(fake(tmp_path), "own")) == "2"
    assert len(list((root / "own").glob("build-*"))) == 1


def test_what_is_wrong(root: Path) -> None:
    for name in ("", "..", "a/b"):
        with pytest.raises(InvalidArgumentError, match="venv_name"):
            create_local_venv(sys.executable, name)
    with pytest.raises(InvalidArgumentError, match=r"expected 'uv run …' .*'uv sync'"):
        create_local_venv("uv sync", "own")
    with pytest.raises(LaunchError, match="needs uv, which is not on PATH"):
        create_local_venv("uv run --locked", "own")
    with pytest.raises(LaunchError, match="/no/python -m venv"):
        create_local_venv("/no/python", "own")


def test_variables() -> None:
    assert virtual_environments_root({"NEMO_RL_VENV_DIR": "/a"}) == Path("/a")
    assert virtual_environments_root({"NEMO_RL_VENV_DIR": "/a", "GLD_VENV_DIR": "/b"}) == Path("/b")
    assert virtual_environments_root({}).is_absolute()
    assert not force_rebuild_environments({})
    assert force_rebuild_environments({"NRL_FORCE_REBUILD_VENVS": "true"})
    assert not force_rebuild_environments({"NRL_FORCE_REBUILD_VENVS": "true", "GLD_FORCE_REBUILD_VENVS": "0"})
    with pytest.raises(InvalidArgumentError, match="GLD_FORCE_REBUILD_VENVS: expected 1, true, 0 or false, got 'yes'"):
        force_rebuild_environments({"GLD_FORCE_REBUILD_VENVS": "yes"})
