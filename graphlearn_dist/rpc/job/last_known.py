"""Who had a place in a job last: of any number of visitors, a bounded number is remembered."""

from __future__ import annotations

from typing import Generic, TypeVar

Known = TypeVar("Known")

_KEPT = 64  # of each role


class LastKnown(Generic[Known]):
    """Something about the latest of those who had a role and rank. It serves errors: of earlier ones they say less."""

    def __init__(self) -> None:
        self._by_role: dict[str, dict[int, Known]] = {}

    def put(self, role: str, rank: int, known: Known) -> None:
        """Remembers it, in place of what was known of that role and rank."""
        ranks = self._by_role.setdefault(role, {})
        ranks.pop(rank, None)
        ranks[rank] = known
        if len(ranks) > _KEPT:
            del ranks[next(iter(ranks))]

    def get(self, role: str, rank: int) -> Known | None:
        """What is known of that role and rank; None for nothing."""
        return self._by_role.get(role, {}).get(rank)

    def drop(self, role: str, rank: int) -> None:
        """Forgets it; without effect where there is nothing."""
        self._by_role.get(role, {}).pop(rank, None)

    def drop_role(self, role: str) -> None:
        """Forgets all ranks of a role."""
        self._by_role.pop(role, None)
