"""The site is built without a warning: no link, anchor or name leads nowhere, and each page is in a menu."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.document_programs import ROOT

DEADLINE_S = 600.0  # only ever reached by a hang


@pytest.mark.thorough
def test_the_site(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs")
    pytest.importorskip("mkdocstrings_handlers.python")
    # Not with -q: what it does not write, mkdocs does not count as a warning either.
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    environ = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=DEADLINE_S)
    assert done.returncode == 0, done.stderr
    reference = (tmp_path / "reference" / "loader.html").read_text()
    assert 'id="graphlearn_dist.loader.NeighborLoader"' in reference
    program = (tmp_path / "tutorials" / "two_machines.html").read_text()
    assert re.search(r'<span class="filename">train\.py</span>', program)
    for page in tmp_path.rglob("*.html"):
        assert re.findall(r"<a [^>]*>[\w/]+\.md</a>", page.read_text()) == [], f"{page.name} names a link by its file"
        fetched = re.findall(r'<(?:script|link|img)[^>]*(?:src|href)="(https?:[^"]+)"', page.read_text())
        assert fetched == [], f"{page.name} fetches from elsewhere"
