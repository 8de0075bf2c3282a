"""The names of ``cluster.machines.ray_actor_environment_registry``, where the cluster layer's documents have them."""

from ..cluster.machines.ray_actor_environment_registry import (
    ACTOR_ENVIRONMENT_REGISTRY,
    get_actor_python_env,
    make_actor_runtime_env,
)

__all__ = ["ACTOR_ENVIRONMENT_REGISTRY", "get_actor_python_env", "make_actor_runtime_env"]
