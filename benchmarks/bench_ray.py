"""A job on Ray beside the same job on local processes: seeds a second, and how long each takes to start.

The demo's job, 2 servers and 2 trainers, in turns (local, Ray, local, Ray ...) in one run; the launcher of a turn on
Ray starts a Ray of its own and ends it. Seeds a second are those of the epochs after the first. Start-up is the time
from the launcher's start to the first batch's request: for Ray, its own start is part of it. The same for a group of
four workers that import torch, until each has answered a call.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from harness import median, print_table, spread, write_json

from graphlearn_dist.cluster import RayVirtualCluster, RayWorkerGroup, init_ray
from graphlearn_dist.cluster.actors.choose import require_ray

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))

from job import Recipe, partition, recipe_for, train_remotely

PLACES = ("local", "ray")
SIZES = {"servers": 2, "trainers": 2}
GROUP_SIZE = 4
LOWEST_RATIO, LONGEST_START_S = 0.95, 20.0
DEADLINE_S = 300.0

Turn = dict[str, float]


def run_job(place: str, recipe: Recipe, shape: tuple[int, int], work: Path) -> Turn:
    """One turn of the job there."""
    started = time.time()
    [result] = train_remotely(
        recipe, work / "partitions", shape, work / "result.json", on=place, **SIZES,
        timeout_s=DEADLINE_S, log=work / "log.txt",
    )  # fmt: skip
    ended = time.time()
    steady = result["epochs"][1:]
    return {
        "seeds_per_s": median([row["seeds_per_s"] for row in steady]),
        "epoch_s": median([row["train_s"] for row in steady]),
        "start_s": result["began"] - started,
        "whole_s": ended - started,
        "test_accuracy": result["test"]["accuracy"],
    }


def start_group(place: str) -> float:
    """Seconds until four workers have imported torch and answered; a Ray that is started for them is ended again."""
    started = time.perf_counter()
    if place == "ray":
        init_ray(num_cpus=GROUP_SIZE, log_to_driver=False)  # it counts the machine's cores otherwise
    with RayVirtualCluster([GROUP_SIZE], use_gpus=False, backend=place) as cluster:
        with RayWorkerGroup(cluster, "torch.nn.Linear", name_prefix="bench", worker_args=(8, 8)) as group:
            group.run_all_workers_single_data("extra_repr")
            took = time.perf_counter() - started
    if place == "ray":
        import ray

        ray.shutdown()
    return took


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """All turns, by place."""
    recipe = dataclasses.replace(recipe_for(args.data), epochs=args.epochs)
    data = recipe.load(args.data)
    jobs: dict[str, list[Turn]] = {place: [] for place in PLACES}
    groups: dict[str, list[float]] = {place: [] for place in PLACES}
    with tempfile.TemporaryDirectory(prefix="gld-ray-") as root:
        work = Path(root)
        partition(data, work / "partitions", SIZES["servers"])
        for _ in range(args.turns):
            for place in PLACES:
                jobs[place].append(run_job(place, recipe, (data.x.shape[1], data.num_classes), work))
                groups[place].append(start_group(place))
                print(f"{place}: {jobs[place][-1]}; {GROUP_SIZE} workers in {groups[place][-1]:.1f} s", flush=True)
    pairs = zip(jobs["local"], jobs["ray"], strict=True)
    ratios = [there["seeds_per_s"] / here["seeds_per_s"] for here, there in pairs]
    return {
        "recipe": dataclasses.asdict(recipe),
        "ratio": median(ratios),
        "ratios": ratios,
        "jobs": jobs,
        "group_start_s": groups,
    }


def report(results: dict[str, Any]) -> list[str]:
    """The table; what does not hold that should."""
    rows = []
    for place in PLACES:
        turns = results["jobs"][place]
        columns = [spread([turn[key] for turn in turns]) for key in ("seeds_per_s", "start_s", "whole_s")]
        rows.append([place, *columns, spread(results["group_start_s"][place])])
    print_table(
        f"{SIZES['servers']} servers, {SIZES['trainers']} trainers; medians over turns (smallest - largest)",
        ["on", "seeds/s", "start-up, s", "all of it, s", f"{GROUP_SIZE} workers with torch, s"],
        rows,
    )
    print(f"seeds/s on Ray over local, turn by turn: {spread(results['ratios'])}")
    slow = [place for place in PLACES if median(results["group_start_s"][place]) > LONGEST_START_S]
    missed = [f"{GROUP_SIZE} workers on {place} took more than {LONGEST_START_S:g} s" for place in slow]
    if results["ratio"] < LOWEST_RATIO:
        missed.append(f"the ratio is below {LOWEST_RATIO}")
    accuracies = {turn["test_accuracy"] for place in PLACES for turn in results["jobs"][place]}
    if len(accuracies) > 1:
        missed.append(f"expected one test accuracy, got {accuracies}")
    return missed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="debian", help="see examples/datasets.py")
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="one turn of two epochs, nothing is written")
    args = parser.parse_args()
    require_ray()
    if args.quick:
        args.epochs, args.turns = 2, 1
    results = measure(args)
    missed = report(results)
    if args.quick:
        return
    print(write_json("ray", {"sizes": SIZES, **results}))
    if missed:
        raise SystemExit("bench_ray: " + "; ".join(missed))


if __name__ == "__main__":
    main()
