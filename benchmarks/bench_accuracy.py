"""Sampled remote training against full-neighbor training on real graphs: test accuracy with equal network and split.

For each graph and seed: full-batch training in one process, and the remote job (2 partitions, 2 servers, 2 trainers)
under the launcher. Both report the test accuracy of the epoch with the best validation accuracy. Cora and Tolokers are
read from numpy archives (the keys are in examples/datasets.py) in --archives, and left out where there are none.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from harness import RESULTS, print_table, write_json

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "examples"))

from job import Recipe, partition, recipe_for, train_reference, train_remotely  # noqa: E402

GRAPHS = ("cora", "tolokers", "debian")
SIZES = {"servers": 2, "trainers": 2}
ALLOWED_POINTS = 1.0  # by which the remote job's mean may lie below the reference's
DEADLINE_S = 1800.0


def measure(spec: str, recipe: Recipe, seeds: Sequence[int]) -> dict[str, Any]:
    """Both kinds of training with each seed; see `summarize` for what comes out."""
    data = recipe.load(spec)
    shape = (data.x.shape[1], data.num_classes)
    with tempfile.TemporaryDirectory(prefix="gld-accuracy-") as root:
        work = Path(root)
        partition(data, work / "partitions", SIZES["servers"])
        remote = train_remotely(
            recipe, work / "partitions", shape, work / "result.json", **SIZES,
            seeds=seeds, timeout_s=DEADLINE_S, log=work / "log.txt",
        )  # fmt: skip
    full = [dataclasses.asdict(train_reference(recipe, data, seed)) for seed in seeds]
    alone = [dataclasses.asdict(train_reference(recipe, data, seed, use_edges=False)) for seed in seeds]
    return {
        "measured": datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "nodes": data.num_nodes,
        "edges": data.num_edges,
        "train_nodes": len(data.train),
        "test_nodes": len(data.test),
        "recipe": dataclasses.asdict(recipe),
        "seeds": list(seeds),
        **summarize(remote, full, alone),
        "runs": {"remote": remote, "full": full, "without_edges": alone},
    }


def summarize(remote: list[dict[str, Any]], full: list[dict[str, Any]], alone: list[dict[str, Any]]) -> dict[str, Any]:
    """Accuracies in per cent by seed, differences in points, and the remote job's speed without its first epochs."""
    accuracy = {
        "remote": [100 * run["test"]["accuracy"] for run in remote],
        "full": [100 * run["test_accuracy"] for run in full],
        "without_edges": [100 * run["test_accuracy"] for run in alone],
    }
    steady = [row for run in remote for row in run["epochs"][1:] or run["epochs"]]
    summary = {
        "test_accuracy": accuracy,
        "difference": [a - b for a, b in zip(accuracy["remote"], accuracy["full"], strict=True)],
        "difference_of_means": statistics.mean(accuracy["remote"]) - statistics.mean(accuracy["full"]),
        "epoch_s": statistics.median(row["train_s"] for row in steady),
        "seeds_per_s": statistics.median(row["seeds_per_s"] for row in steady),
        "full_step_s": statistics.median(run["epoch_time_s"] for run in full),
    }
    if remote[0]["test"]["roc_auc"] is not None:
        summary["test_roc_auc"] = {
            "remote": [100 * run["test"]["roc_auc"] for run in remote],
            "full": [100 * run["test_roc_auc"] for run in full],
            "without_edges": [100 * run["test_roc_auc"] for run in alone],
        }
    return summary


def mean_and_spread(values: Sequence[float]) -> str:
    """Mean, and the standard deviation over the seeds."""
    deviation = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.2f}{deviation}"


def timing_row(name: str, result: dict[str, Any]) -> list[str]:
    recipe = result["recipe"]
    epoch = [f"{recipe['epochs']}", f"{result['epoch_s']:.2f} s", f"{result['seeds_per_s']:,.0f} /s"]
    return [name, *epoch, f"{recipe['full_epochs']}", f"{result['full_step_s']:.3f} s"]


def print_results(results: dict[str, dict[str, Any]]) -> None:
    """The tables: quality, then time."""
    rows = []
    for name, result in results.items():
        kinds = {name: result["test_accuracy"]}
        if "test_roc_auc" in result:
            kinds[f"{name} (ROC-AUC)"] = result["test_roc_auc"]
        for label, figures in kinds.items():
            apart = [a - b for a, b in zip(figures["remote"], figures["full"], strict=True)]
            columns = [mean_and_spread(figures[kind]) for kind in ("remote", "full", "without_edges")]
            by_seed = ", ".join(f"{points:+.2f}" for points in apart)
            rows.append([label, *columns, f"{statistics.mean(apart):+.2f}", by_seed])
    print_table(
        "test accuracy in per cent: mean ± standard deviation over the seeds; differences in points",
        ["graph", "remote, sampled", "full neighbors", "without edges", "remote - full", "by seed"],
        rows,
    )
    print_table(
        f"time ({SIZES['servers']} servers and {SIZES['trainers']} trainers; median epoch, without the first)",
        ["graph", "epochs", "epoch", "seeds", "reference steps", "reference step"],
        [timing_row(name, result) for name, result in results.items()],
    )


def earlier_results() -> dict[str, Any]:
    """What a run over other graphs wrote: it stays, so that each graph can be measured by itself."""
    path = RESULTS / "accuracy.json"
    graphs: dict[str, Any] = json.loads(path.read_text())["graphs"] if path.is_file() else {}
    return graphs


def quickly(recipe: Recipe) -> Recipe:
    """A fifth of the epochs: whether it runs, not what it reaches."""
    return dataclasses.replace(recipe, epochs=-(-recipe.epochs // 5), full_epochs=-(-recipe.full_epochs // 5))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", nargs="+", default=GRAPHS, choices=GRAPHS)
    parser.add_argument("--seeds", type=int, default=3, help="how many, from 0")
    parser.add_argument("--quick", action="store_true", help="one seed, a fifth of the epochs, nothing is written")
    default = os.environ.get("GLD_SHARED_DATA", str(ROOT.parent / "shared" / "data"))
    parser.add_argument("--archives", type=Path, default=Path(default), help="where cora.npz and tolokers.npz are")
    args = parser.parse_args()
    seeds = range(1 if args.quick else args.seeds)
    results = {}
    for name in args.data:
        spec = name if name == "debian" else str(args.archives / f"{name}.npz")
        if spec.endswith(".npz") and not Path(spec).is_file():
            print(f"{name}: left out, there is no {spec}")
            continue
        print(f"{name} ...", flush=True)
        recipe = recipe_for(spec)
        results[name] = measure(spec, quickly(recipe) if args.quick else recipe, seeds)
    if not results:
        raise SystemExit("bench_accuracy: no graph was found")
    print_results(results)
    if args.quick:
        return
    print(write_json("accuracy", {"sizes": SIZES, "graphs": {**earlier_results(), **results}}))
    below = [name for name, result in results.items() if result["difference_of_means"] < -ALLOWED_POINTS]
    if below:
        raise SystemExit(f"bench_accuracy: more than {ALLOWED_POINTS:g} point below full-neighbor training: {below}")


if __name__ == "__main__":
    main()
