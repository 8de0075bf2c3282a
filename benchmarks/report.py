"""What a run of bench_sampling.py says: ratios against the goals, and a plot."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import Any

from harness import median

OURS = "graphlearn_dist"
PYG = ("pyg-lib", "torch-sparse")
DGL = ("DGL fused",)
KINDS = ("typed", "weighted", "labor", "temporal")  # of groups that stand for themselves
Row = dict[str, Any]


def summarize(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Ratios of this project to its peers, each with the goal and whether it is met; only what was measured."""
    measured = [row for row in rows if "problem" not in row]
    plain = [row for row in measured if not any(kind in row["group"] for kind in KINDS)]
    lines = []
    for threads in sorted({row["threads"] for row in plain}):
        here = [row for row in plain if row["threads"] == threads]
        what = f"{threads} thread{'s' * (threads > 1)}"
        lines.append(_compare(here, f"sampling, {what}", "sample", "medges_per_s", None, 4.0 if threads == 1 else None))
        lines.append(_compare(here, f"sampling + features, {what}", "features", "medges_per_s", None, None))
        lines.append(_compare(here, f"loader, {what}, PyG", "loader", "batches_per_s", PYG, 3.0))
        lines.append(_compare(here, f"loader, {what}, DGL", "loader", "batches_per_s", DGL, 1.5))
    lines.append(_scaling(plain))
    for kind in KINDS:
        special = [row for row in measured if kind in row["group"]]
        lines.append(_compare(special, f"sampling, 1 thread, {kind}", "sample", "medges_per_s", None, None))
    return [line for line in lines if line is not None]


def _best(rows: Iterable[Row], figure: str) -> Row | None:
    return max(rows, key=lambda row: median(row[figure]), default=None)


def _compare(
    rows: Sequence[Row], what: str, mode: str, figure: str, peers: Sequence[str] | None, goal: float | None
) -> dict[str, Any] | None:
    """This project's best setting over the best one of the peers (all where None)."""
    rows = [row for row in rows if row["mode"] == mode]
    ours = _best((row for row in rows if row["peer"] == OURS), figure)
    other = _best((row for row in rows if row["peer"] != OURS and (peers is None or row["peer"] in peers)), figure)
    if ours is None or other is None:
        return None
    ratio = median(ours[figure]) / median(other[figure])
    by_cpu = median(ours["medges_per_cpu_s"]) / median(other["medges_per_cpu_s"])
    best = "the best peer, " if peers is None else ""
    text = f"{what}: {ratio:.2f} times {best}{other['peer']} ({other['ids']})"
    if ours["threads"] == 1:  # with more, some peers have worker processes, whose time is not seen
        text += f"; {by_cpu:.2f} times in edges per CPU second"
    return _line(text, what, ratio, goal)


def _scaling(rows: Sequence[Row]) -> dict[str, Any] | None:
    """Two threads over one, sampling, with the ids that are fastest with one."""
    ours = [row for row in rows if row["peer"] == OURS and row["mode"] == "sample"]
    one = _best((row for row in ours if row["threads"] == 1), "medges_per_s")
    if one is None:
        return None
    two = _best((row for row in ours if row["threads"] == 2 and row["ids"] == one["ids"]), "medges_per_s")
    if two is None:
        return None
    ratio = median(two["medges_per_s"]) / median(one["medges_per_s"])
    return _line(f"sampling, two threads: {ratio:.2f} times one thread", "two threads over one", ratio, 1.8)


def _line(text: str, what: str, ratio: float, goal: float | None) -> dict[str, Any]:
    verdict = "" if goal is None else f"; goal {goal:g}, {'met' if ratio >= goal else 'NOT met'}"
    return {"what": what, "ratio": ratio, "goal": goal, "text": text + verdict}


# --- table for the README ------------------------------------------------------------------------------------------


def markdown(rows: Sequence[Row]) -> str:
    """A Markdown table: a line per library, a column per kind of work, each with the ids that are faster.

    Cells are medians of million sampled edges per second; loaders in batches per second.
    """
    measured = [row for row in rows if "problem" not in row]
    columns = sorted({_column(row) for row in measured}, key=_column_order)
    names = dict.fromkeys(row["peer"] for row in measured)
    lines = ["| library | " + " | ".join(columns) + " | edges, nodes of a batch |", "|---" * (len(columns) + 2) + "|"]
    for name in names:
        own = [row for row in measured if row["peer"] == name]
        cells = [_cell([row for row in own if _column(row) == column]) for column in columns]
        work = f"{own[0]['edges_per_batch'] / 1e3:.0f} k, {own[0]['nodes_per_batch'] / 1e3:.0f} k"
        kind = " (with replacement)" if own[0]["replace"] else " (again per layer)" if own[0]["kind"] else ""
        lines.append(f"| {name} | " + " | ".join(cells) + f" | {work}{kind} |")
    return "\n".join(lines)


def _column(row: Row) -> str:
    special = next((kind for kind in KINDS if kind in row["group"]), None)
    if special is not None:
        return special
    return f"{row['mode']}, {row['threads']} thread{'s' * (row['threads'] > 1)}"


def _column_order(column: str) -> tuple[int, int, str]:
    modes = ("sample", "features", "loader")
    mode = column.split(",")[0]
    return (modes.index(mode), 0, column) if mode in modes else (len(modes), KINDS.index(column), column)


def _cell(rows: Sequence[Row]) -> str:
    """The best figure of some rows; empty where there are none."""
    if not rows:
        return ""
    figure = "batches_per_s" if rows[0]["mode"] == "loader" else "medges_per_s"
    return f"{max(median(row[figure]) for row in rows):.3g}"


# --- plot --------------------------------------------------------------------------------------------------------

_BAR, _GAP, _LEFT, _WIDTH = 16, 4, 330, 560
_COLORS = {True: "#1b6ca8", False: "#b0b7bd"}


def write_plot(path: Path, rows: Sequence[Row], limits: dict[str, float]) -> Path:
    """Bars of edges per second (median; the line spans smallest to largest), one block per group and mode, as SVG."""
    parts, top = [], 30
    largest = max((max(row["medges_per_s"]) for row in rows if "problem" not in row), default=1.0)
    for title, block in _blocks(rows):
        parts.append(_text(10, top, title, weight="bold"))
        top += _BAR
        for row in block:
            parts += _bar(row, top, largest)
            top += _BAR + _GAP
        top += _BAR
    ceiling = (
        f"memcpy {limits['memcpy_bytes'] / 1e9:.1f} GB/s, {limits['random_4_byte_reads'] / 1e6:.0f} M random reads/s"
    )
    parts.append(_text(10, top, f"million sampled edges per second; one thread of this machine: {ceiling}"))
    size = f'width="{_LEFT + _WIDTH + 100}" height="{top + 20}"'
    style = 'font-family="sans-serif" font-size="12"'
    body = "\n".join(parts)
    path.write_text(f'<svg xmlns="http://www.w3.org/2000/svg" {size} {style}>\n{body}\n</svg>\n')
    return path


def _blocks(rows: Sequence[Row]) -> list[tuple[str, list[Row]]]:
    """Rows with figures by (group, mode), in the order measured, fastest first within."""
    blocks: dict[str, list[Row]] = {}
    for row in rows:
        if "problem" not in row:
            blocks.setdefault(f"{row['mode']}, {row['group']}", []).append(row)
    return [(title, sorted(block, key=lambda row: -median(row["medges_per_s"]))) for title, block in blocks.items()]


def _bar(row: Row, top: int, largest: float) -> list[str]:
    values = row["medges_per_s"]
    low, middle, high = (value / largest * _WIDTH for value in (min(values), median(values), max(values)))
    color, center = _COLORS[row["peer"] == OURS], top + _BAR / 2
    return [
        _text(_LEFT - 8, top + _BAR - 4, row["peer"] + (" (with replacement)" if row["replace"] else ""), anchor="end"),
        f'<rect x="{_LEFT}" y="{top}" width="{middle:.1f}" height="{_BAR}" fill="{color}"/>',
        f'<path d="M{_LEFT + low:.1f} {center}H{_LEFT + high:.1f}" stroke="black" stroke-width="1.5"/>',
        _text(_LEFT + high + 8, top + _BAR - 4, f"{median(values):.1f}"),
    ]


def _text(x: float, y: float, text: str, *, anchor: str = "start", weight: str = "normal") -> str:
    return f'<text x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}" font-weight="{weight}">{escape(text)}</text>'


if __name__ == "__main__":  # report.py results/sampling.json: the table and the ratios for the README
    content = json.loads(Path(sys.argv[1]).read_text())
    print(markdown(content["rows"]))
    print()
    print("\n".join(f"- {line['text']}" for line in content["summary"]))
