"""The layers hold: a package imports from its own layer or a lower one, read from the source without importing it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "graphlearn_dist"
MAX_LINES = 800

LAYERS: dict[str, int] = {
    **dict.fromkeys(("errors", "typing", "config", "messages", "utils"), 0),
    # `core` hands the native module's arrays out as tensors, and belongs to it.
    **dict.fromkeys(("_C", "core", "telemetry"), 1),
    **dict.fromkeys(("data", "channel"), 2),
    **dict.fromkeys(("partition", "sampler", "rpc"), 3),
    "tables": 4,
    "distributed": 4,
    "loader": 5,
    "inference": 5,
    "metrics": 5,
    "cluster": 6,
    "glt": 7,
    **dict.fromkeys(("cli", "__main__"), 7),
}

# Modules that may be imported from below their layer, each with its reason.
EXCEPTIONS: dict[tuple[str, str], str] = {
    ("distributed", "loader.transform"): "the distributed loaders hand out the same PyG objects as the local ones",
    ("distributed", "loader.learned_rows"): "rows are looked up when a batch is handed out, local or distributed",
    ("distributed", "loader.epochs"): "distributed and local loaders go through their epochs in the same way",
    ("distributed", "loader.resume"): "and what one of them saves, another goes on from",
    ("channel", "rpc.wire"): "a message has one encoding, whether it crosses a queue or a connection",
    ("channel", "rpc.calls.remote"): "the channel from servers asks them",
    ("channel", "distributed.rpc"): "GraphLearn-for-PyTorch has the channel from servers there",
    ("channel", "distributed.dist_server"): "and it asks servers",
    **{
        ("distributed", f"cluster.{module}"): "a name that users look for in both places"
        for module in (
            "data.batched_data_dict",
            "data.named_sharding",
            "groups.worker_groups",
            "machines.ray_actor_environment_registry",
            "machines.virtual_cluster",
        )
    },
}

# Modules that may unpickle, each with its reason.
MAY_UNPICKLE: dict[str, str] = {
    "cluster/actors/wire.py": "a worker's arguments are of any class; its socket pair reaches only its own parent",
}

# Where a batch passes: the loader, the server, the sampling worker.
BATCH_PATH = ("distributed/dist_loader.py", "distributed/dist_server.py", "distributed/workers/sampling_worker.py")

# What is there for programs that know it from other libraries, beside `channel`; none of it makes a loader's batches.
FOR_OTHER_PROGRAMS = (
    "distributed/dist_neighbor_sampler.py",
    "distributed/dist_sampling_producer.py",
    "partition/base.py",
    "sampler/inducer.py",
    "sampler/subgraph_op.py",
)

BY_NAME = {"eval", "exec", "compile", "__import__", "import_module"}
FORBIDDEN = {"pickle", "cPickle", "cloudpickle", "dill", "marshal", "shelve"}


# What interpreters that were built for older systems lack (those of conda, and portable ones), wherever they run.
NOT_EVERYWHERE = re.compile(
    r"os\.(memfd_create|MFD_\w+|eventfd\w*|EFD_\w+|pidfd_open|PIDFD_\w+|P_PIDFD|getrandom|copy_file_range|splice)"
    r"|signal\.pidfd_send_signal|fcntl\.F_\w*SEAL\w*|mmap\.MADV_\w+|socket\.SO_INCOMING_CPU"
)


def modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def dotted(path: Path) -> tuple[str, ...]:
    """``graphlearn_dist/rpc/wire/codec.py`` as ``("rpc", "codec")``; a package is its own name."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return parts[:-1] if parts[-1] == "__init__" else parts


def absolute(path: Path, node: ast.ImportFrom, package: Path = PACKAGE) -> str:
    """The absolute module that a ``from … import`` names."""
    if node.level == 0:
        return node.module or ""
    here = ("graphlearn_dist", *path.relative_to(package).with_suffix("").parts)
    base = here[: len(here) - node.level]
    return ".".join((*base, *((node.module,) if node.module else ())))


def imports(path: Path, package: Path = PACKAGE) -> Iterator[tuple[int, str]]:
    """Line and absolute name of everything imported anywhere in a file, inside functions and type checks too.

    ``from a import b`` gives ``a.b``: whether b is a module or a name in it does not matter for the layers.
    """
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = absolute(path, node, package)
            yield from ((node.lineno, f"{module}.{alias.name}") for alias in node.names)


def excepted(importer: str, target: str) -> bool:
    return any(
        importer == source and (target == allowed or target.startswith(allowed + ".")) for source, allowed in EXCEPTIONS
    )


def layer_violations(path: Path, package: Path = PACKAGE) -> list[str]:
    """Imports of a file that go up, as ``file:line: why``."""
    parts = path.relative_to(package).with_suffix("").parts
    importer = parts[0]
    if importer == "__init__":  # the front door: it may show anything
        return []
    found = []
    for line, name in imports(path, package):
        if not name.startswith("graphlearn_dist."):
            continue
        target = name.removeprefix("graphlearn_dist.")
        top = target.split(".")[0]
        if top not in LAYERS or LAYERS[top] <= LAYERS[importer] or excepted(importer, target):
            continue
        found.append(f"{path.name}:{line}: {importer} (layer {LAYERS[importer]}) imports {target} ({LAYERS[top]})")
    return found


def unsafe_loads(source: str) -> list[int]:
    """Lines that name torch's ``load`` other than to call it for numbers alone: ``weights_only=True``, spelled out."""
    nodes = list(ast.walk(ast.parse(source)))
    safe = [
        node.func
        for node in nodes
        if isinstance(node, ast.Call)
        and any(word.arg == "weights_only" and ast.unparse(word.value) == "True" for word in node.keywords)
    ]
    return [
        node.lineno
        for node in nodes
        if isinstance(node, ast.Attribute)
        and ast.unparse(node) in ("torch.load", "torch.serialization.load")
        and node not in safe
    ]


def open_calls(source: str) -> list[int]:
    """Lines that run or import what a string names, or let numpy unpickle."""
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    return [
        call.lineno
        for call in calls
        if ast.unparse(call.func).removeprefix("builtins.").removeprefix("importlib.") in BY_NAME
        or any(word.arg == "allow_pickle" and ast.unparse(word.value) != "False" for word in call.keywords)
    ]


def test_every_module_has_a_layer() -> None:
    names = {path.name.removesuffix(".py") for path in PACKAGE.iterdir() if path.suffix == ".py"}
    names |= {path.name for path in PACKAGE.iterdir() if path.is_dir() and (path / "__init__.py").exists()}
    assert names - {"__init__"} - LAYERS.keys() == set()


@pytest.mark.parametrize("path", modules(), ids=lambda path: ".".join(dotted(path)) or "graphlearn_dist")
def test_imports_go_down(path: Path) -> None:
    assert layer_violations(path) == []


def imported_files(path: Path, package: Path = PACKAGE) -> set[Path]:
    """The files of the package that a file imports, in functions and for type checks too; of a package, its modules."""
    found = set()
    for _, name in imports(path, package):
        parts = name.split(".")
        if parts[0] != "graphlearn_dist":
            continue
        module = package.joinpath(*parts[1:]).with_suffix(".py")
        holder = package.joinpath(*parts[1:-1]).with_suffix(".py")
        found |= {file for file in (module, holder) if file.is_file() and file != path}
    return found


def files_behind(path: Path, ahead: Mapping[Path, set[Path]]) -> set[Path]:
    """What a file imports, directly or through others, given what each imports directly."""
    seen, waiting = set[Path](), list(ahead[path])
    while waiting:
        if (one := waiting.pop()) not in seen:
            seen.add(one)
            waiting += ahead[one]
    return seen


def circles(package: Path = PACKAGE) -> list[list[str]]:
    """Files that import each other, directly or through others. The front doors, ``__init__``, do not count."""
    ahead = {path: imported_files(path, package) for path in package.rglob("*.py")}
    found: list[list[str]] = []
    reached = {path: files_behind(path, ahead) for path in ahead}
    for path, seen in reached.items():
        circle = sorted(str(one.relative_to(package)) for one in seen if path in reached[one])
        if path in seen and circle not in found:
            found.append(circle)
    return found


def test_no_files_import_each_other() -> None:
    assert circles() == []


@pytest.mark.parametrize("name", BATCH_PATH)
def test_the_path_of_a_batch_needs_no_names_of_other_libraries(name: str) -> None:
    behind = files_behind(PACKAGE / name, {path: imported_files(path) for path in modules()})
    names = {str(path.relative_to(PACKAGE)) for path in behind}
    assert names & {*FOR_OTHER_PROGRAMS, *(one for one in names if one.startswith("channel/"))} == set()
    assert all((PACKAGE / one).is_file() for one in FOR_OTHER_PROGRAMS)


def imports_of_glt(package: Path = PACKAGE) -> list[str]:
    """``file:line`` of everything outside ``glt`` that imports from it, but for the front door, which may show it."""
    return [
        f"{path.relative_to(package)}:{line}"
        for path in sorted(package.rglob("*.py"))
        if path.relative_to(package).parts[0] not in ("glt", "__init__.py")
        for line, name in imports(path, package)
        if name.split(".")[:2] == ["graphlearn_dist", "glt"]
    ]


def test_nothing_imports_the_names_of_glt() -> None:
    assert imports_of_glt() == []


def test_only_cluster_imports_ray() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in modules()
        for line, name in imports(path)
        if name.split(".")[0] == "ray" and dotted(path)[:1] != ("cluster",)
    ]
    assert found == []


def test_nothing_is_unpickled() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for path in modules()
        for line, name in imports(path)
        if (name.split(".")[0] in FORBIDDEN and str(path.relative_to(PACKAGE)) not in MAY_UNPICKLE)
        or name in ("torch.load", "torch.serialization.load")
    ]
    for path in modules():
        found += [f"{path.relative_to(ROOT)}:{line}: torch.load" for line in unsafe_loads(path.read_text())]
    assert found == []


def test_nothing_is_called_by_a_name_that_is_data() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in modules()
        if dotted(path)[:1] not in ((), ("cluster",))
        and dotted(path) != ("utils",)  # own modules when first asked for; what the driver names
        for line in open_calls(path.read_text())
    ]
    assert found == []


def unportable_names(source: str) -> list[str]:
    """Names of the standard library that some interpreters lack."""
    names = [ast.unparse(node) for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Attribute)]
    return [name for name in names if NOT_EVERYWHERE.fullmatch(name)]


def test_nothing_needs_an_interpreter_built_for_this_system() -> None:
    found = {str(path.relative_to(ROOT)): unportable_names(path.read_text()) for path in modules()}
    assert {name: names for name, names in found.items() if names} == {}


def test_files_are_of_readable_size() -> None:
    sizes = {str(path.relative_to(ROOT)): path.read_text().count("\n") for path in modules()}
    assert {name: size for name, size in sizes.items() if size > MAX_LINES} == {}


# --- the test itself can fail ------------------------------------------------------------------------------------


def test_names_of_some_interpreters_are_found() -> None:
    found = unportable_names("os.memfd_create('x')\nfcntl.fcntl(1, fcntl.F_ADD_SEALS, fcntl.F_SEAL_GROW)\nos.pipe()")
    assert sorted(found) == ["fcntl.F_ADD_SEALS", "fcntl.F_SEAL_GROW", "os.memfd_create"]


@pytest.mark.parametrize(
    ("line", "allowed"),
    [
        ("torch.load(path, map_location='cpu', weights_only=True)", True),
        ("torch.load(path)", False),
        ("torch.load(path, weights_only=False)", False),
        ("torch.load(path, weights_only=safe)", False),
        ("read = torch.load", False),
        ("torch.serialization.load(path)", False),
    ],
)
def test_torch_load_reads_numbers_alone(line: str, allowed: bool) -> None:
    assert unsafe_loads(f"import torch\n{line}") == ([] if allowed else [2])


@pytest.mark.parametrize(
    ("line", "allowed"),
    [
        ("np.load(path, allow_pickle=False)", True),
        ("np.load(path, allow_pickle=True)", False),
        ("np.load(path, allow_pickle=trusted)", False),
        ("importlib.import_module(name)", False),
        ("builtins.eval(text)", False),
        ("exec(text)", False),
        ("re.compile(pattern)", True),
    ],
)
def test_calls_by_name_are_found(line: str, allowed: bool) -> None:
    assert open_calls(f"import numpy as np\n{line}") == ([] if allowed else [2])


@pytest.mark.parametrize(
    ("where", "line", "found"),
    [
        ("cli.py", "from .glt import data", ["cli.py:1"]),
        ("data/a.py", "def f():\n    from .. import glt", ["data/a.py:2"]),
        ("glt/a.py", "from .data import Dataset", []),
    ],
)
def test_imports_of_glt_are_found(tmp_path: Path, where: str, line: str, found: list[str]) -> None:
    path = tmp_path / where
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(line + "\n")
    assert imports_of_glt(tmp_path) == found


@pytest.mark.parametrize(
    ("where", "line", "allowed"),
    [
        ("data/a.py", "from ..errors import StorageError", True),
        ("data/a.py", "from .graph import Graph", True),
        ("data/a.py", "from .. import distributed", False),
        ("data/a.py", "import graphlearn_dist.partition", False),
        ("data/sub/a.py", "from ...rpc import codec", False),
        ("channel/a.py", "from ..rpc.wire.codec import encode", True),
        ("channel/a.py", "from ..rpc import peers", False),
        ("distributed/a.py", "from ..loader.transform import to_data", True),
        ("distributed/a.py", "def f():\n    from ..loader import NodeLoader", False),
        ("cli.py", "from .cluster import launch", True),
        ("errors.py", "from ._C import Pool", False),
        ("__init__.py", "from . import distributed, loader", True),
    ],
)
def test_violations_are_found(tmp_path: Path, where: str, line: str, allowed: bool) -> None:
    path = tmp_path / where
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(line + "\n")
    assert (layer_violations(path, tmp_path) == []) is allowed


@pytest.mark.parametrize(
    ("back", "found"),
    [
        ("from .a import A", [["data/a.py", "data/b.py"]]),
        ("def f():\n    from .a import A", [["data/a.py", "data/b.py"]]),
        ("from . import a", [["data/a.py", "data/b.py"]]),
        ("from .c import A", []),
    ],
)
def test_circles_are_found(tmp_path: Path, back: str, found: list[list[str]]) -> None:
    (tmp_path / "data").mkdir()
    for name, line in {"a": "from .b import B", "b": back, "c": ""}.items():
        (tmp_path / "data" / f"{name}.py").write_text(line + "\n")
    assert circles(tmp_path) == found
