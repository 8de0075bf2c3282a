"""The core's own tests in C++, over the core that the extension links; ``make sanitize`` runs them with sanitizers."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
BUILD = ROOT / "build" / f"cmake-{sys.implementation.cache_tag}"  # that of setup.py
TARGET = "gld_core_tests"
# cmake and ninja may be those of the environment of this interpreter.
PATH = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
BUILD_DEADLINE_S, RUN_DEADLINE_S = 600, 120  # only to fail instead of hanging


def run(command: list[str], deadline_s: float) -> None:
    """Runs a command; its output is part of the failure."""
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    done = subprocess.run(command, **streams, text=True, timeout=deadline_s, env={**os.environ, "PATH": PATH})
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}"


def test_core() -> None:
    """Where the extension was built in another place, the core is compiled once more, which takes tens of seconds."""
    import pybind11

    ninja = shutil.which("ninja", path=PATH)
    if shutil.which("cmake", path=PATH) is None or ninja is None:
        pytest.skip("there is no cmake here, or no ninja")
    BUILD.mkdir(parents=True, exist_ok=True)
    configure = ["cmake", "-S", str(ROOT), "-B", str(BUILD), "-GNinja", "-DCMAKE_BUILD_TYPE=Release"]
    where = [
        f"-DCMAKE_MAKE_PROGRAM={ninja}",
        f"-DPython_EXECUTABLE={sys.executable}",
        f"-Dpybind11_DIR={pybind11.get_cmake_dir()}",
    ]
    with open(BUILD / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two runs of the tests may share the checkout
        run([*configure, *where], BUILD_DEADLINE_S)
        run(["cmake", "--build", str(BUILD), "--target", TARGET], BUILD_DEADLINE_S)
        run([str(BUILD / TARGET)], RUN_DEADLINE_S)
