"""The tutorials run as they are printed."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.document_pages import assert_printed, blocks, run_page
from tests.support.document_programs import ROOT
from tests.support.ssh_hosts import ssh_cluster, why_not

pytestmark = pytest.mark.thorough
PAGES = sorted(path.name for path in (ROOT / "docs" / "tutorials").glob("*.md"))


@pytest.mark.parametrize("page", PAGES)
def test_a_tutorial(page: str, tmp_path: Path) -> None:
    with ExitStack() as stack:
        needs_hosts = any("--on ssh" in block.text for block in blocks(f"tutorials/{page}"))
        cluster = stack.enter_context(ssh_cluster()) if needs_hosts and not why_not() else None
        answers = run_page(f"tutorials/{page}", tmp_path, cluster)
    assert answers > 0
    if needs_hosts and cluster is None:
        pytest.skip(f"the rest of the page needs hosts: {why_not()}")


def test_answers_are_compared() -> None:
    assert_printed("a … c\nd", "x\na b c\ny\nd\n")
    with pytest.raises(AssertionError, match="not printed: 'd'"):
        assert_printed("a\nd", "d\na\n")


def test_a_page_has_its_files_and_commands() -> None:
    found = [(block.kind, block.name) for block in blocks("tutorials/two_machines.md")]
    assert ("python", "train.py") in found
    assert ("hosts", "hosts") in found
    assert found.count(("sh", "")) == 4
