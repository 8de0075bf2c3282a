"""What every benchmark shares: who the machine is, CPU time of several processes, medians, tables, JSON."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import statistics
from collections.abc import Iterable, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np

import graphlearn_dist as glt

RESULTS = Path(__file__).parent / "results"


def machine() -> dict[str, str]:
    """A header that says where figures come from."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "unknown")
    cores = len(os.sched_getaffinity(0))
    return {
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "cpu": f"{model}, {cores} cores",
        "kernel": platform.release(),
        "versions": glt.show_config().replace("\n", "; "),
    }


def process_tree(root: int) -> list[int]:
    """A process and all its descendants that live now."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
            except OSError:
                continue  # it ended meanwhile
            children.setdefault(parent, []).append(int(entry.name))
    found = [root]
    for pid in found:
        found.extend(children.get(pid, []))
    return found


def cpu_seconds(pids: Iterable[int]) -> float:
    """Seconds of processor time the live threads of these processes have used, by the scheduler's own account (ns)."""
    total = 0
    for pid in pids:
        for task in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # a thread that ended meanwhile
                total += int((task / "schedstat").read_text().split()[0])
    return total / 1e9


def power_law_edges(num_nodes: int, num_edges: int, *, exponent: float = 0.75, seed: int = 0) -> np.ndarray:
    """int64 ``[2, num_edges]``: uniform targets, sources of power-law popularity (rank ** -exponent), ids shuffled."""
    generator = np.random.default_rng(seed)
    # Inverse of the cumulative distribution of rank ** -exponent on [1, num_nodes].
    top = 1.0 - exponent
    ranks = (1.0 + generator.random(num_edges) * (float(num_nodes) ** top - 1.0)) ** (1.0 / top)
    popular = generator.permutation(num_nodes)[np.minimum(ranks.astype(np.int64) - 1, num_nodes - 1)]
    return np.stack([popular, generator.integers(0, num_nodes, num_edges)])


GROUPS, ZONES_OF_GROUP = 8, 64  # of ``planted_edges``


def planted_edges(num_nodes: int, num_edges: int) -> tuple[np.ndarray, np.ndarray]:
    """int64 ``[2, num_edges]``, and the community of each node, int64: as many nodes as fill communities evenly.

    70 % of a node's edges stay in its community, and 12 % more in a group of 64 of them; a few nodes of each have most.
    """
    generator = np.random.default_rng(0)
    num_zones = GROUPS * ZONES_OF_GROUP
    size = num_nodes // num_zones
    zones = generator.permutation(np.repeat(np.arange(num_zones), size))
    members = np.argsort(zones, kind="stable").reshape(num_zones, size)
    targets = generator.integers(0, len(zones), num_edges)
    kind = generator.random(num_edges)
    zone, group = zones[targets], zones[targets] // ZONES_OF_GROUP
    in_group = group * ZONES_OF_GROUP + generator.integers(0, ZONES_OF_GROUP, num_edges)
    anywhere = generator.integers(0, num_zones, num_edges)
    source_zone = np.where(kind < 0.7, zone, np.where(kind < 0.82, in_group, anywhere))
    rank = (generator.random(num_edges) ** 4 * size).astype(np.int64)
    return np.stack([members[source_zone, rank], targets]), zones


def median(values: Sequence[float]) -> float:
    return statistics.median(values)


def spread(values: Sequence[float]) -> str:
    """Median with the smallest and the largest value."""
    return f"{median(values):.3g} ({min(values):.3g}-{max(values):.3g})"


def small_batch_arguments(description: str | None) -> argparse.ArgumentParser:
    """A command line that begins with a graph, and batches of it that are quickly made."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=400_000)
    parser.add_argument("--edges", type=int, default=6_000_000)
    parser.add_argument("--features", type=int, default=64)
    parser.add_argument("--fanout", type=int, nargs="+", default=[10, 5])
    parser.add_argument("--batch-size", type=int, default=512)
    return parser


def print_table(title: str, header: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """An aligned table."""
    cells = [[str(cell) for cell in row] for row in [header, *rows]]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]
    print(f"\n{title}")
    for number, row in enumerate(cells):
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
        if number == 0:
            print("  ".join("-" * width for width in widths))


def write_json(name: str, content: dict[str, Any]) -> Path:
    """Writes ``results/<name>.json`` with the machine's header."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps({"machine": machine(), **content}, indent=1) + "\n")
    return path
