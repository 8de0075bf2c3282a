"""How a group of workers behaves beyond where it runs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from ...errors import InvalidArgumentError
from ...utils.units import parse_size
from ..actors.base import START_TIMEOUT_S
from ..training.compression import COMPRESSIONS
from .balance import STRATEGIES


@dataclass(frozen=True)
class GroupSettings:
    """See ``RayWorkerGroup``, whose arguments of these names they are."""

    restart_on_failure: bool = False
    max_restarts: int = 3
    stuck_timeout_s: float | None = None
    memory_limit: int | str | None = None
    enable_load_balancing: bool = False
    load_balancing_strategy: str = "round_robin"
    local_workers: Callable[[Mapping[str, Any]], Collection[int]] | None = None
    async_communication: bool | None = None
    enable_gradient_compression: bool = False
    gradient_compression: str = "fp16"
    start_timeout_s: float = START_TIMEOUT_S
    call_timeout_s: float | None = None

    def __post_init__(self) -> None:
        if self.max_restarts < 0:
            raise InvalidArgumentError(f"max_restarts: expected at least 0, got {self.max_restarts}")
        for name in ("stuck_timeout_s", "start_timeout_s", "call_timeout_s"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise InvalidArgumentError(f"{name}: expected a positive number of seconds, got {value}")
        if self.load_balancing_strategy not in STRATEGIES:
            raise InvalidArgumentError(
                f"load_balancing_strategy: expected one of {STRATEGIES}, got {self.load_balancing_strategy!r}"
            )
        if (self.load_balancing_strategy == "locality") != (self.local_workers is not None):
            raise InvalidArgumentError(
                f"local_workers: expected with load_balancing_strategy 'locality', and only there, got "
                f"{self.local_workers!r} with {self.load_balancing_strategy!r}"
            )
        if self.gradient_compression not in COMPRESSIONS:
            raise InvalidArgumentError(
                f"gradient_compression: expected one of {COMPRESSIONS}, got {self.gradient_compression!r}"
            )

    @property
    def memory_limit_bytes(self) -> int | None:
        """``memory_limit`` in bytes."""
        return None if self.memory_limit is None else parse_size(self.memory_limit, name="memory_limit")
