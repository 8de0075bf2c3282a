"""The names and signatures that programs written for GraphLearn-for-PyTorch use; public_names.txt lists them."""

from __future__ import annotations

import importlib
import inspect
import re
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import pytest

TABLE = Path(__file__).with_name("public_names.txt")
MISSING = object()


def read_table() -> list[tuple[str, str]]:
    """(module, entry) of every line."""
    entries, module = [], ""
    for line in TABLE.read_text(encoding="utf-8").splitlines():
        if line.startswith(" "):
            entries.append((module, line.strip()))
        elif line and not line.startswith("#"):
            module = line
    return entries


def find(module: str, path: str) -> Any:
    """What a name stands for: a function, class, property, or field; ``MISSING`` where there is none."""
    found: Any = importlib.import_module(f"graphlearn_dist.{module}")
    for name in path.split("."):
        names = {field.name for field in fields(found)} if is_dataclass(found) else getattr(found, "_fields", ())
        if name in names:
            return None  # a field: it has no signature
        found = getattr(found, name, MISSING)
    return found


def positional(found: Any) -> list[tuple[str, bool]]:
    """Arguments that may be given by position, each as ``name`` or ``name=default``, and whether it has a default."""
    parameters = list(inspect.signature(found).parameters.values())
    if parameters and parameters[0].name in ("self", "cls"):
        parameters = parameters[1:]
    by_position = [one for one in parameters if one.kind is one.POSITIONAL_OR_KEYWORD]
    return [(_shown(one), one.default is not one.empty) for one in by_position]


def _shown(parameter: inspect.Parameter) -> str:
    if parameter.default is parameter.empty:
        return parameter.name
    default = repr(parameter.default)
    return f"{parameter.name}={'...' if default.startswith('<object') else default}"


def difference(module: str, entry: str) -> str | None:
    """What is wrong with an entry of the table, or None."""
    match = re.fullmatch(r"([\w.]+)(?:\((.*)\))?", entry)
    assert match is not None, entry
    found = find(module, match[1])
    if found is MISSING:
        return f"{module}: {match[1]} is missing"
    if match[2] is None:
        return None
    arguments = positional(found)
    count = match[2].count(", ") + 1 if match[2] else 0
    begin, rest = arguments[:count], arguments[count:]
    shown = ", ".join(name for name, _ in begin)
    if shown != match[2]:
        return f"{module}: expected {entry}, got {match[1]}({shown})"
    needed = [name for name, has_default in rest if not has_default]
    return f"{module}: {match[1]} needs {needed} besides" if needed else None


@pytest.mark.parametrize("module", dict.fromkeys(module for module, _ in read_table()))
def test_names_and_signatures(module: str) -> None:
    entries = [entry for of, entry in read_table() if of == module]
    assert entries
    assert [wrong for entry in entries if (wrong := difference(module, entry))] == []


@pytest.mark.parametrize(
    ("entry", "wrong"),
    [
        ("random_split(num_total, num_val, num_test)", None),
        ("random_split(num_total, num_val)", "random_split needs ['num_test'] besides"),
        ("random_split(num_val, num_total, num_test)", "expected random_split(num_val, num_total, num_test), got"),
        ("random_split(num_total, num_val, num_test=0)", "got random_split(num_total, num_val, num_test)"),
        ("Dataset.split_at_random()", "Dataset.split_at_random is missing"),
        ("GraphSchema.num_nodes", None),
        ("GraphSchema.num_edges", "GraphSchema.num_edges is missing"),
    ],
)
def test_differences_are_found(entry: str, wrong: str | None) -> None:
    found = difference("data.dataset", entry)
    assert found is None if wrong is None else wrong in (found or "")
