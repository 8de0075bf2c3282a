"""How far a long task is, as whoever waits for it is told."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

_EVERY_S = 0.5


@dataclass(frozen=True)
class StageProgress:
    """How far a stage is.

    Attributes:
        stage: its name.
        done: rows or edges so far, in all passes.
        total: about how many there will be, or None where nobody knows.
        elapsed_s: since it began.
        finished: whether this is its end.
    """

    stage: str
    done: int
    total: int | None
    elapsed_s: float
    finished: bool = False

    @property
    def rate(self) -> float:
        """Rows a second."""
        return self.done / self.elapsed_s if self.elapsed_s > 0 else 0.0

    @property
    def eta_s(self) -> float | None:
        """Seconds until its end, at this rate; None where nobody knows."""
        if self.total is None or not self.done:
            return None
        return max(self.total - self.done, 0) / self.rate if self.rate else None

    def __str__(self) -> str:
        share = f"{min(self.done / self.total, 1):4.0%}" if self.total else f"{self.done:,}"
        eta = "" if self.eta_s is None or self.finished else f", {_clock(self.eta_s)} left"
        return f"{self.stage}: {share} in {_clock(self.elapsed_s)}, {self.rate / 1e6:.2f} M rows/s{eta}"


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"


Progress = Callable[[StageProgress], None]
Report = Callable[[int], None]  # told how many rows were done since it was told last


@contextmanager
def told(progress: Progress | None, stage: str, total: int | None) -> Iterator[Report]:
    """Has ``progress`` told of a stage, every half second while the block counts rows and when it ends well."""
    begin, done, last = time.monotonic(), 0, time.monotonic()

    def report(count: int) -> None:
        nonlocal done, last
        done += count
        now = time.monotonic()
        if progress is not None and now - last >= _EVERY_S:
            last = now
            progress(StageProgress(stage, done, total, now - begin))

    yield report
    if progress is not None:
        progress(StageProgress(stage, done, total, time.monotonic() - begin, finished=True))
