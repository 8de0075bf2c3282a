"""Virtual environments for workers that need other packages than the driver.

An environment named ``name`` lies in ``name/build-…`` below a root, and ``name/current`` is a link to it that is set
when it is complete: scripts of an environment have its path written into them, so that one cannot be built in one place
and moved to another. Whoever uses it goes through the link and never sees a part of it.
"""

from __future__ import annotations

import os
import secrets
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from ...config import force_rebuild_environments, virtual_environments_root
from ...errors import InvalidArgumentError, LaunchError
from ...utils.system.directory_lock import locked_directory
from ..actors.base import ActorBackend, ActorSpec, order_nodes
from ..actors.choose import choose_backend
from ..actors.environ import forwarded_environ

_BUILD_TIMEOUT_S = 1800.0
_CURRENT, _BUILD, _COMMAND = "current", "build-", "built-with.txt"
_TOLD_CHARS = 2000


def is_uv_command(py_executable: str) -> bool:
    """Whether an interpreter is given as a command of uv, from which an environment has to be made first."""
    return shlex.split(py_executable)[:1] == ["uv"]


def create_local_venv(
    py_executable: str, venv_name: str, force_rebuild: bool = False, *, root: str | os.PathLike[str] | None = None
) -> str:
    """Makes an environment on this machine, unless it is there and was made by the same command.

    Others that want it at the same time wait, and find it complete. One that was replaced stays until the next time
    that something is built in its place, for the workers that run in it.

    Args:
        py_executable: ``uv run …`` with the options of a project (``--project``, ``--extra``, ``--locked``), whose
            packages are installed; or the path of an interpreter, for an environment that sees that one's packages and
            has no others (made by uv where that is on ``PATH``).
        venv_name: name of its directory.
        force_rebuild: make it anew.
        root: where environments are; None for ``GLD_VENV_DIR``, or a place in the user's cache.

    Returns:
        The path of its interpreter.

    Raises:
        InvalidArgumentError: a name that is no directory's, or a command of uv that is not ``uv run``.
        LaunchError: it could not be built; says which command failed, and how. What was there before stays.
        StorageError: another process was at it for longer than a build may take.
    """
    if not venv_name or venv_name in (".", "..") or os.sep in venv_name:
        raise InvalidArgumentError(f"venv_name: expected the name of a directory, got {venv_name!r}")
    folder = (virtual_environments_root() if root is None else Path(root).absolute()) / venv_name
    folder.mkdir(parents=True, exist_ok=True)
    with locked_directory(folder, 2 * _BUILD_TIMEOUT_S):
        if force_rebuild or not _is_made_by(py_executable, folder):
            _replace(py_executable, folder)
    return str(folder / _CURRENT / "bin" / "python")


def _is_made_by(py_executable: str, folder: Path) -> bool:
    made_by = folder / _CURRENT / _COMMAND
    return made_by.is_file() and made_by.read_text() == py_executable


def _replace(py_executable: str, folder: Path) -> None:
    """Builds an environment and points the link at it; takes away what the link left, or a build that was cut off."""
    current = folder / _CURRENT
    for build in folder.glob(f"{_BUILD}*"):
        if build != current.resolve():
            shutil.rmtree(build)
    target = folder / f"{_BUILD}{secrets.token_hex(4)}"
    try:
        _build(py_executable, target)
    except BaseException:
        shutil.rmtree(target, ignore_errors=True)
        raise
    (target / _COMMAND).write_text(py_executable)
    link = folder / "next"
    link.unlink(missing_ok=True)
    link.symlink_to(target.name)
    link.replace(current)


def _build(py_executable: str, target: Path) -> None:
    uv, words = shutil.which("uv"), shlex.split(py_executable)
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environ |= {"VIRTUAL_ENV": str(target), "UV_PROJECT_ENVIRONMENT": str(target)}
    if is_uv_command(py_executable):
        if words[1:2] != ["run"]:
            raise InvalidArgumentError(f"py_executable: expected 'uv run …' of uv's commands, got {py_executable!r}")
        if uv is None:
            raise LaunchError(f"py_executable: {py_executable!r} needs uv, which is not on PATH")
        # Ray wants the driver's version of Python in all workers; a project that asks for another one gets that.
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        _run([uv, "venv", "--no-project", "--python", version, str(target)], environ)
        _run([uv, *words[1:], "python", "-c", ""], environ)
    elif uv is not None:
        _run([uv, "venv", "--no-project", "--system-site-packages", "--python", *words, str(target)], environ)
    else:
        _run([*words, "-m", "venv", "--without-pip", "--system-site-packages", str(target)], environ)


def _run(command: list[str], environ: Mapping[str, str]) -> None:
    try:
        ran = subprocess.run(
            command, env=environ, timeout=_BUILD_TIMEOUT_S, stdin=subprocess.DEVNULL, capture_output=True, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LaunchError(f"virtual environment: {shlex.join(command)}: {error}") from error
    if ran.returncode:
        said = ran.stderr.decode(errors="replace")[-_TOLD_CHARS:]
        raise LaunchError(f"virtual environment: {shlex.join(command)} ended with {ran.returncode}: {said}")


class EnvironmentBuilder:
    """Builds environments in a process of its machine."""

    def build(self, py_executable: str, venv_name: str, force_rebuild: bool, root: str) -> str:
        """See ``create_local_venv``."""
        return create_local_venv(py_executable, venv_name, force_rebuild, root=root)


def create_local_venv_on_each_node(py_executable: str, venv_name: str, backend: ActorBackend | str = "auto") -> str:
    """Makes an environment at the same path on every machine that takes work, on all of them at the same time.

    ``GLD_FORCE_REBUILD_VENVS`` and ``GLD_VENV_DIR`` of this process hold for all of them. Machines may share the root
    if its file system has locks.

    Args:
        py_executable: see ``create_local_venv``; a path must be the same on every machine.
        venv_name: see ``create_local_venv``.
        backend: the engine, or its name as for ``RayVirtualCluster``.

    Returns:
        The path of the interpreter.

    Raises:
        LaunchError: see ``create_local_venv``; on any of them.
    """
    engine = choose_backend(backend) if isinstance(backend, str) else backend
    root, force_rebuild = str(virtual_environments_root()), force_rebuild_environments()
    target = f"{EnvironmentBuilder.__module__}.{EnvironmentBuilder.__qualname__}"
    environ = forwarded_environ()
    specs = [ActorSpec("", target, node_id=node.node_id, env=environ) for node in order_nodes(engine.nodes())]
    builders = [engine.create(spec) for spec in specs]
    try:
        answers = [builder.call("build", py_executable, venv_name, force_rebuild, root) for builder in builders]
        paths = engine.get(answers, 3 * _BUILD_TIMEOUT_S)
    finally:
        for builder in builders:
            engine.kill(builder)
    return str(paths[0])
