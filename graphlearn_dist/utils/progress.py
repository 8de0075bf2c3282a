"""How far a long task is, as whoever waits for it is told."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


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
