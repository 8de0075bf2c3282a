"""The whole way on one machine: partition a graph, serve it, train remotely, compare with full-batch training.

Usage: python examples/demo.py [--data debian] [--on ray] [--servers 2] [--trainers 2] [--workdir DIR]

`--data` takes an embedded data set, a file, a partition directory, or the config of tables (docs/tables.md) of a
homogeneous graph with features, labels and a split.
"""

from __future__ import annotations

import argparse
import dataclasses
import shutil
import signal
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from datasets import NodeDataset
from full_batch import FullBatchResult
from job import Recipe, partition, recipe_for, train_reference, train_remotely

from graphlearn_dist.errors import GraphLearnError
from graphlearn_dist.partition import describe, load_partition_layout

CONFIGS = (".yaml", ".yml", ".json")


@dataclass(frozen=True)
class Reference:
    """What the whole graph in one process reaches, with its edges and without."""

    with_edges: FullBatchResult
    without_edges: FullBatchResult


def heading(text: str) -> None:
    """A line between the steps."""
    print(f"\n--- {text}", flush=True)


def compare(recipe: Recipe, data: NodeDataset, seed: int) -> Reference:
    """The same network on the whole graph at once, and without its edges."""
    results = []
    for name, use_edges in (("with edges", True), ("without", False)):
        print(f"  {name:12}", end="", flush=True)  # it takes seconds: say what is under way
        results.append(train_reference(recipe, data, seed, use_edges=use_edges))
        print(f"{results[-1].epochs:4} steps  {results[-1].total_time_s:6.1f} s", flush=True)
    return Reference(*results)


def summary(result: dict[str, Any], reference: Reference | None, args: argparse.Namespace, recipe: Recipe) -> str:
    """The table at the end."""
    steady = result["epochs"][1:] or result["epochs"]

    def mean(key: str) -> float:
        return sum(row[key] for row in steady) / len(steady)

    sizes = f"{args.servers} servers; {args.trainers} trainers, {recipe.batch_size} seeds a batch each"
    lines = [
        f"  {sizes}; fan-out {recipe.fanout}",
        "  (mean of the epochs, the first left out: it also warms up)",
        "",
        f"  epoch                {mean('train_s'):14.2f} s",
        f"  seeds                {mean('seeds_per_s'):14,.0f} /s",
        f"  sampled edges        {mean('edges_per_s'):14,.0f} /s",
        f"  a trainer's time     {mean('wait_share'):14.0%}   waiting for batches",
        f"                       {mean('compute_share'):14.0%}   forward, backward, optimizer",
        f"                       {mean('sync_share'):14.0%}   gradient exchange",
        "",
        f"  {'accuracy':21}{'test':>14}{'validation':>13}",
    ]
    remote = (result["test"]["accuracy"], result["best"]["val_accuracy"])
    lines.append(_accuracies("remote, sampled", *remote, _epochs(result)))
    if reference is not None:
        full, alone = reference.with_edges, reference.without_edges
        lines.append(_accuracies("full batch", full.test_accuracy, full.val_accuracy, _reference_note(full)))
        lines.append(_accuracies("without edges", alone.test_accuracy, alone.val_accuracy, _reference_note(alone)))
        apart = (remote[0] - full.test_accuracy, remote[1] - full.val_accuracy)
        lines.append(f"  {'remote - full batch':21}{100 * apart[0]:+14.2f}{100 * apart[1]:+13.2f}   points")
    return "\n".join(lines)


def _accuracies(name: str, test: float, val: float, note: str) -> str:
    return f"  {name:21}{test:14.2%}{val:13.2%}   {note}"


def _epochs(result: dict[str, Any]) -> str:
    return f"{len(result['epochs'])} epochs, best after {result['best']['epoch']}"


def _reference_note(result: FullBatchResult) -> str:
    return f"{result.epochs} steps of {result.epoch_time_s:.2f} s in one process, best after {result.best_epoch}"


def demo(args: argparse.Namespace, workdir: Path) -> None:
    """All steps, with everything they write below `workdir`."""
    start = time.perf_counter()
    recipe = chosen_recipe(args)
    if Path(args.data).is_dir():
        data, partitions, shape = None, Path(args.data), shape_of_partitions(Path(args.data))
    elif Path(args.data).suffix in CONFIGS:
        data, partitions = None, build_partitions(Path(args.data), workdir / "partitions", args.servers)
        shape = shape_of_partitions(partitions)
    else:
        data, partitions = recipe.load(args.data, args.seed), workdir / "partitions"
        shape = (data.x.shape[1], data.num_classes)
        heading(f"{data.name}: {data.num_nodes:,} nodes, {data.num_edges:,} edges, {data.num_classes} classes")
        partition(data, partitions, args.servers)
        print(f"  loaded, and partitioned into {args.servers}, in {time.perf_counter() - start:.1f} s")
    heading(f"remote training: {args.servers} servers, {args.trainers} trainers")
    sizes = {"servers": args.servers, "trainers": args.trainers, "seeds": [args.seed]}
    (result,) = train_remotely(recipe, partitions, shape, workdir / "result.json", on=args.on, **sizes)
    reference = None
    if data is not None and recipe.full_epochs > 0:
        heading("reference: the whole graph in one process, all neighbors in every step")
        reference = compare(recipe, data, args.seed)
    heading("summary")
    print(summary(result, reference, args, recipe))
    print(f"\n  all of it took {time.perf_counter() - start:.0f} s")


def build_partitions(config: Path, out: Path, num_parts: int) -> Path:
    """Partitions of tables, and what is known of them."""
    from graphlearn_dist.tables import build

    heading(f"partitions of the tables of {config}")
    build(config, out, num_parts=num_parts)
    print(describe(out))
    return out


def chosen_recipe(args: argparse.Namespace) -> Recipe:
    """What suits the data set, but for what the command line says."""
    given = {field.name: getattr(args, field.name, None) for field in dataclasses.fields(Recipe)}
    return dataclasses.replace(recipe_for(args.data), **{k: v for k, v in given.items() if v is not None})


def shape_of_partitions(root: Path) -> tuple[int, int]:
    """Feature width and number of classes of an existing partition directory."""
    layout = load_partition_layout(root)
    parts = [layout.open_partition(i) for i in range(layout.num_parts)]
    if None not in parts[0].node_feats or None not in parts[0].node_labels:
        raise SystemExit(f"demo: {root}: expected one node type with features and labels")
    num_classes = 1 + max(int(part.node_labels[None].max()) for part in parts)
    return parts[0].node_feats[None].shape[1], num_classes


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="debian", help="see examples/datasets.py; or partitions, or a config")
    parser.add_argument("--on", choices=("local", "ray"), default="local", help="where servers and trainers run")
    parser.add_argument("--servers", type=int, default=2)
    parser.add_argument("--trainers", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    suited = parser.add_argument_group("in place of what suits the data set (see RECIPES in examples/job.py)")
    suited.add_argument("--epochs", type=int)
    suited.add_argument("--full-epochs", type=int, help="steps of the reference; 0 leaves it out")
    suited.add_argument("--hidden", type=int, help="width of the hidden layers")
    suited.add_argument("--fanout", help="neighbors to sample on each hop, as 15,10")
    suited.add_argument("--batch-size", type=int, help="seeds in a batch of one trainer")
    suited.add_argument("--lr", type=float)
    parser.add_argument("--workdir", type=Path, help="where to write; a temporary directory by default")
    parser.add_argument("--keep", action="store_true", help="leave what was written in the temporary directory")
    return parser.parse_args()


def main() -> None:
    args = parse_args()
    for signum in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, signal.default_int_handler)  # end as after Ctrl-C: what was opened gets closed
    workdir = args.workdir or Path(tempfile.mkdtemp(prefix="graphlearn-dist-demo-"))
    workdir.mkdir(parents=True, exist_ok=True)
    try:
        demo(args, workdir)
    except GraphLearnError as error:
        raise SystemExit(f"demo: {error}") from error
    except KeyboardInterrupt:
        print("demo: interrupted", file=sys.stderr)
        raise SystemExit(130) from None  # as a shell reports a program that Ctrl-C ended
    finally:
        if args.workdir is None and not args.keep:
            shutil.rmtree(workdir)
        else:
            print(f"  written to {workdir}")


if __name__ == "__main__":
    main()
