"""What counting and a trace cost a batch in instructions, which a busy machine does not change.

The ways of ``bench_counting.py``: a trainer under Valgrind, which counts instructions (not the kernel's) from before a
whole epoch to its end. An epoch before that is run without being counted, so that imports and first batches are left
out. Loaders are those of one process, a local one and a collocated one: Valgrind refuses the system calls that keep
watch over sampling processes. Needs Valgrind (``apt install valgrind``), and takes minutes for each way, most of them
to start.

    python benchmarks/count_instructions.py [--modes local collocated] [--batches 200]
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from bench_counting import WAYS, environment
from bench_modes import make_partitions
from harness import print_table, small_batch_arguments, write_json

from graphlearn_dist.distributed import CollocatedDistSamplingWorkerOptions, DistDataset, DistNeighborLoader
from graphlearn_dist.loader import NeighborLoader

MODES = ("local", "collocated")
_TOTALS = re.compile(r"^totals: (\d+)", re.MULTILINE)


def train(mode: str, directory: Path, args: argparse.Namespace) -> None:
    """The trainer: reads an epoch for each line of its standard input, and says how many batches and edges it had."""
    data, seeds = DistDataset(edge_dir="in"), torch.arange(args.batches * args.batch_size)
    data.load(str(directory), 0)
    if mode == "local":
        loader: Any = NeighborLoader(data, args.fanout, seeds, batch_size=args.batch_size, shuffle=True, prefetch=0)
    else:
        options = CollocatedDistSamplingWorkerOptions()
        loader = DistNeighborLoader(data, args.fanout, seeds, args.batch_size, True, worker_options=options)
    for _ in sys.stdin:
        sizes = [batch.edge_index.size(1) for batch in loader]
        print(json.dumps([len(sizes), sum(sizes)]), flush=True)


def instructions_of(mode: str, way: str, directory: Path, args: argparse.Namespace) -> tuple[float, float]:
    """Of a batch; and its edges."""
    with tempfile.TemporaryDirectory() as folder:
        command = ["valgrind", "--tool=callgrind", "--instr-atstart=no", "--fair-sched=yes"]
        command += [f"--callgrind-out-file={folder}/counts.%p", f"--log-file={folder}/log.%p"]
        command += [sys.executable, __file__, *sys.argv[1:], "--directory", str(directory), "--trainer", mode]
        # Hashes differ between runs otherwise, and with them how long a search in a dictionary is.
        environ = {**os.environ, **environment(way, directory.parent), "PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1"}
        trainer = subprocess.Popen(command, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        requests, answers = trainer.stdin, trainer.stdout
        assert requests is not None
        assert answers is not None

        def epoch() -> list[int]:
            print("epoch", file=requests, flush=True)
            return list(json.loads(answers.readline()))

        epoch()
        switch = ["callgrind_control", str(trainer.pid), "-i"]
        subprocess.run([*switch, "on"], capture_output=True, check=True)
        batches, edges = epoch()
        subprocess.run([*switch, "off"], capture_output=True, check=True)
        requests.close()
        trainer.wait()
        counted = [int(each) for path in Path(folder).glob("counts.*") for each in _TOTALS.findall(path.read_text())]
    return sum(counted) / batches, edges / batches


def main() -> None:
    parser = small_batch_arguments(__doc__)
    parser.set_defaults(nodes=110_000, edges=1_650_000)
    parser.add_argument("--batches", type=int, default=200, help="of an epoch")
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES))
    parser.add_argument("--name", default="instructions", help="of the file in results/")
    parser.add_argument("--trainer", choices=MODES, help=argparse.SUPPRESS)
    parser.add_argument("--directory", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.trainer:
        train(args.trainer, args.directory, args)
        return
    if args.batches * args.batch_size > args.nodes:
        parser.error(f"an epoch of {args.batches} batches needs {args.batches * args.batch_size} nodes")
    if shutil.which("callgrind_control") is None:
        parser.error("needs Valgrind")
    with tempfile.TemporaryDirectory() as root:
        directory = make_partitions(Path(root) / "graph", 1, args)
        found = {mode: {way: instructions_of(mode, way, directory, args) for way in WAYS} for mode in args.modes}
    rows = [
        [
            mode,
            way,
            f"{number / 1e6:.3f}",
            f"{edges:,.0f}",
            f"{number / ways[WAYS[way]][0]:.4f}" if way != WAYS[way] else "",
        ]
        for mode, ways in found.items()
        for way, (number, edges) in ways.items()
    ]
    header = ["mode", "way", "million instructions a batch", "edges", "over uncounted, traced over counted"]
    print_table(f"{args.batches} batches of {args.features} float32 features", header, rows)
    print(write_json(args.name, {"arguments": vars(args), "instructions": found}))


if __name__ == "__main__":
    main()
