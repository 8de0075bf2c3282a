"""Who has something to show in a process, and how it is told to a monitoring system."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol


@dataclass(frozen=True)
class Metric:
    """A value at this moment.

    Attributes:
        name: without prefix, in Prometheus's manner: units at the end, ``_total`` of what only grows.
        help: what it is.
        value: now.
        labels: what tells it from others of its name.
    """

    name: str
    help: str
    value: float
    labels: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_counter(self) -> bool:
        """Whether it only grows."""
        return self.name.endswith("_total")


class MetricSource(Protocol):
    """An object that has something to show as long as it lives."""

    def metrics(self) -> Iterable[Metric]:
        """Its values now. Called from any thread; it must not wait for another process."""

    def status(self) -> Iterable[Any]:
        """What of it belongs to a ``ProcessStatus``: ``LoaderStatus``, ``ServedStatus``, ``Budget``, or (peer, bytes
        sent, bytes received). Called as ``metrics`` is."""


_sources: weakref.WeakSet[MetricSource] = weakref.WeakSet()
_changing = threading.Lock()


def register_source(source: MetricSource) -> None:
    """``collect`` asks this object from now on; it is kept by nobody."""
    with _changing:
        _sources.add(source)


def sources() -> list[MetricSource]:
    """The objects of this process."""
    with _changing:
        return list(_sources)


def collect() -> Iterator[Metric]:
    """The values of all objects of this process."""
    for source in sources():
        yield from source.metrics()
