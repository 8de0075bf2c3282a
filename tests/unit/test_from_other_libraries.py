"""The programs in the pages for users of other libraries run, and print what they say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.document_programs import Program, programs

DEADLINE_S = 300.0  # only ever reached by a hang
PROGRAMS = [program for name in ("from_glt.md", "from_pyg.md", "from_dgl.md") for program in programs(name)]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: f"{program.document}:{program.line}")
def test_program(program: Program, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(program.text)
    ran = subprocess.run(
        [sys.executable, "program.py"], cwd=tmp_path, capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert program.printed
    assert ran.stdout.splitlines() == program.printed
