"""The tutorials run as they are printed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.document_pages import assert_printed, blocks, run_page
from tests.support.document_programs import ROOT

pytestmark = pytest.mark.thorough
PAGES = sorted(path.name for path in (ROOT / "docs" / "tutorials").glob("*.md"))


@pytest.mark.parametrize("page", PAGES)
def test_a_tutorial(page: str, tmp_path: Path) -> None:
    assert run_page(f"tutorials/{page}", tmp_path) > 0


def test_answers_are_compared() -> None:
    assert_printed("a … c\nd", "x\na b c\ny\nd\n")
    with pytest.raises(AssertionError, match="not printed: 'd'"):
        assert_printed("a\nd", "d\na\n")


def test_a_page_has_its_files_and_commands() -> None:
    found = [(block.kind, block.name) for block in blocks("tutorials/two_machines.md")]
    assert ("python", "train.py") in found
    assert ("hosts", "hosts") in found
    assert found.count(("sh", "")) == 4
