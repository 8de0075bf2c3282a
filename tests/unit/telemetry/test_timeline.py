"""Traces: what processes write, how clocks are brought together, the file for Perfetto, and what was waited for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from graphlearn_dist.cli import main
from graphlearn_dist.errors import InvalidArgumentError, StorageError
from graphlearn_dist.telemetry import trace
from graphlearn_dist.telemetry.timeline import (
    CriticalPath,
    ProcessSpans,
    Span,
    critical_path,
    enumerate_lanes,
    read_parts,
    read_trace,
    write_timeline,
)


def write_part(folder: Path, name: str, head: dict[str, Any], *items: dict[str, Any] | list[Any]) -> None:
    lines = [{"process": name, "pid": 1, **head}, *items]
    (folder / f"{name}-1.part.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def item(name: str, at: int, ns: int, batch: str | None = "a.0.0") -> list[Any]:
    return [name, "t", at, 0, at + ns, batch]


def test_a_process_writes_what_is_read_back(tmp_path: Path) -> None:
    tracer = trace.Tracer(tmp_path / "new", "server 0, worker 1", "host", (2, 3))
    for index in range(5):
        tracer.span("send", "batches", 100, (10, 0, index), ended_ns=150 + index)
        tracer.made(20, 40, (10, 0, index))
    tracer.span("other", 't"', 120, None, ended_ns=130)
    tracer.loop(0, 5, "loop", (10, 0, 2))
    tracer.loop(7, 9, "loop", (10, 0, 3))
    tracer.loop(11, 12, "loop", (10, 0, 4))
    tracer.close()
    (process,) = read_parts(tmp_path / "new")
    assert process.process == "server 0, worker 1"
    assert [(one.name, one.batch) for one in process.spans] == [
        ("wait", "a.0.2"),
        ("compute", "a.0.3"),
        ("wait", "a.0.3"),
        *[("make", "a.0.3"), ("make", "a.0.2"), ("sample", "a.0.2"), ("sample", "a.0.3")],
        *[("rows", "a.0.3"), ("rows", "a.0.2")],
        ("send", "a.0.3"),
        ("send", "a.0.2"),
        ("other", None),
    ]
    at = {(one.name, one.batch): (one.begin_ns, one.end_ns) for one in process.spans}
    assert at["send", "a.0.3"] == (100, 153)
    assert at["sample", "a.0.3"] == (20, 40)
    assert at["rows", "a.0.3"] == (40, at["make", "a.0.3"][1])
    assert at["make", "a.0.3"][0] == 20
    assert at["compute", "a.0.3"] == (7, 9)
    assert at["wait", "a.0.2"][0] == 5
    assert process.spans[-1].track == 't"'


def test_a_full_disk_ends_the_trace_and_nothing_else(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tracer = trace.Tracer(tmp_path, "server 0", "host")
    tracer.close()
    tracer._file = open("/dev/full", "a")  # noqa: SIM115 a disk that takes nothing
    for _ in range(2):
        tracer.span("sample", "batches", 100, None)
        tracer.close()
    assert [record.message.startswith("trace: /dev/full cannot be written") for record in caplog.records] == [True]


def test_an_earlier_jobs_parts_are_cleared(tmp_path: Path) -> None:
    trace.clear_parts(tmp_path / "none")
    write_part(tmp_path, "server 0", {"host": "a", "wall_ns": 0})
    (tmp_path / "other.json").write_text("")
    trace.clear_parts(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["other.json"]


def test_clocks_of_hosts(tmp_path: Path) -> None:
    """The registry's host has measured an offset of 0, another one its own; a worker there has that of its host; a host
    that measured nothing is placed by the time of day."""
    write_part(tmp_path, "server 0", {"host": "a", "wall_ns": 1000}, {"offset_ns": 0}, item("x", 10, 1))
    write_part(tmp_path, "client 0", {"host": "b", "wall_ns": 4000}, {"offset_ns": 2900}, item("x", 10, 1))
    write_part(tmp_path, "worker", {"host": "b", "wall_ns": 4000}, item("x", 11, 1))
    write_part(tmp_path, "odd", {"host": "c", "wall_ns": 500}, item("x", 700, 1))
    assert {one.process: one.spans[0].begin_ns for one in read_parts(tmp_path)} == {
        "server 0": 10,
        "client 0": 2910,
        "worker": 2911,
        "odd": 200,
    }


def test_files_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="found none"):
        read_trace(tmp_path)
    with pytest.raises(InvalidArgumentError, match="cannot read"):
        read_trace(tmp_path / "no.json")
    (tmp_path / "odd.json").write_text("{}")
    with pytest.raises(StorageError, match=r"odd\.json is none"):
        read_trace(tmp_path / "odd.json")
    write_part(tmp_path, "cut", {"host": "a", "wall_ns": 0}, item("x", 1, 1))
    path = tmp_path / "cut-1.part.jsonl"
    path.write_text(path.read_text() + '["y", "tr')
    assert [one.name for one in read_parts(tmp_path)[0].spans] == ["x"]
    path.write_text(path.read_text() + "\n" + json.dumps(item("z", 2, 1)) + "\n")
    with pytest.raises(StorageError, match="line 3: expected a span"):
        read_parts(tmp_path)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b'{"process": "a", "pid": 1, "host": "h", "wall_ns": "x"}', "line 1: expected a span"),
        (b'{"process": "a", "pid": 1, "host": "h", "wall_ns": 1e999}', "line 1: expected a span"),
        (b"\xff\xfe", "line 1: expected a span"),
        (b'["x", "t", 1e999, 0, 5, null]', "line 2: expected a span"),
        (b'["x", "t", 1, 0, 5]', "line 2: expected a span"),
        (b"\xff\xfe", "line 2: expected a span"),
        (b"5", "line 2: expected a span"),
    ],
)
def test_damaged_lines(line: bytes, said: str, tmp_path: Path) -> None:
    head = json.dumps({"process": "a", "pid": 1, "host": "h", "wall_ns": 0}).encode()
    whole = json.dumps(item("x", 1, 1)).encode()
    lines = [line, whole, whole] if "line 1" in said else [head, line, whole]
    (tmp_path / "a-1.part.jsonl").write_bytes(b"\n".join(lines))
    with pytest.raises(StorageError, match=said):
        read_parts(tmp_path)


def test_files_that_cannot_be_read_or_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A message each, from the command too."""
    write_part(tmp_path, "client 0", {"host": "a", "wall_ns": 0}, ["loop", "l", 5, 8, 9, "a.0.0"])
    for out in (tmp_path, tmp_path / "no" / "trace.json"):
        assert main(["trace", str(tmp_path), "--out", str(out)]) == 1
        assert f"trace: cannot write {out}: " in capsys.readouterr().err
    (tmp_path / "folder.part.jsonl").mkdir()
    with pytest.raises(StorageError, match=r"cannot read .*folder\.part\.jsonl: Is a directory"):
        read_parts(tmp_path)
    (tmp_path / "odd.json").write_text('{"traceEvents": [{"ph": "X", "pid": 0, "ts": 1e999, "dur": 1}]}')
    assert main(["trace", str(tmp_path / "odd.json")]) == 1
    assert "odd.json is none: OverflowError" in capsys.readouterr().err
    assert main(["launch", "--metrics", "99999", "train.py"]) == 1
    assert "--metrics: expected [HOST:]PORT, got '99999'" in capsys.readouterr().err
    assert main(["launch", "--trace-batches", "1-2", "train.py"]) == 1
    assert "--trace-batches: expected --trace FILE with it" in capsys.readouterr().err


def test_batches_of_which_only_the_loop_is_known() -> None:
    """Their makers ran elsewhere, or were killed: nothing is said of what they did."""
    found = critical_path(
        [ProcessSpans("client 0", 1, "a", [Span("compute", "l", 0, 2), Span("wait", "l", 2, 9, "a.0.1")])]
    )
    assert found.wait_ns == {"unseen": 7}
    assert "who made it left nothing" in str(found)
    assert "copy the folders of all hosts together" in found.advice()


def test_a_process_that_was_killed_before_it_wrote(tmp_path: Path) -> None:
    """It has no spans; those of the others are read."""
    write_part(tmp_path, "whole", {"host": "a", "wall_ns": 0}, item("x", 1, 1))
    (tmp_path / "early-2.part.jsonl").touch()
    assert [[one.name for one in process.spans] for process in read_parts(tmp_path)] == [["x"]]
    (tmp_path / "whole-1.part.jsonl").unlink()
    with pytest.raises(StorageError, match="empty file"):
        read_parts(tmp_path)


def test_lanes_hold_no_two_spans_that_cross() -> None:
    spans = [
        Span("a", "t", 0, 10),
        Span("b", "t", 2, 4),
        Span("c", "t", 3, 12),
        Span("d", "t", 5, 9),
        Span("e", "u", 5, 6),
        Span("f", "t", 11, 13),
    ]
    lanes = [(track, [one.name for one in held]) for _, (track, held) in enumerate_lanes(spans)]
    assert lanes == [("t", ["a", "b", "d", "f"]), ("t", ["c"]), ("u", ["e"])]


def job() -> list[ProcessSpans]:
    """Two batches: one is asked for before its worker has begun; of the other only the way is waited for."""
    worker = [
        Span("make", "batches", 10, 60, "a.0.0"),
        Span("sample", "batches", 10, 40, "a.0.0"),
        Span("partitions", "other partitions", 15, 35, "a.0.0"),
        Span("rows", "batches", 40, 60, "a.0.0"),
        Span("send", "ring", 60, 65, "a.0.0"),
        Span("make", "batches", 60, 70, "a.0.1"),
    ]
    server = [Span("fetch_batch", "client", 0, 66, "a.0.0")]
    loop = [
        Span("wait", "loop", -30, -20, "a.0.9"),
        Span("compute", "loop", -20, -20, "a.0.0"),
        Span("wait", "loop", 0, 80, "a.0.0"),
        Span("compute", "loop", 80, 90, "a.0.1"),
        Span("wait", "loop", 90, 95, "a.0.1"),
    ]
    return [
        ProcessSpans("worker", 3, "a", worker),
        ProcessSpans("server 0", 2, "a", server),
        ProcessSpans("client 0", 1, "a", loop),
    ]


def test_what_was_waited_for() -> None:
    path = critical_path(job())
    expected = {"not begun": 10, "sample": 10, "partitions": 20, "rows": 20, "send": 5, "way": 20}
    assert path == CriticalPath(3, 10, expected, {"worker": 85}, start_ns=10)
    text = str(path)
    assert text.splitlines()[0] == "3 batches: 11% computing, 89% waiting, after 0.0 s for the first"
    assert "21.1%  other partitions were asked for it" in text
    with pytest.raises(InvalidArgumentError, match="loop"):
        critical_path(job()[:2])


@pytest.mark.parametrize("stage", ["not begun", "sample", "rows", "partitions", "send", "way"])
def test_advice_follows_the_largest_share(stage: str) -> None:
    advice = {name: CriticalPath(1, 1, {name: 9, "other": 1}, {}).advice() for name in (stage, "unknown")}
    assert advice[stage] != advice["unknown"]
    assert CriticalPath(1, 100, {stage: 9}, {}).advice() == "Training is what takes the time."


def test_the_timeline_is_read_back(tmp_path: Path) -> None:
    write_timeline(job(), tmp_path / "t.json")
    assert critical_path(read_trace(tmp_path / "t.json")) == critical_path(job())
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    arrows = [(event["ph"], event["id"], event["ts"]) for event in events if event.get("cat") == "batch"]
    assert arrows == [
        ("s", "a.0.0", 0.04),
        ("s", "a.0.1", 0.09),
        ("t", "a.0.0", 0.096),
        ("f", "a.0.9", 0.01),
        ("f", "a.0.0", 0.11),
        ("f", "a.0.1", 0.125),
    ]
