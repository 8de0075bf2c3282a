"""The programs in the pages for users of other libraries, and of links, run, and print what they say."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.document_programs import Program, programs
from tests.support.processes import run_program

DEADLINE_S = 300.0  # only ever reached by a hang
PROGRAMS = [program for name in ("from_glt.md", "from_pyg.md", "from_dgl.md", "links.md") for program in programs(name)]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: f"{program.document}:{program.line}")
def test_program(program: Program, tmp_path: Path) -> None:
    path = tmp_path / "program.py"  # in full: what the program spawns is told the path, and not where it is
    path.write_text(program.text)
    ran = run_program(str(path), directory=tmp_path, timeout_s=DEADLINE_S)
    assert ran.returncode == 0, ran.stderr
    assert program.printed
    assert ran.stdout.splitlines() == program.printed
