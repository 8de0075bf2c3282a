"""A job's processes as text, and what holds it up."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from .batch_counts import BatchSums
from .loader_stats import MadeStats
from .process_status import ProcessStatus, ServedStatus

_MB = 1e6
_HEAD = ("process", "host", "up", "memory", "cpu", "sent", "received", "")


@dataclass(frozen=True)
class Look:
    """What one process said, and what it had said at the look before.

    Attributes:
        name: of the process.
        host: its machine.
        now: what it said; None where it said nothing.
        before: earlier; None where rates are since it began.
        error: why it said nothing.
    """

    name: str
    host: str
    now: ProcessStatus | None
    before: ProcessStatus | None = None
    error: str = ""

    @property
    def seconds(self) -> float:
        """Between the two looks."""
        if self.now is None:
            return 1e-9
        return max(self.now.time_s - self.before.time_s if self.before is not None else self.now.uptime_s, 1e-9)

    def rate(self, value: Callable[[ProcessStatus], float]) -> float:
        """What of it grew, a second."""
        if self.now is None:
            return 0.0
        return (value(self.now) - (value(self.before) if self.before is not None else 0)) / self.seconds


def looks(found: Sequence[Look], before: Mapping[str, ProcessStatus]) -> list[Look]:
    """The same with what processes of these names had said before; one that was started again since has none."""
    paired = []
    for look in found:
        old = before.get(look.name)
        is_same = old is not None and look.now is not None and old.uptime_s < look.now.uptime_s
        paired.append(Look(look.name, look.host, look.now, old if is_same else None, look.error))
    return paired


def describe_job(found: Sequence[Look]) -> str:
    """A line for each process and each of its loaders, and a sentence on what holds the job up."""
    if not found:
        return "No process has joined the job yet."
    rows = [_HEAD, *(_row(look) for look in found)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(_HEAD) - 1)]
    lines = []
    for look, row in zip([None, *found], rows, strict=True):
        cells = [cell.ljust(width) for cell, width in zip(row, [*widths, 0], strict=True)]
        lines.append("  ".join(cells).rstrip())
        if look is not None:
            lines += [f"    {text}" for text in _work(look)]
    return "\n".join([*lines, "", bottleneck(found)])


def _row(look: Look) -> tuple[str, ...]:
    if look.now is None:
        return (look.name, look.host, *("-",) * 5, f"no answer: {look.error}")
    return (
        look.name,
        look.host,
        _duration(look.now.uptime_s),
        f"{look.now.private_bytes / _MB:,.0f} MB",
        f"{look.rate(lambda status: status.cpu_s):.0%}",
        f"{look.rate(_sent) / _MB:,.1f} MB/s",
        f"{look.rate(_received) / _MB:,.1f} MB/s",
        ", ".join(_remarks(look.now)),
    )


def _remarks(status: ProcessStatus) -> Iterator[str]:
    if status.restarts:
        yield f"started again {status.restarts} time{'s' if status.restarts > 1 else ''}"
    if status.budget_bytes:
        yield f"{status.used_bytes / _MB:,.0f} of {status.budget_bytes / _MB:,.0f} MB for batches given to loaders"


def _work(look: Look) -> Iterator[str]:
    """Its loaders, and those that it serves."""
    if look.now is None:
        return
    for loader in look.now.loaders:
        wait_s, compute_s, batches = _loop(look, loader.name)
        share = wait_s / max(wait_s + compute_s, 1e-9)
        rate = f"{batches / look.seconds:,.1f} batches/s" if batches else "no batch"
        yield f"{loader.name}: epoch {loader.epoch}, {loader.remaining} to come, {rate}, {share:.0%} waiting"
    for served in look.now.served:
        sums = _made(look, served)
        restarts = f", {served.made.restarts} restarted" if served.made.restarts else ""
        yield (
            f"for {served.client}: {served.made.where}{restarts}, {sums.batches / look.seconds:,.1f} batches/s, "
            f"{served.ready} ready, {_busy(sums, served.made, look.seconds):.0%} busy, "
            f"{_share_of_peers(sums):.0%} of that waiting for other partitions"
        )


def bottleneck(found: Sequence[Look]) -> str:
    """What holds the job up, in a sentence."""
    waits = [_loop(look, loader.name) for look in found if look.now is not None for loader in look.now.loaders]
    wait_s, compute_s = sum(wait for wait, _, _ in waits), sum(compute for _, compute, _ in waits)
    if not wait_s + compute_s:
        return "No loader gave a batch."
    share = wait_s / (wait_s + compute_s)
    if share < 0.2:
        return f"Training is what takes the time: loaders keep trainers waiting {share:.0%} of it."
    head = f"Trainers wait for batches {share:.0%} of the time: "
    served = [
        (_made(look, one), one, look.seconds) for look in found if look.now is not None for one in look.now.served
    ]
    if not served:
        return head + "they make them themselves; loader.stats() says where the time goes."
    peers = max(_share_of_peers(sums) for sums, _, _ in served)
    busy = max(_busy(sums, one.made, seconds) for sums, one, seconds in served)
    if peers > 0.5:
        return head + "batches wait for other partitions. More worker_concurrency, row_cache or locality may help."
    if max(sums.credit_ns / 1e9 / seconds for sums, _, seconds in served) > 0.5:
        return head + "servers wait until they have read what was sent. A larger prefetch_bytes may help."
    if busy > 0.7:
        return head + "sampling workers are busy. More workers or servers may help, as far as there are cores."
    return head + "batches are ready, or could be: their way to the trainers, or prefetch_size, is what is short."


def _loop(look: Look, name: str) -> tuple[float, float, int]:
    """Of a loader between two looks: seconds of waiting and of the rest, and batches."""
    assert look.now is not None
    now = next(loader for loader in look.now.loaders if loader.name == name)
    old = next((loader for loader in look.before.loaders if loader.name == name), None) if look.before else None
    if old is None:
        return now.wait_s, now.compute_s, now.batches
    return now.wait_s - old.wait_s, now.compute_s - old.compute_s, now.batches - old.batches


def _made(look: Look, served: ServedStatus) -> BatchSums:
    """What was made for a client's loader between two looks."""
    earlier = [] if look.before is None else look.before.served
    old = next((one for one in earlier if (one.client, one.number) == (served.client, served.number)), None)
    return served.made.sums if old is None else served.made.sums - old.made.sums


def _busy(sums: BatchSums, made: MadeStats, seconds: float) -> float:
    return min((sums.sample_ns + sums.rows_ns) / 1e9 / seconds / max(made.num_workers, 1), 1.0)


def _share_of_peers(sums: BatchSums) -> float:
    return min(sums.peers_ns / max(sums.sample_ns + sums.rows_ns, 1), 1.0)


def _sent(status: ProcessStatus) -> float:
    return sum(sent for sent, _ in status.peers.values())


def _received(status: ProcessStatus) -> float:
    return sum(received for _, received in status.peers.values())


def _duration(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
