"""Draws docs/images: `python release/pictures.py`. The numbers are those of the benchmarks' results."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from xml.sax.saxutils import escape

ROOT = Path(__file__).resolve().parents[1]
IMAGES = ROOT / "docs" / "images"
INK, SOFT, SERVER, TRAINER, OURS, PEER = "#1f2933", "#52606d", "#dbeafe", "#fef3c7", "#1b6ca8", "#b0b7bd"
_PEERS = {
    "torch-sparse": "PyG over torch-sparse",
    "GLT, seeded": "GraphLearn-for-PyTorch",
    "DGL fused": "DGL, fused",
    "DGL fused, default heap": "DGL, fused",  # by whichever heap is faster
}


def _text(x: float, y: float, text: str, *, size: int = 14, anchor: str = "middle", bold: bool = False) -> str:
    weight = ' font-weight="bold"' if bold else ""
    return f'<text x="{x:g}" y="{y:g}" font-size="{size}" text-anchor="{anchor}"{weight}>{escape(text)}</text>'


def _box(x: float, y: float, width: float, height: float, fill: str, title: str, lines: Sequence[str]) -> list[str]:
    parts = [
        f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="8" fill="{fill}" stroke="{SOFT}"/>',
        _text(x + width / 2, y + 26, title, size=16, bold=True),
    ]
    return parts + [_text(x + width / 2, y + 50 + 21 * row, line) for row, line in enumerate(lines)]


def _arrow(x1: float, y1: float, x2: float, y2: float, *, both: bool = False) -> str:
    start = ' marker-start="url(#head)"' if both else ""
    return (
        f'<line x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}" stroke="{INK}" stroke-width="2" '
        f'marker-end="url(#head)"{start}/>'
    )


def _picture(width: int, height: int, title: str, parts: Sequence[str]) -> str:
    box = f"0 0 {width} {height}"
    head = (
        '<marker id="head" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" markerHeight="7" '
        f'orient="auto-start-reverse"><path d="M0 0L8 4L0 8Z" fill="{INK}"/></marker>'
    )
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{box}" font-family="sans-serif" fill="{INK}">',
            f"<title>{escape(title)}</title>",
            f"<defs>{head}</defs>",
            f'<rect width="{width}" height="{height}" fill="white"/>',
            *parts,
            "</svg>\n",
        ]
    )


def architecture() -> str:
    """Two trainers above two servers; there may be any number of each."""
    parts: list[str] = []
    for rank, x in enumerate((20, 400)):
        has = ["model and optimizer, no graph", "loader: gives PyG Data"]
        parts += _box(x, 16, 300, 96, TRAINER, f"trainer {rank}", has)
        lines = ["sampling workers", "partition, memory-mapped:", "topology, features, labels, splits"]
        parts += _box(x, 216, 300, 118, SERVER, f"server {rank}", lines)
        parts += [_arrow(x + 120, 112, x + 120, 214), _arrow(x + 180, 216, x + 180, 114)]
        parts += [_text(x + 112, 168, "batch indices", anchor="end"), _text(x + 188, 168, "batches", anchor="start")]
    parts += [_arrow(322, 64, 398, 64, both=True), _text(360, 50, "gradients", size=13)]
    parts += [_arrow(322, 275, 398, 275, both=True), _text(360, 258, "each hop", size=13)]
    hop = "A hop is split by owner; the own share is sampled while peers answer; answers are put in the order asked."
    parts += [_text(360, 362, hop, size=13)]
    return _picture(720, 380, "Trainers ask servers for batches; servers ask each other for what lies elsewhere", parts)


def sampling() -> str:
    """Edges sampled a second by one thread, of the results of benchmarks/bench_sampling.py; the better width of ids."""
    rows = json.loads((ROOT / "benchmarks" / "results" / "sampling.json").read_text())["rows"]
    best: dict[str, float] = {}
    for row in rows:
        if row["mode"] == "sample" and row["group"] in ("1 thread, int32", "1 thread, int64") and "medges_per_s" in row:
            peer = _PEERS.get(row["peer"], row["peer"])
            best[peer] = max(best.get(peer, 0.0), statistics.median(row["medges_per_s"]))
    ordered = sorted(best.items(), key=lambda each: -each[1])
    parts = [_text(10, 26, "Sampled edges, million a second, one thread", size=16, anchor="start", bold=True)]
    for place, (peer, rate) in enumerate(ordered):
        y, width = 44 + 34 * place, 400 * rate / ordered[0][1]
        fill = OURS if peer == "graphlearn_dist" else PEER
        parts += [_text(190, y + 17, peer, anchor="end")]
        parts += [f'<rect x="200" y="{y}" width="{width:.1f}" height="24" fill="{fill}"/>']
        parts += [_text(208 + width, y + 17, f"{rate:.1f}", anchor="start", bold=peer == "graphlearn_dist")]
    return _picture(680, 52 + 34 * len(ordered), "Sampled edges a second, ours and peers", parts)


def top() -> str:
    """What ``graphlearn-dist top`` shows of a running job: the text of docs/telemetry.md, as in a terminal."""
    page = (ROOT / "docs" / "telemetry.md").read_text()
    lines = page.split("graphlearn-dist top job.json\n```\n\n```\n", 1)[1].split("\n```", 1)[0].splitlines()
    width, height = round(7.25 * max(map(len, lines))) + 40, 18 * len(lines) + 40
    rows = [
        f'<text x="20" y="{32 + 18 * row}" xml:space="preserve" font-family="monospace" font-size="12" '
        f'fill="{"#fde68a" if row == len(lines) - 1 else "#e5e7eb"}">{escape(line)}</text>'
        for row, line in enumerate(lines)
    ]
    frame = f'<rect width="{width}" height="{height}" rx="8" fill="{INK}"/>'
    return _picture(width, height, "A running job in a terminal", [frame, *rows])


PICTURES: dict[str, Callable[[], str]] = {"architecture.svg": architecture, "sampling.svg": sampling, "top.svg": top}


def main() -> None:
    IMAGES.mkdir(exist_ok=True)
    for name, draw in PICTURES.items():
        (IMAGES / name).write_text(draw())


if __name__ == "__main__":
    main()
