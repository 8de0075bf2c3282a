"""Which engine a cluster runs on."""

from __future__ import annotations

import importlib.util
import os
import sys

from ...errors import InvalidArgumentError
from .base import ActorBackend
from .local import LocalBackend

BACKENDS = ("auto", "local", "ray")


def choose_backend(name: str = "auto") -> ActorBackend:
    """The engine of that name.

    ``auto`` takes Ray where this process is connected to it, or where ``RAY_ADDRESS`` names a cluster; else local
    processes.

    Raises:
        InvalidArgumentError: there is no such engine.
        ImportError: Ray is asked for and not installed.
    """
    if name not in BACKENDS:
        raise InvalidArgumentError(f"backend: expected one of {BACKENDS}, got {name!r}")
    if name == "auto":
        ray = sys.modules.get("ray")
        connected = ray is not None and ray.is_initialized()
        name = "ray" if connected or "RAY_ADDRESS" in os.environ else "local"
    if name == "local":
        return LocalBackend()
    require_ray()
    from .ray_engine import RayBackend, init_ray

    init_ray()
    return RayBackend()


def require_ray() -> None:
    """Raises ``ImportError``, which says what to install, where Ray is not."""
    if importlib.util.find_spec("ray") is None:
        raise ImportError(
            "backend 'ray' needs Ray, which is not installed: pip install 'graphlearn_dist[ray]'; "
            "backend='local' runs on processes of this machine without it"
        )
