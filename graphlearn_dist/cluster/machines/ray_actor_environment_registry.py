"""Which interpreter the workers of a class run under: a setting of the driver, by the class's dotted name."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from ...errors import InvalidArgumentError
from ..actors.base import ActorBackend
from .virtual_environments import create_local_venv_on_each_node, is_uv_command


class PY_EXECUTABLES:
    """Interpreters by name.

    Attributes:
        SYSTEM: the driver's own.
    """

    SYSTEM = sys.executable


ACTOR_ENVIRONMENT_REGISTRY: dict[str, str] = {}
"""Path of an interpreter, or ``uv run …``, by dotted name of a class; workers of others run under the driver's own."""


def get_actor_python_env(actor_class_fqn: str) -> str:
    """The interpreter of a class.

    Raises:
        InvalidArgumentError: none was set (a ``ValueError``).
    """
    if actor_class_fqn not in ACTOR_ENVIRONMENT_REGISTRY:
        raise InvalidArgumentError(
            f"actor_class_fqn: expected a key of ACTOR_ENVIRONMENT_REGISTRY, got {actor_class_fqn!r}; set "
            f"ACTOR_ENVIRONMENT_REGISTRY[{actor_class_fqn!r}] to an interpreter's path, to 'uv run …', "
            f"or to PY_EXECUTABLES.SYSTEM"
        )
    return ACTOR_ENVIRONMENT_REGISTRY[actor_class_fqn]


def make_actor_runtime_env(actor_class_fqn: str, backend: ActorBackend | str = "auto") -> dict[str, Any]:
    """Ray's ``runtime_env`` for the workers of a class; empty where no interpreter was set.

    A command of uv becomes a virtual environment on every machine of the engine. That of a virtual environment comes
    with the variables that name its directory.

    Raises:
        LaunchError: an environment could not be built.
    """
    if actor_class_fqn not in ACTOR_ENVIRONMENT_REGISTRY:
        return {}
    executable = get_actor_python_env(actor_class_fqn)
    is_built = is_uv_command(executable)
    if is_built:
        executable = create_local_venv_on_each_node(executable, actor_class_fqn, backend)
    directory = Path(executable).absolute().parent.parent
    is_environment = is_built or (directory / "pyvenv.cfg").is_file()
    names = ("VIRTUAL_ENV", "UV_PROJECT_ENVIRONMENT") if is_environment else ()
    return {"py_executable": executable, "env_vars": dict.fromkeys(names, str(directory))}
