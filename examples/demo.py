"""The whole way on one machine: partition a graph, serve it, train remotely, compare with full-batch training.

Usage: python examples/demo.py [--data debian] [--servers 2] [--trainers 2] [--epochs 12] [--workdir DIR]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import datasets
from datasets import NodeDataset
from full_batch import FullBatchResult, train_full_batch

from graphlearn_dist.partition import RandomPartitioner, load_partition_layout

TRAINER = Path(__file__).with_name("train_sage_remote.py")
STOP_TIMEOUT_S = 30.0  # what the launcher gets to end its processes before it is ended itself


@dataclass(frozen=True)
class Reference:
    """What the whole graph in one process reaches, with its edges and without."""

    with_edges: FullBatchResult
    without_edges: FullBatchResult


def heading(text: str) -> None:
    """A line between the steps."""
    print(f"\n--- {text}", flush=True)


def partition(data: NodeDataset, out: Path, num_parts: int) -> None:
    """Split the data set into `num_parts` directories below `out`; a node's in-edges live where the node lives."""
    RandomPartitioner(
        out,
        num_parts,
        data.num_nodes,
        data.edge_index,
        node_feat=data.x,
        node_labels=data.y,
        node_split=(data.train, data.val, data.test),
        edge_assign_strategy="by_dst",
    ).partition()


def train_remotely(args: argparse.Namespace, partitions: Path, shape: tuple[int, int], out: Path) -> dict[str, Any]:
    """Run servers and trainers under the launcher; returns what the trainers wrote.

    Raises:
        SystemExit: the launcher failed; it has said why.
    """
    command = [sys.executable, "-m", "graphlearn_dist", "launch", "--data", str(partitions)]
    command += ["--servers", str(args.servers), "--trainers", str(args.trainers), str(TRAINER)]
    command += ["--in-channels", str(shape[0]), "--num-classes", str(shape[1]), "--out", str(out)]
    for name in ("epochs", "hidden", "fanout", "batch_size", "lr", "seed"):
        command += [f"--{name.replace('_', '-')}", str(getattr(args, name))]
    with launched(command) as process:
        code = process.wait()
    if code != 0:
        raise SystemExit(f"demo: the launcher ended with exit code {code}")
    result: dict[str, Any] = json.loads(out.read_text())
    return result


@contextlib.contextmanager
def launched(command: list[str]) -> Iterator[subprocess.Popen[bytes]]:
    """A child process that does not outlive the block: it is asked to end, and killed if it does not."""
    # In a session of its own, so that Ctrl-C comes here only and the launcher is told once, below.
    process = subprocess.Popen(command, start_new_session=True)
    try:
        yield process
    finally:
        if process.poll() is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.terminate()
                process.wait(STOP_TIMEOUT_S)
        if process.poll() is None:
            process.kill()
            process.wait()


def train_reference(args: argparse.Namespace, data: NodeDataset) -> Reference:
    """The same network on the whole graph at once, and without its edges."""
    common = {"hidden": args.hidden, "epochs": args.reference_epochs, "seed": args.seed}
    return Reference(train_full_batch(data, **common), train_full_batch(data, use_edges=False, **common))


def summary(result: dict[str, Any], reference: Reference | None, args: argparse.Namespace) -> str:
    """The table at the end."""
    steady = result["epochs"][1:] or result["epochs"]  # the first epoch also warms up

    def mean(key: str) -> float:
        return sum(row[key] for row in steady) / len(steady)

    lines = [
        f"{args.servers} servers, {args.trainers} trainers, fan-out {args.fanout}, {args.batch_size} seeds a batch",
        "(means over the epochs, without the first one)",
        "",
        f"  epoch                  {mean('train_s'):12.2f} s",
        f"  seeds                  {mean('seeds_per_s'):12,.0f} /s",
        f"  sampled edges          {mean('edges_per_s'):12,.0f} /s",
        f"  a trainer's time       {mean('wait_share'):12.0%} waiting for batches",
        f"                         {mean('compute_share'):12.0%} forward, backward, optimizer",
        f"                         {mean('sync_share'):12.0%} gradient exchange",
        "",
        "  accuracy                       test   validation",
    ]
    remote = (result["test_accuracy"], result["best"]["val_accuracy"])
    lines.append(_accuracies("remote, sampled", *remote, f"{len(result['epochs'])} epochs"))
    if reference is not None:
        full, alone = reference.with_edges, reference.without_edges
        lines.append(_accuracies("full batch", full.test_accuracy, full.val_accuracy, _reference_note(full)))
        lines.append(_accuracies("without edges", alone.test_accuracy, alone.val_accuracy, _reference_note(alone)))
        apart = (remote[0] - full.test_accuracy, remote[1] - full.val_accuracy)
        lines.append(f"  {'remote - full batch':21}{100 * apart[0]:+14.2f}{100 * apart[1]:+13.2f}   points")
    return "\n".join(lines)


def _accuracies(name: str, test: float, val: float, note: str) -> str:
    return f"  {name:21}{test:14.2%}{val:13.2%}   {note}"


def _reference_note(result: FullBatchResult) -> str:
    return f"{result.epochs} epochs of {result.epoch_time_s:.2f} s, one process"


def demo(args: argparse.Namespace, workdir: Path) -> None:
    """All steps, with everything they write below `workdir`."""
    start = time.perf_counter()
    if Path(args.data).is_dir():
        data, partitions, shape = None, Path(args.data), shape_of_partitions(Path(args.data))
    else:
        data, partitions = datasets.load(args.data, seed=args.seed), workdir / "partitions"
        shape = (data.x.shape[1], data.num_classes)
        heading(f"{data.name}: {data.num_nodes:,} nodes, {data.num_edges:,} edges, {data.num_classes} classes")
        partition(data, partitions, args.servers)
        print(f"partitioned into {args.servers} in {time.perf_counter() - start:.1f} s")
    heading(f"remote training: {args.servers} servers, {args.trainers} trainers")
    result = train_remotely(args, partitions, shape, workdir / "result.json")
    reference = None
    if data is not None and args.reference_epochs > 0:
        heading("reference: the whole graph in one process, without sampling")
        reference = train_reference(args, data)
        print(f"trained twice, {args.reference_epochs} epochs with and without edges")
    heading("summary")
    print(summary(result, reference, args))
    print(f"\n  all of it took {time.perf_counter() - start:.0f} s")


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
    parser.add_argument("--data", default="debian", help="see examples/datasets.py; or a partition directory")
    parser.add_argument("--servers", type=int, default=2)
    parser.add_argument("--trainers", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--reference-epochs", type=int, default=80, help="0 leaves the reference out")
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--fanout", default="15,10", help="neighbors to sample on each hop")
    parser.add_argument("--batch-size", type=int, default=512, help="seeds in a batch of one trainer")
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--seed", type=int, default=0)
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
    except KeyboardInterrupt:
        raise SystemExit("demo: interrupted") from None
    finally:
        if args.workdir is None and not args.keep:
            shutil.rmtree(workdir)
        else:
            print(f"  written to {workdir}")


if __name__ == "__main__":
    main()
