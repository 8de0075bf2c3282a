"""Which engine a cluster runs on."""

from __future__ import annotations

import importlib.util
import os
import sys
from typing import Any

from ...errors import InvalidArgumentError
from .base import ActorBackend, Reservation
from .local import LocalActors

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
        return LocalActors()
    require_ray()
    from .ray_engine import RayActors, init_ray

    init_ray()
    return RayActors()


def reservation_of(held: Any) -> Reservation:
    """The bundles that somebody holds: a ``Reservation``, or one of Ray's placement groups.

    Raises:
        InvalidArgumentError: it is neither.
    """
    if isinstance(held, Reservation):
        return held
    ray_module = sys.modules.get("ray.util.placement_group")
    if ray_module is not None and isinstance(held, ray_module.PlacementGroup):
        from .ray_engine import RayActors

        return RayActors().adopt(held)
    raise InvalidArgumentError(
        f"placement_group: expected Ray's, or one of RayVirtualCluster.get_placement_groups(), got {held!r}"
    )


def require_ray() -> None:
    """Raises ``ImportError``, which says what to install, where Ray is not."""
    if importlib.util.find_spec("ray") is None:
        raise ImportError(
            "backend 'ray' needs Ray, which is not installed: pip install 'graphlearn_dist[ray]'; "
            "backend='local' runs on processes of this machine without it"
        )
