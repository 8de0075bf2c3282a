"""The list of strategies is complete: so are the core's methods, the plain Python sampler and the documents."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from graphlearn_dist import _C
from graphlearn_dist.errors import InvalidArgumentError
from graphlearn_dist.sampler.plan import Draw
from graphlearn_dist.sampler.strategies import METHODS, STRATEGIES, TEMPORAL_STRATEGIES, TIME_RULES
from tests.support import reference

ROOT = Path(__file__).parents[3]


def test_each_method_is_asked_for_by_a_strategy_and_defined_in_plain_python() -> None:
    """So the tests that compare with the plain sampler, and that go through the list, leave none out."""
    asked = {method.name for each in STRATEGIES.values() for method in (each.method, each.weighted) if method}
    assert asked == set(METHODS) == set(reference.PICKERS)


def test_each_strategy_is_in_the_table() -> None:
    text = (ROOT / "docs/sampling.md").read_text()
    assert [name for name in STRATEGIES if name != "random" and f'| `strategy="{name}"` |' not in text] == []


def test_time_rules_are_those_of_the_core() -> None:
    assert {*TEMPORAL_STRATEGIES.values(), "ignore"} == set(TIME_RULES)


def test_names_that_nothing_has() -> None:
    with pytest.raises(InvalidArgumentError, match=r"method: expected one of uniform, .*; got best"):
        _C.DrawMethod("best")
    for wrong in ({"method": "best"}, {"times": "never"}):
        with pytest.raises(InvalidArgumentError, match="method, times: expected one of"):
            Draw(**wrong)


def test_the_quoted_change_is_what_is_there() -> None:
    """Each line that the documents' example adds stands in the file that it names; a list may have grown since."""
    [change] = re.findall(r"```diff\n(.*?)```", (ROOT / "docs/sampling.md").read_text(), re.DOTALL)
    lines: set[str] = set()
    for line in change.splitlines():
        if line.startswith("--- "):
            lines = set((ROOT / line[4:]).read_text().splitlines())
        elif line.startswith("+"):
            added = line[1:].removesuffix(">;")
            assert any(there == line[1:] or there.startswith(f"{added}, ") for there in lines), line
