"""How much memory a server gives to its clients, and to each of them."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ...config import RpcSettings, memory_budget
from ...data.disk_tier import FeatureMemory
from ...errors import InvalidArgumentError, ResourceInsufficientError
from ...utils.system.memory import memory_limit_bytes
from ...utils.units import parse_size

_DEFAULT_SHARE = 2  # of the memory that there is: partition, workers and other processes want some too
_ARENA_SHARE = 16
_SERVER_SHARE = 4  # of the memory for features, the part that answers to others use
_LEAST_FOR_BATCHES = 8  # the part that copies of rows leave
_SHARE_OF_FREE = 6  # the first loader gets at most this part, the next one a part less: some is left for all
_SMALLEST_WORKER_BYTES = 256 << 10  # less holds no batch worth a process
_MIB = 1 << 20


@dataclass(frozen=True)
class ServerMemory:
    """What a server's memory for its clients is divided into, in bytes.

    Attributes:
        batches: for the batches of loaders, ready or on their way.
        arena: for copies of what is on its way to processes of this host.
        row_cache: for copies of rows that other servers have.
    """

    batches: int
    arena: int
    row_cache: int = 0

    @classmethod
    def of(cls, budget: int | str | None, *, row_cache: int = 0) -> ServerMemory:
        """Divides a budget.

        Args:
            budget: for all, in bytes or as text such as ``"8GB"``. None: ``GLD_MEMORY_BUDGET``, else half of the
                least of the host's memory and its control groups' limits.
            row_cache: bytes of it for copies of rows that others have.

        Raises:
            InvalidArgumentError: it is no size, or too small, or copies would take it all.
        """
        wanted = memory_budget() if budget is None else budget
        total = memory_limit_bytes() // _DEFAULT_SHARE if wanted is None else parse_size(wanted, name="memory_budget")
        arena = min(RpcSettings().arena_bytes, total // _ARENA_SHARE)
        batches = total - arena - row_cache
        if row_cache and batches < total // _LEAST_FOR_BATCHES:
            raise InvalidArgumentError(
                f"row_cache: expected at most {(total - arena - total // _LEAST_FOR_BATCHES) / _MIB:.2f} MiB "
                f"of memory_budget={total / _MIB:.2f} MiB, whose rest batches need, got {row_cache / _MIB:.2f} MiB"
            )
        return cls(batches, arena, row_cache)


class Room:
    """Memory that one loader may use on a server.

    Attributes:
        nbytes: how much.
    """

    def __init__(self, budget: MemoryBudget, nbytes: int) -> None:
        self.nbytes = nbytes
        self._budget: MemoryBudget | None = budget

    def give_back(self) -> None:
        """It is used no more. Idempotent."""
        budget, self._budget = self._budget, None
        if budget is not None:
            budget.used_bytes -= self.nbytes
            budget.num_rooms -= 1


class FeatureRooms:
    """Memory for rows of features on disk, divided among a server and its loaders. On one thread.

    The server, which answers others, keeps a quarter. A loader gets half of what is free when it is opened, and gives
    it back when it is closed.

    Args:
        memory: what there is.
    """

    def __init__(self, memory: FeatureMemory) -> None:
        self.of_server = memory.part(1, _SERVER_SHARE)
        self._total = memory
        self._free_bytes = memory.own_bytes - self.of_server.own_bytes

    def take(self) -> FeatureMemory:
        """The memory of one more loader."""
        share = self._free_bytes // 2
        self._free_bytes -= share
        return replace(self._total, own_bytes=share)

    def give_back(self, memory: FeatureMemory) -> None:
        """A loader was closed."""
        self._free_bytes += memory.own_bytes


class MemoryBudget:
    """Memory that all loaders of a server may use together for batches, divided when they are opened. On one thread.

    A loader keeps what it got until it is closed and never gets more, so that those that do not read take nothing from
    those that do. The first gets a sixth of the budget, the second a seventh of what is left, the third an eighth: the
    32nd still has a 266th of all.

    Args:
        total_bytes: for all together.

    Attributes:
        total_bytes: for all together.
        used_bytes: in rooms that are not given back.
        num_rooms: how many these are.
    """

    def __init__(self, total_bytes: int) -> None:
        if total_bytes < _SHARE_OF_FREE * _SMALLEST_WORKER_BYTES:
            raise InvalidArgumentError(
                f"memory_budget: expected at least {_SHARE_OF_FREE * _SMALLEST_WORKER_BYTES} bytes for batches, "
                f"got {total_bytes}"
            )
        self.total_bytes = total_bytes
        self.used_bytes = 0
        self.num_rooms = 0

    def take(self, wanted_bytes: int, num_workers: int) -> Room:
        """Room for one more loader: what it wants and at least what its workers need, or its share of what is free.

        Args:
            wanted_bytes: all that it could use.
            num_workers: sampling workers that divide it.

        Raises:
            ResourceInsufficientError: there is too little left for it.
        """
        free = self.total_bytes - self.used_bytes
        share = free // (_SHARE_OF_FREE + self.num_rooms)
        needed = num_workers * _SMALLEST_WORKER_BYTES
        nbytes = min(max(wanted_bytes, needed), share)
        if nbytes < needed:
            raise ResourceInsufficientError(
                f"memory_budget: {num_workers} more sampling workers need {needed / _MIB:.2f} MiB on this server, "
                f"which gives a new loader {share / _MIB:.2f}: {self.num_rooms} loaders have "
                f"{self.used_bytes / _MIB:.2f} of its {self.total_bytes / _MIB:.2f} MiB for batches; close some of "
                "them, or raise memory_budget"
            )
        self.used_bytes += nbytes
        self.num_rooms += 1
        return Room(self, nbytes)
