"""The other partitions of a data set, in this process: asked by queries as over a network, which tests can look at."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from graphlearn_dist import _C
from graphlearn_dist.core import to_tensor
from graphlearn_dist.distributed.partitions.partition_service import PartitionService
from graphlearn_dist.distributed.partitions.rounds import AnyExchange, Rounds
from tests.support.queries import joined


@dataclass(frozen=True)
class AskedQuery:
    """What a partition was asked.

    Attributes:
        partition: which one.
        kind: ``"hop"``, ``"rows"``, ``"owned"``, ``"has_edges"``, ``"induced"`` or ``"degrees"``.
        arguments: what ``_C.hop_query`` and so on take to make it.
    """

    partition: int
    kind: str
    arguments: tuple[Any, ...]

    def ids(self) -> list[torch.Tensor]:
        """The ids asked for, part by part, int64."""
        match self.kind:
            case "hop":
                found = [part[1] for part in self.arguments[0]]
            case "induced":
                found = [part[2] for part in self.arguments[0]]
            case "has_edges" | "degrees":
                found = [self.arguments[1]]
            case _:
                found = list(self.arguments[1])
        return [ids.long() for ids in found]

    def ids_by_store(self) -> dict[str, torch.Tensor]:
        """The ids whose rows are asked for, by store."""
        return dict(zip(self.arguments[0], self.ids(), strict=True))


class _Answer:
    """What a peer gives when it is waited for; nobody may come to that where another answer was an error."""

    def __init__(self, give: Callable[[], Any]) -> None:
        self._give = give

    def __await__(self) -> Generator[None, None, Any]:
        yield from ()
        return self._give()


class DirectPeers:
    """See ``partition_peers.Peers``.

    Args:
        services: the partitions.

    Attributes:
        asked: what they were asked, in that order.
    """

    times = (0, 0, 0, 0)

    def __init__(self, services: Sequence[PartitionService]) -> None:
        self.services = services
        self.asked: list[AskedQuery] = []

    def run(self, make: Callable[[], AnyExchange]) -> Awaitable[AnyExchange]:
        return Rounds(make(), self._send)

    def _send(self, partition: int, head: torch.Tensor, payload: torch.Tensor) -> _Answer:
        kind, arguments = _C.decode_query(head, payload)
        query = self.altered(AskedQuery(partition, kind, _as_tensors(arguments)))
        self.asked.append(query)
        return _Answer(lambda: self.answer(query))

    def altered(self, query: AskedQuery) -> AskedQuery:
        """What is asked in place of a query: the same."""
        return query

    def answer(self, query: AskedQuery) -> tuple[torch.Tensor, torch.Tensor]:
        """The answer of a partition, as bytes."""
        encoded = getattr(_C, f"{query.kind}_query")(*query.arguments)
        head, segments, _ = self.services[query.partition].native.answer(encoded.head, joined(encoded.payload()))
        return torch.frombuffer(bytearray(head), dtype=torch.uint8), joined(segments)

    def asked_as(self, kind: str) -> list[AskedQuery]:
        """The queries of a kind."""
        return [query for query in self.asked if query.kind == kind]


def _as_tensors(value: Any) -> Any:
    """Capsules as tensors, in lists and tuples."""
    if isinstance(value, (list, tuple)):
        return type(value)(_as_tensors(each) for each in value)
    return to_tensor(value) if type(value).__name__ == "PyCapsule" else value
