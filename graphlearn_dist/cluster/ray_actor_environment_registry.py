"""Which interpreter the workers of a class run under: a setting of the driver, by the class's dotted name."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from ..errors import InvalidArgumentError


class PY_EXECUTABLES:
    """Interpreters by name.

    Attributes:
        SYSTEM: the driver's own.
    """

    SYSTEM = sys.executable


ACTOR_ENVIRONMENT_REGISTRY: dict[str, str] = {}
"""Path of an interpreter by dotted name of a class; workers of others run under the driver's own."""


def get_actor_python_env(actor_class_fqn: str) -> str:
    """The interpreter of a class.

    Raises:
        InvalidArgumentError: none was set (a ``ValueError``).
    """
    if actor_class_fqn not in ACTOR_ENVIRONMENT_REGISTRY:
        raise InvalidArgumentError(
            f"actor_class_fqn: expected a key of ACTOR_ENVIRONMENT_REGISTRY, got {actor_class_fqn!r}; set "
            f"ACTOR_ENVIRONMENT_REGISTRY[{actor_class_fqn!r}] to an interpreter's path, or to PY_EXECUTABLES.SYSTEM"
        )
    return ACTOR_ENVIRONMENT_REGISTRY[actor_class_fqn]


def make_actor_runtime_env(actor_class_fqn: str) -> dict[str, Any]:
    """Ray's ``runtime_env`` for the workers of a class; empty where no interpreter was set.

    That of a virtual environment comes with the variables that name its directory.
    """
    if actor_class_fqn not in ACTOR_ENVIRONMENT_REGISTRY:
        return {}
    executable = get_actor_python_env(actor_class_fqn)
    directory = Path(executable).absolute().parent.parent
    names = ("VIRTUAL_ENV", "UV_PROJECT_ENVIRONMENT") if (directory / "pyvenv.cfg").is_file() else ()
    return {"py_executable": executable, "env_vars": dict.fromkeys(names, str(directory))}
