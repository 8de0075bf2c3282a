"""Feature gather against the machine's random-row ceiling, and resident memory against the size of the data.

    python benchmarks/bench_gather.py

The ceiling is a loop that prefetches and copies the same rows of the same memory to a warm output, one thread, with
the prefetch distance that is best for each width. Both run in turns; rates are per second of processor time. Rows lie
in memory as torch gives it, which was moved to huge pages then; "small pages" is the gather before that. The resident
memory is that of a fresh process with graph and features loaded, less what it had before it loaded them.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import ceilings
import numpy as np
import torch
from ceilings import ROW_BYTES, seconds
from graphs import PowerLaw, default_cache, make_graph
from harness import median, print_table, spread, write_json
from peers.base import SAMPLE, Setting
from peers.driver import OURS, Entry, Worker, build, run

from graphlearn_dist import _C
from graphlearn_dist.core import thread_pool
from graphlearn_dist.data import Feature
from graphlearn_dist.data.huge_pages import wait_until_moved

GOAL = 0.8


def measure_width(width: int, args: argparse.Namespace) -> dict[str, Any]:
    """Rows per second of the gather and of the ceiling, round by round, for rows of so many bytes."""
    data = torch.empty(args.bytes // width, width // 4)  # in small pages, unless the system gives huge ones unasked
    data.view(torch.int32).random_(0, 1 << 23)
    bytes_ = data.numpy().view(np.uint8)
    rows = np.random.default_rng(1).integers(0, data.shape[0], args.out_bytes // width)
    out = np.zeros((rows.size, width), np.uint8)
    ids = torch.from_numpy(rows)
    store, pool = _C.RowStore([data]), thread_pool(1)
    small = [seconds(lambda: store.gather(ids, pool)) for _ in range(args.repeats + 1)]
    feature = Feature(data)
    if not torch.equal(feature[ids], data[ids]):
        raise SystemExit(f"rows of {width} bytes: the gather is wrong")
    wait_until_moved()
    ahead = ceilings.best_distance(bytes_, rows, out)
    result: dict[str, Any] = {"row_bytes": width, "ahead_bytes": ahead, "ours": [], "ceiling": []}
    result["small_pages"] = [rows.size / each for each in small[1:]]
    for number in range(args.repeats + 1):
        ceiling = seconds(lambda: ceilings.copy_rows(bytes_, rows, ahead, out))
        ours = seconds(lambda: feature[ids])
        if number:
            result["ceiling"].append(rows.size / ceiling)
            result["ours"].append(rows.size / ours)
    result["share"] = median([a / b for a, b in zip(result["ours"], result["ceiling"], strict=True)])
    return result


def measure_memory(args: argparse.Namespace) -> dict[str, Any]:
    """Bytes that a process grew by to hold graph and features, and after some batches, beside the bytes of both."""
    files = make_graph(PowerLaw(args.nodes, args.edges), args.cache)
    files.with_features(args.features)
    setting = Setting({"": str(files.directory)}, [15, 10, 5], 1024, 1, "int32", args.features)
    with Worker(Entry(OURS.label, "ours_init"), sys.executable, 1) as worker:
        loaded = build(worker, setting)
        batches = run(worker, SAMPLE, 0, 5)
    before = sum(loaded["resident_before"].values())
    stored = sum(loaded["stored"].values())
    grown = {
        "loaded": sum(loaded["resident_after"].values()) - before,
        "with_batches": sum(batches["resident"].values()) - before,
        "peak": loaded["peak"] - before,
    }
    ratios = {f"{name}_ratio": value / stored for name, value in grown.items()}
    return {**loaded["stored"], "imports": before, **grown, **ratios}


def print_memory(memory: dict[str, Any]) -> None:
    """The figures in GB and relative to the data."""
    print(
        f"\nmemory: {memory['graph'] / 1e9:.2f} GB of graph and {memory['features'] / 1e9:.2f} GB of features; "
        f"a process with nothing loaded has {memory['imports'] / 1e9:.2f} GB resident. It grew by"
    )
    for name, what in (
        ("loaded", "with both loaded"),
        ("with_batches", "after five batches"),
        ("peak", "at most, loading"),
    ):
        print(f"  {memory[name] / 1e9:.2f} GB, {memory[f'{name}_ratio']:.3f} times, {what}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--widths", type=int, nargs="+", choices=ROW_BYTES, default=list(ROW_BYTES))
    parser.add_argument("--bytes", type=int, default=1 << 30, help="of the rows")
    parser.add_argument("--out-bytes", type=int, default=200 << 20, help="of one gather")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--nodes", type=int, default=2_400_000, help="of the graph of the memory figure")
    parser.add_argument("--edges", type=int, default=124_000_000)
    parser.add_argument("--features", type=int, default=100)
    parser.add_argument("--cache", type=Path, default=default_cache())
    parser.add_argument("--name", default="gather", help="of the file in results/")
    parser.add_argument("--no-memory", action="store_true", help="leave out the memory figure")
    args = parser.parse_args()
    results = [measure_width(width, args) for width in args.widths]
    rows = [
        [
            result["row_bytes"],
            spread([rate / 1e6 for rate in result["ours"]]),
            spread([rate / 1e6 for rate in result["ceiling"]]),
            spread([rate / 1e6 for rate in result["small_pages"]]),
            f"{median(result['ours']) * result['row_bytes'] / 1e9:.1f}",
            f"{result['share']:.0%}",
            "yes" if result["share"] >= GOAL else "NO",
        ]
        for result in results
    ]
    columns = ("ours", "ceiling", "small pages")
    header = ["row bytes", *(f"{name}, M rows/s" for name in columns), "ours, GB/s", "share", f"at least {GOAL:.0%}"]
    print_table("feature gather, one thread, against prefetched copies of the same rows", header, rows)
    content: dict[str, Any] = {"gather": results}
    if not args.no_memory:
        content["memory"] = measure_memory(args)
        print_memory(content["memory"])
    arguments = {key: str(value) if isinstance(value, Path) else value for key, value in vars(args).items()}
    print(write_json(args.name, {"arguments": arguments, **content}))


if __name__ == "__main__":
    main()
