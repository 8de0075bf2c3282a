"""Every name of GraphLearn-for-PyTorch is where its programs look for it, with its arguments in their order.

``names.txt`` lists them. Values of constants are compared where programs read them.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import sys
from pathlib import Path
from typing import Any

import pytest

import graphlearn_dist.glt as glt

TABLE = Path(__file__).with_name("names.txt")
DOCUMENT = Path(__file__).resolve().parents[3] / "docs" / "from_glt.md"

# Defaults that differ, by argument, each with its reason.
OTHER_DEFAULTS: dict[tuple[str, str], str] = {
    ("device", "None"): "what is there; GraphLearn-for-PyTorch needs a GPU unless it is told otherwise",
    ("device", "'cpu'"): "the same device",
    ("edge_dir", "None"): "the direction of the data set",
    ("mode", "'CPU'"): "there need not be a GPU",
}
# By package, what star imports of its modules show there.
MODULES = {
    "channel": ("base", "mp_channel", "remote_channel", "shm_channel"),
    "data": ("dataset", "feature", "graph", "reorder", "table_dataset", "unified_tensor"),
    "loader": ("link_loader", "link_neighbor_loader", "neighbor_loader", "node_loader", "subgraph_loader", "transform"),
    "partition": ("base", "frequency_partitioner", "partition_book", "random_partitioner"),
    "sampler": ("base", "negative_sampler", "neighbor_sampler"),
    "utils": ("common", "device", "mixin", "singleton", "tensor", "topo", "units"),
}


def entries() -> list[tuple[str, str]]:
    """(module, entry) of every line."""
    found, module = [], ""
    for line in TABLE.read_text(encoding="utf-8").splitlines():
        if line.startswith(" "):
            found.append((module, line.strip()))
        elif not line.startswith("#"):
            module = line
    return found


def differences(module: str, entry: str) -> list[str]:
    """What an entry has otherwise."""
    match = re.fullmatch(r"([\w.]+)(?:\((.*)\))?", entry)
    assert match is not None, entry
    found: Any = importlib.import_module(f"graphlearn_dist.glt.{module}")
    for name in match[1].split("."):
        if not hasattr(found, name):
            return [f"no {name}"]
        found = getattr(found, name)
    if match[2] is None or isinstance(found, property):
        return []
    return argument_differences(match[2], found)


def argument_differences(arguments: str, found: Any) -> list[str]:
    parameters = [one for one in inspect.signature(found).parameters.values() if one.name not in ("self", "cls")]
    takes_any = {one.kind for one in parameters} & {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}
    by_position = [one.name for one in parameters if one.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD]
    by_name = {one.name: one for one in parameters}
    [wanted] = [
        node.args for node in ast.walk(ast.parse(f"def f({arguments}): ...")) if isinstance(node, ast.FunctionDef)
    ]
    defaults = [None] * (len(wanted.args) - len(wanted.defaults)) + [ast.unparse(one) for one in wanted.defaults]
    wrong = []
    for position, (argument, default) in enumerate(zip(wanted.args, defaults, strict=True)):
        name = argument.arg
        if name not in by_name:
            wrong += [] if takes_any else [f"no argument {name}"]
        elif by_position[position : position + 1] != [name] and not takes_any:
            wrong.append(f"{name} is not argument {position}")
        elif default is not None:
            own = shown(by_name[name].default)
            if own != default.replace('"', "'") and (name, own) not in OTHER_DEFAULTS:
                wrong.append(f"{name}={own}, not {default}")
    if wanted.kwarg is not None and inspect.Parameter.VAR_KEYWORD not in takes_any:
        wrong.append("no other keywords")
    return wrong


def shown(default: Any) -> str:
    if inspect.isfunction(default):
        return default.__name__
    return "nothing" if default is inspect.Parameter.empty else repr(default)


@pytest.mark.parametrize("module", sorted({module for module, _ in entries()}))
def test_names_and_arguments(module: str) -> None:
    wrong = {entry: found for own, entry in entries() if own == module and (found := differences(module, entry))}
    assert wrong == {}


def test_packages_show_what_their_modules_have() -> None:
    for package, modules in MODULES.items():
        shown_there = getattr(glt, package)
        for module in modules:
            inner = importlib.import_module(f"graphlearn_dist.glt.{package}.{module}")
            for name in inner.__all__:
                if not name.startswith("_"):
                    assert getattr(shown_there, name, None) is getattr(inner, name), f"{package}.{name}"
    for name in glt.typing.__all__:
        assert getattr(glt, name) is getattr(glt.typing, name)


def test_packages_show_what_their_modules_import() -> None:
    """One object by every way, so that programs may compare and extend them."""
    assert glt.data.PartitionBook is glt.partition.PartitionBook
    assert glt.loader.Dataset is glt.data.Dataset
    assert glt.sampler.Graph is glt.data.Graph
    for name in ("BaseSampler", "EdgeSamplerInput", "NegativeSampling", "NeighborSampler", "NodeSamplerInput"):
        assert getattr(glt.loader, name) is getattr(glt.sampler, name)
    for package in (glt.data, glt.loader, glt.partition, glt.sampler):
        assert (package.NodeType, package.EdgeType) == (glt.NodeType, glt.EdgeType)
    for package in (glt.data, glt.loader, glt.partition):
        assert package.convert_to_tensor is glt.utils.convert_to_tensor
    assert glt.partition.id2idx is glt.sampler.id2idx is glt.utils.id2idx
    assert (glt.sampler.merge_dict, glt.sampler.count_dict) == (glt.utils.merge_dict, glt.utils.count_dict)
    assert glt.sampler.CastMixin is glt.utils.CastMixin
    assert glt.utils.reverse_edge_type(("a", "to", "b")) == ("b", "rev_to", "a")


def test_the_end_of_the_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    assert glt.utils.python_exit_status is False
    monkeypatch.setattr(sys, "is_finalizing", lambda: True)
    assert glt.utils.python_exit_status is True
    with pytest.raises(AttributeError, match=r"module 'graphlearn_dist\.glt\.utils' has no attribute 'no_such'"):
        glt.utils.no_such  # noqa: B018


def test_what_is_missing_is_documented() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    for name in ("load_vineyard", "communicate_node_id", "scope_lock", "merge_hetero_sampler_output"):
        assert f"{name}`" in text


def test_differences_are_found() -> None:
    def function(a: int, b: int = 1, *, c: int = 2) -> None: ...

    assert argument_differences("a, b=1", function) == []
    assert argument_differences("a, b=2", function) == ["b=1, not 2"]
    assert argument_differences("a, c=2", function) == ["c is not argument 1"]
    assert argument_differences("a, d", function) == ["no argument d"]
    assert argument_differences("a, **kwargs", function) == ["no other keywords"]
    assert differences("typing", "no_such_name(a)") == ["no no_such_name"]
