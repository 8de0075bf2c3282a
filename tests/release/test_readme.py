"""The README's job runs as it is printed, and pictures show what the results say."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.document_pages import DEADLINE_S, write_programs
from tests.support.document_programs import ROOT

sys.path.insert(0, str(ROOT / "release"))
from pictures import IMAGES, PICTURES

# What "make demo" does in an environment that is there, in one epoch.
MAKE = 'eval "exec python examples/demo.py --epochs 1 --full-epochs 0 ${2#DEMO_ARGS=}"'


@pytest.mark.thorough
def test_the_job(tmp_path: Path) -> None:
    text = (ROOT / "README.md").read_text()
    [commands] = re.findall(r"^```sh\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    [program] = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    (tmp_path / "train.py").write_text(program)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    path = write_programs(tmp_path / "bin", {"make": MAKE})
    environ = os.environ | {"PYTHONPATH": str(ROOT), "PATH": path, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        ["bash", "-euc", commands], cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=DEADLINE_S
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "[launcher] server 1 is ready" in done.stdout.splitlines()


def test_what_make_is_asked_for_is_there() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for page in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")):
        for target in re.findall(r"(?:^|`)make ([a-z-]+)", page.read_text(), re.MULTILINE):
            assert re.search(rf"^{target}:", makefile, re.MULTILINE), f"{page.name}: make {target}"


@pytest.mark.parametrize("name", PICTURES)
def test_pictures_are_of_their_source(name: str) -> None:
    assert (IMAGES / name).read_text() == PICTURES[name](), "python release/pictures.py draws them again"
