"""One timeline of the spans that the processes of a job wrote, and what their batches were waited for.

The file is in the format of Chrome's tracing, which Perfetto (ui.perfetto.dev) shows: a process for each process, a row
for each of its tracks, arrows from the worker that made a batch over the server that sent it to the loop that got it.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeAlias

from ..errors import InvalidArgumentError, StorageError
from ..utils.paths import to_path
from .trace import LOOP, MADE, PART_SUFFIX

WAIT, COMPUTE = "wait", "compute"
MAKE, FETCH = "make", "fetch_batch"
_STAGES = (MAKE, "sample", "rows", "partitions", "send")
# Of a part: name, track, beginning, the moment between two things or 0, end, batch. See ``Tracer``.
_Line: TypeAlias = tuple[str, str, int, int, int, str | None]


@dataclass(frozen=True, slots=True)
class Span:
    """Something that a process did.

    Attributes:
        name: what.
        track: where in the process.
        begin_ns, end_ns: by the clock of the registry's host.
        batch: for which batch; None where for none.
    """

    name: str
    track: str
    begin_ns: int
    end_ns: int
    batch: str | None = None


@dataclass
class ProcessSpans:
    """The spans of one process, by their beginnings."""

    process: str
    pid: int
    host: str
    spans: list[Span] = field(default_factory=list)


def read_parts(folder: str | Path) -> list[ProcessSpans]:
    """The files that the processes of a job wrote into a folder; a last line that was cut off is left out.

    Clocks are brought to that of the registry's host, as far as processes have measured it, else by the time of day.

    Raises:
        InvalidArgumentError: there are none.
        StorageError: a file is none of them.
    """
    found_paths = sorted(Path(folder).glob(f"*{PART_SUFFIX}"))
    paths = [path for path in found_paths if path.stat().st_size] or found_paths  # killed before it wrote: has no spans
    if not paths:
        raise InvalidArgumentError(f"trace: expected files *{PART_SUFFIX} in {folder}, found none")
    read = [_read_part(path) for path in paths]
    measured: dict[str, int] = {}
    for head, offset_ns, _ in read:
        if offset_ns is not None:
            measured.setdefault(str(head["host"]), offset_ns)
    walls = {str(head["host"]): int(head["wall_ns"]) for head, _, _ in read}
    reference = next((walls[host] + offset for host, offset in measured.items() if offset == 0), min(walls.values()))
    found = []
    for head, _, items in read:
        host = str(head["host"])
        offset = measured.get(host, walls[host] - reference)
        spans = [span for item in items for span in _spans_of(item, offset)]
        spans.sort(key=lambda span: (span.begin_ns, -span.end_ns))
        found.append(ProcessSpans(str(head["process"]), int(head["pid"]), host, spans))
    return found


def _spans_of(line: _Line, offset: int) -> Iterator[Span]:
    """What a line says, by another clock."""
    name, track, begin, middle, end, batch = line
    begin, middle, end = begin + offset, middle + offset, end + offset
    if name == MADE:
        yield Span(MAKE, track, begin, end, batch)
    first, second = {MADE: ("sample", "rows"), LOOP: (COMPUTE, WAIT)}.get(name, ("", name))
    if first and (begin < middle or name == MADE):
        yield Span(first, track, begin, middle, batch)
    yield Span(second, track, middle if first else begin, end, batch)


def _lines_of(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError as error:
        raise StorageError(f"trace: cannot read {path}: {error.strerror}") from error


def _read_part(path: Path) -> tuple[dict[str, Any], int | None, list[_Line]]:
    head: dict[str, Any] = {}
    offset_ns: int | None = None
    items: list[_Line] = []
    lines = _lines_of(path)
    for number, line in enumerate(lines):
        try:
            item = json.loads(line)
            if number == 0:
                head = {"process": str(item["process"]), "host": str(item["host"])}
                head |= {name: int(item[name]) for name in ("pid", "wall_ns")}
            elif isinstance(item, dict):
                offset_ns = int(item["offset_ns"])
            else:
                name, track, begin, middle, end, batch = item
                items.append((str(name), str(track), int(begin), int(middle), int(end), batch and str(batch)))
        except (ValueError, KeyError, TypeError, OverflowError) as error:
            if number == len(lines) - 1 and number > 0:
                break  # its process was killed while it wrote
            raise StorageError(f"{path}, line {number + 1}: expected a span, found {line[:80]!r}") from error
    if not head:
        raise StorageError(f"{path}: expected a process, found an empty file")
    return head, offset_ns, items


def read_trace(path: str | Path) -> list[ProcessSpans]:
    """The spans of a job: of a folder that its processes wrote into, or of a file that ``write_timeline`` made.

    Raises:
        InvalidArgumentError: there is nothing of the kind.
        StorageError: a file is damaged.
    """
    place = to_path("path", path)
    if place.is_dir():
        return read_parts(place)
    try:
        events = json.loads(place.read_text(encoding="utf-8"))["traceEvents"]
        found: dict[int, ProcessSpans] = {}
        for event in events:
            if event["ph"] == "M" and event["name"] == "process_name":
                name, _, pid = event["args"]["name"].rpartition(" (pid ")
                found[event["pid"]] = ProcessSpans(name, int(pid.rstrip(")")), "")
            elif event["ph"] == "X":
                begin, ns = round(event["ts"] * 1000), round(event["dur"] * 1000)
                batch = event["args"].get("batch")
                found[event["pid"]].spans.append(Span(event["name"], event["cat"], begin, begin + ns, batch))
    except OSError as error:
        raise InvalidArgumentError(f"trace: cannot read {place}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise StorageError(f"trace: {place} is none: {type(error).__name__}: {error}") from error
    return list(found.values())


def write_timeline(processes: Sequence[ProcessSpans], path: str | Path) -> None:
    """Writes one file for Perfetto and Chrome.

    Raises:
        StorageError: it cannot be written.
    """
    try:
        with open(path, "w", encoding="utf-8") as file:
            file.write('{"displayTimeUnit": "ms", "traceEvents": [')
            for number, event in enumerate(_events(processes)):  # never all at once: there are a dozen for each batch
                file.write(f"{',' if number else ''}\n{json.dumps(event)}")
            file.write("]}\n")
    except OSError as error:
        raise StorageError(f"trace: cannot write {path}: {error.strerror}") from error


def _events(processes: Sequence[ProcessSpans]) -> Iterator[dict[str, Any]]:
    """What the format calls events."""
    begin = min((process.spans[0].begin_ns for process in processes if process.spans), default=0)
    for number, process in enumerate(processes):
        name = f"{process.process} (pid {process.pid})"
        yield {"ph": "M", "pid": number, "name": "process_name", "args": {"name": name}}
        for lane, (track, span) in enumerate_lanes(process.spans):
            tid = lane + 1
            yield {"ph": "M", "pid": number, "tid": tid, "name": "thread_name", "args": {"name": track}}
            for one in span:
                yield {
                    "ph": "X",
                    "pid": number,
                    "tid": tid,
                    "name": one.name,
                    "cat": one.track,
                    "ts": (one.begin_ns - begin) / 1000,
                    "dur": (one.end_ns - one.begin_ns) / 1000,
                    "args": {"batch": one.batch} if one.batch else {},
                }
                yield from _arrow(one, number, tid, begin)


def enumerate_lanes(spans: Iterable[Span]) -> list[tuple[int, tuple[str, list[Span]]]]:
    """Spans of a process in lanes, by number, in which none overlaps another that does not hold it."""
    lanes: list[tuple[str, list[Span], list[int]]] = []  # track, spans, ends of those that are open
    for span in spans:
        for track, held, open_ends in lanes:
            while open_ends and open_ends[-1] <= span.begin_ns:
                open_ends.pop()
            if track == span.track and (not open_ends or span.end_ns <= open_ends[-1]):
                held.append(span)
                open_ends.append(span.end_ns)
                break
        else:
            lanes.append((span.track, [span], [span.end_ns]))
    return list(enumerate((track, held) for track, held, _ in lanes))


def _arrow(span: Span, pid: int, tid: int, begin: int) -> list[dict[str, Any]]:
    """A step of a batch's way, where a span is one."""
    phase = {MAKE: "s", FETCH: "t", WAIT: "f"}.get(span.name)
    if phase is None or span.batch is None:
        return []
    at = (span.begin_ns if phase == "s" else span.end_ns) - begin
    arrow = {"ph": phase, "pid": pid, "tid": tid, "name": "batch", "cat": "batch", "id": span.batch, "ts": at / 1000}
    return [arrow | {"bp": "e"}]


# --- what was waited for ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CriticalPath:
    """Where loops waited, added up over all trainers.

    Attributes:
        batches: that were given.
        compute_ns: time of the loops between batches.
        wait_ns: time in which they waited, by what their batch was at.
        by_maker: the same time by who made the batch.
        start_ns: beside all that, waits for the first batch of each loop: libraries are loaded then, workers start.
    """

    batches: int
    compute_ns: int
    wait_ns: dict[str, int]
    by_maker: dict[str, int]
    start_ns: int = 0

    def __str__(self) -> str:
        waited = sum(self.wait_ns.values())
        total = max(waited + self.compute_ns, 1)
        start = f", after {self.start_ns / 1e9:.1f} s for the first" if self.start_ns else ""
        shares = f"{self.compute_ns / total:.0%} computing, {waited / total:.0%} waiting"
        lines = [f"{self.batches} batches: {shares}{start}"]
        for name, ns in sorted(self.wait_ns.items(), key=lambda item: -item[1]):
            lines.append(f"  {ns / total:6.1%}  {_MEANING.get(name, name)}")
        for maker, ns in sorted(self.by_maker.items(), key=lambda item: -item[1])[:4]:
            lines.append(f"  {ns / total:6.1%}  for batches of {maker}")
        return "\n".join([*lines, self.advice()])

    def advice(self) -> str:
        """What to change, in a sentence."""
        waited = sum(self.wait_ns.values())
        if waited <= self.compute_ns / 4:
            return "Training is what takes the time."
        most = max(self.wait_ns, key=lambda name: self.wait_ns[name])
        return _ADVICE.get(most, f"Most of the waiting is at {most!r}.")


_MEANING = {
    "not begun": "its worker was at other batches, or nobody had asked for it",
    "sample": "it was sampled",
    "rows": "its rows were looked up",
    "partitions": "other partitions were asked for it",
    "send": "it was finished, and found no room on its way",
    "way": "it was on its way to the trainer, or taken apart there",
    "unseen": "unknown: who made it left nothing in this trace",
}
_ADVICE = {
    "not begun": "Workers are busy with other batches: more num_workers or servers, or a larger prefetch_size.",
    "sample": "Sampling takes the time: more num_workers, num_threads or servers; smaller fan-outs.",
    "rows": "Looking up rows takes the time: more num_workers; float16 features; row_cache.",
    "partitions": "Other partitions take the time: worker_concurrency, row_cache, locality, a better partitioner.",
    "send": "Finished batches wait for room: a larger buffer_size, or a faster way to the trainer.",
    "way": "Batches are on their way: a larger prefetch_size, or a faster network.",
    "unseen": "Who made the batches is not in this trace: copy the folders of all hosts together; a killed process "
    "lacks its last second.",
}


def critical_path(processes: Sequence[ProcessSpans]) -> CriticalPath:
    """For each moment in which a loop waited, what its batch was at.

    Raises:
        InvalidArgumentError: no loop is in the trace.
    """
    made: dict[str, list[Span]] = defaultdict(list)
    makers: dict[str, str] = {}
    for process in processes:
        for span in process.spans:
            if span.batch is not None and span.name in _STAGES:
                made[span.batch].append(span)
            if span.batch is not None and span.name == MAKE:
                makers[span.batch] = process.process
    loops = [loop for process in processes for loop in _loops(process)]
    if not loops:
        raise InvalidArgumentError(
            "trace: expected the loop of a loader, found none: no batch was given to one, or none of --trace-batches"
        )
    starts = [loop[0] for loop in loops if loop[0].name == WAIT]
    waits = [span for loop in loops for span in loop if span.name == WAIT and span not in starts]
    wait_ns: dict[str, int] = defaultdict(int)
    by_maker: dict[str, int] = defaultdict(int)
    for wait in waits:
        stages = made.get(wait.batch or "", [])
        for name, ns in _shares(wait, stages) if stages else [("unseen", wait.end_ns - wait.begin_ns)]:
            wait_ns[name] += ns
        if wait.batch in makers:
            by_maker[makers[wait.batch]] += wait.end_ns - wait.begin_ns
    compute = sum(span.end_ns - span.begin_ns for loop in loops for span in loop if span.name == COMPUTE)
    start_ns = sum(span.end_ns - span.begin_ns for span in starts)
    return CriticalPath(len(starts) + len(waits), compute, dict(wait_ns), dict(by_maker), start_ns)


def _loops(process: ProcessSpans) -> list[list[Span]]:
    """What each loop of a process did, in order. One that begins with a wait has its first batch there."""
    loops: dict[str, list[Span]] = defaultdict(list)
    for span in process.spans:
        if span.name in (WAIT, COMPUTE):
            loops[span.track].append(span)
    return list(loops.values())


def _shares(wait: Span, stages: Sequence[Span]) -> list[tuple[str, int]]:
    """A wait cut at the beginnings and ends of its batch's stages; of stages within each other the inner one counts."""
    cuts = sorted(
        {wait.begin_ns, wait.end_ns}
        | {t for s in stages for t in (s.begin_ns, s.end_ns) if wait.begin_ns < t < wait.end_ns}
    )
    begun = min((span.begin_ns for span in stages), default=None)
    shares = []
    for left, right in pairwise(cuts):
        inside = [span for span in stages if span.begin_ns <= left and right <= span.end_ns]
        if inside:
            name = min(inside, key=lambda span: span.end_ns - span.begin_ns).name
        else:
            name = "not begun" if begun is None or right <= begun else "way"
        shares.append(("sample" if name == MAKE else name, right - left))
    return shares
