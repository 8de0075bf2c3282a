"""Exchanges between partitions, carried out step by step where the RPC's engine is in Python, or nobody has a loop."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from typing import Any, Generic, TypeVar

import torch

from ..._C import Exchange
from ...core import to_tensor

AnyExchange = TypeVar("AnyExchange", bound=Exchange)

# Sends a query (head and payload, uint8 [n] each) to the holder of a partition; the answer is of the same form.
Send = Callable[[int, torch.Tensor, torch.Tensor], Awaitable[tuple[torch.Tensor, torch.Tensor]]]


class Rounds(Generic[AnyExchange]):
    """An exchange under way: its first round is sent at once. To be awaited once; gives the exchange."""

    def __init__(self, exchange: AnyExchange, send: Send) -> None:
        self._exchange = exchange
        self._send = send
        self._answers = self._send_next()

    def _send_next(self) -> list[Awaitable[tuple[torch.Tensor, torch.Tensor]]]:
        return [
            self._send(partition, to_tensor(head), to_tensor(payload))
            for partition, head, payload in self._exchange.next()
        ]

    def __await__(self) -> Generator[Any, None, AnyExchange]:
        return self._finish().__await__()

    async def _finish(self) -> AnyExchange:
        while self._answers:
            self._exchange.meanwhile()
            for place, answer in enumerate(self._answers):
                head, payload = await answer
                self._exchange.take(place, head, payload)
            self._exchange.stitch()
            self._answers = self._send_next()
        return self._exchange
