"""A graph of ogbn-papers100M's size, or a share of it, from Parquet to a trained model in less memory than it has.

111 million nodes with 128 float16 features and one of 16 classes, 1.6 billion edges, 1.2 million training nodes,
batches of 1024 seeds in 16 GB of memory; ``--share`` scales all of these alike, batches too, and of the memory what is
left beside the 2 GB that ten processes have before they hold anything: torch does not shrink with a graph. Tables are
generated (communities, degrees of a power law; features say a node's class only together with its neighbors'). In a
memory control group, where one may be made, they become partitions that are in order (``graphlearn-dist build --by
ldg``), and two servers and two trainers take an epoch of [15, 10, 5] with features from disk, without and with
``locality``.

    python benchmarks/prove_scale.py --share 0.25 --dir /data/proof      # 45 GB of disk, 5.5 GB of memory

Of each stage it says the time, the most private memory and shared memory of all processes (the page cache is what is
left of the group), bytes read from and written to disk and sent between processes (in a network namespace of its own; a
batch passes in shared memory, as the host is one), and of an epoch where its time goes. Tables, partitions and figures
that are there already in ``--dir`` are not made again.
"""

from __future__ import annotations

import argparse
import ctypes
import fcntl
import json
import os
import shutil
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from bench_scale import ROW_GROUP, bytes_in, control_group, edges_of
from harness import print_table, process_tree, write_json

from graphlearn_dist.utils.units import parse_size

NODES, EDGES, TRAINING, FEATURES, CLASSES = 111_059_956, 1_615_685_872, 1_207_179, 128, 16
MEMORY, PROCESSES, BATCH_SIZE = 16e9, 2e9, 1024
NODES_OF_COMMUNITY = 2_000
JOB = Path(__file__).with_name("prove_scale_job.py")
POLL_S = 0.2
_NEW_NETWORK, _SET_FLAGS, _IS_UP = 0x40000000, 0x8914, 0x1  # CLONE_NEWNET, SIOCSIFFLAGS, IFF_UP


# --- tables ------------------------------------------------------------------------------------------------------


def write_tables(folder: Path, num_nodes: int, num_edges: int) -> None:
    """Parquet files of nodes and edges, and the config of a build."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder.mkdir(parents=True)
    schema = pa.schema([("source", pa.int32()), ("target", pa.int32())])
    with pq.ParquetWriter(folder / "edges.parquet", schema, use_dictionary=False) as edges:
        for ends in edges_of(num_nodes, num_edges, num_nodes // NODES_OF_COMMUNITY):
            columns = [pa.array(each.astype(np.int32)) for each in ends]
            edges.write_table(pa.table(columns, schema=schema), row_group_size=ROW_GROUP)
    centers = np.random.default_rng(1).normal(size=(CLASSES, FEATURES)).astype(np.float32)
    rows = pa.list_(pa.float16(), FEATURES)
    schema = pa.schema([("id", pa.int32()), ("class", pa.int16()), ("x", rows)])
    step = 200_000
    with pq.ParquetWriter(folder / "nodes.parquet", schema, use_dictionary=False) as nodes:
        for first in range(0, num_nodes, step):
            ids = np.arange(first, min(first + step, num_nodes))
            classes = ids // NODES_OF_COMMUNITY % CLASSES
            noise = np.random.default_rng([2, first]).standard_normal((len(ids), FEATURES), np.float32)
            values = (centers[classes] * 0.1 + noise).astype(np.float16)
            columns = [ids.astype(np.int32), classes.astype(np.int16)]
            x = pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), FEATURES)
            nodes.write_table(pa.table([*map(pa.array, columns), x], schema=schema))
    labels = {"label_col": "class", "task_type": "classification", "split_pct": [TRAINING / NODES, 0.001, 0.001]}
    features = {"feature_col": "x", "out_dtype": "float16"}
    node = {"node_id_col": "id", "files": "nodes.parquet", "features": [features], "labels": [labels]}
    edge = {"source_id_col": "source", "dest_id_col": "target", "files": "edges.parquet"}
    (folder / "config.json").write_text(json.dumps({"nodes": [node], "edges": [edge]}))


# --- what a stage takes --------------------------------------------------------------------------------------------


@dataclass
class Usage:
    """What the processes of a control group take, polled.

    Attributes:
        private_bytes: most anonymous memory of all together.
        shared_bytes: most memory in files of memory (batches, rings) that the group has; 0 where there is no group.
        sent_bytes: over the loopback device, of a network namespace that the processes have for themselves.
        read_bytes: from disk.
        written_bytes: to disk.
        cpu_seconds: processor time.
    """

    private_bytes: int = 0
    shared_bytes: int = 0
    sent_bytes: int | None = None
    read_bytes: int = 0
    written_bytes: int = 0
    cpu_seconds: float = 0.0

    def poll(self, pids: Sequence[int], group: Path | None) -> None:
        # What a process has used goes to its parent when that has waited for it, so that the sum over those that live
        # has everything once.
        private = read = written = ticks = 0
        for pid in pids:
            try:
                of_process = Path(f"/proc/{pid}")
                status = of_process.joinpath("status").read_text().splitlines()
                io = dict(line.split(": ") for line in of_process.joinpath("io").read_text().splitlines())
                times = of_process.joinpath("stat").read_text().rsplit(")", 1)[1].split()[11:15]
            except (FileNotFoundError, ProcessLookupError):
                continue
            private += next((int(line.split()[1]) << 10 for line in status if line.startswith("RssAnon")), 0)
            read += int(io["read_bytes"])
            written += int(io["write_bytes"])
            ticks += sum(map(int, times))
            self._poll_network(pid)
        self.private_bytes = max(self.private_bytes, private)
        self.read_bytes, self.written_bytes = max(self.read_bytes, read), max(self.written_bytes, written)
        self.cpu_seconds = max(self.cpu_seconds, ticks / os.sysconf("SC_CLK_TCK"))
        if group is not None:
            stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
            self.shared_bytes = max(self.shared_bytes, int(stat.get("total_shmem", stat.get("shmem", 0))))

    def _poll_network(self, pid: int) -> None:
        try:
            if os.stat(f"/proc/{pid}/ns/net").st_ino == os.stat("/proc/self/ns/net").st_ino:
                return  # others send there, too
            devices = Path(f"/proc/{pid}/net/dev").read_text().splitlines()
        except OSError:  # it ended meanwhile
            return
        sent = next((int(line.split()[9]) for line in devices if line.strip().startswith("lo:")), 0)
        self.sent_bytes = max(self.sent_bytes or 0, sent)


@contextmanager
def watched(group: Path | None, root: list[int]) -> Iterator[Usage]:
    """Polls while the block runs."""
    usage, over = Usage(), threading.Event()

    def watch() -> None:
        while not over.wait(POLL_S):
            usage.poll(process_tree(root[0]) if root else [], group)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield usage
    finally:
        over.set()
        watcher.join()


def own_network() -> None:
    """Moves this process to a network namespace with a loopback device, where it may."""
    if ctypes.CDLL(None).unshare(_NEW_NETWORK) == 0:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
            fcntl.ioctl(any_socket, _SET_FLAGS, struct.pack("16sh22x", b"lo", _IS_UP))


def stage(command: Sequence[str], limit_bytes: int, log: Path, **environ: str) -> dict[str, Any]:
    """Runs a program in a control group of its own; how long it took, and what of the machine.

    Raises:
        SystemExit: it failed; ``log`` says why.
    """
    root: list[int] = []
    with control_group(limit_bytes) as group:

        def enter() -> None:
            if group is not None:
                (group / "cgroup.procs").write_text(str(os.getpid()))
            own_network()

        with watched(group, root) as usage, log.open("w") as out:
            begin = time.monotonic()
            process = subprocess.Popen(
                command, stdout=out, stderr=subprocess.STDOUT, preexec_fn=enter, env={**os.environ, **environ}
            )
            root.append(process.pid)
            code = process.wait()
            seconds = time.monotonic() - begin
        if group is not None:  # a process may be on its way out
            while (group / "cgroup.procs").read_text().strip():
                time.sleep(POLL_S)
    if code != 0:
        sys.exit(f"{' '.join(map(str, command))} ended with {code}: {log}\n{log.read_text()[-3000:]}")
    return {"seconds": seconds, "control_group": group is not None, **asdict(usage)}


# --- the stages ----------------------------------------------------------------------------------------------------


def build(args: argparse.Namespace, folder: Path, limit_bytes: int) -> dict[str, Any]:
    """Tables to partitions that are in order; tables are removed where that is asked for."""
    tables, parts = folder / "tables", folder / "parts"
    begin = time.monotonic()
    if not (tables / "config.json").exists():
        shutil.rmtree(tables, ignore_errors=True)
        write_tables(tables, int(NODES * args.share), int(EDGES * args.share))
    found: dict[str, Any] = {"table_bytes": bytes_in(tables), "generated_s": time.monotonic() - begin}
    print(f"tables: {found['table_bytes'] / 1e9:.1f} GB", flush=True)
    command = [sys.executable, "-m", "graphlearn_dist", "build", str(tables / "config.json"), "--out", str(parts)]
    command += ["--parts", "2", "--by", "ldg", "--memory", str(limit_bytes * 3 // 4), "--resume"]
    found |= stage(command, limit_bytes, folder / "build.log")
    found |= {"partition_bytes": bytes_in(parts), "said": (folder / "build.log").read_text().splitlines()}
    if not args.keep_tables:
        shutil.rmtree(tables)
    return found


def epoch(args: argparse.Namespace, folder: Path, limit_bytes: int, locality: int | None) -> dict[str, Any]:
    """One epoch of two trainers that two servers give batches to."""
    left = max(limit_bytes - PROCESSES, limit_bytes // 8)
    features = args.feature_memory or str(left // 6)
    command = [sys.executable, "-m", "graphlearn_dist", "launch", "--data", str(folder / "parts")]
    command += ["--servers", "2", "--trainers", "2", str(JOB), "--out", str(folder / "epoch.json")]
    command += ["--locality", str(locality or 0), "--hidden", str(args.hidden), "--max-batches", str(args.max_batches)]
    command += ["--batch-size", str(max(round(BATCH_SIZE * args.share), 1)), "--buffer-size", str(left // 16)]
    drop_pages(folder / "parts")
    # Of the budget a first loader may use a sixth; it is taken as it is used.
    environ = {"GLD_FEATURE_MEMORY": features, "GLD_MEMORY_BUDGET": str(limit_bytes), "OMP_NUM_THREADS": "1"}
    found = stage(command, limit_bytes, folder / f"epoch-{locality}.log", **environ)
    return found | {"feature_memory": features, **json.loads((folder / "epoch.json").read_text())}


def drop_pages(folder: Path) -> None:
    """Has the page cache forget files: what is read is read from disk."""
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def show(found: dict[str, Any], args: argparse.Namespace) -> None:
    """The stages, and where an epoch's time goes."""
    rows = [
        [
            name,
            f"{each['seconds']:.0f}",
            f"{each['cpu_seconds']:.0f}",
            f"{each['private_bytes'] / 1e9:.2f}",
            f"{each['shared_bytes'] / 1e9:.2f}",
            f"{each['read_bytes'] / 1e9:.1f}",
            f"{each['written_bytes'] / 1e9:.1f}",
            "" if each.get("sent_bytes") is None else f"{each['sent_bytes'] / 1e6:.1f}",
        ]
        for name, each in found.items()
    ]
    title = (
        f"{NODES * args.share:,.0f} nodes, {EDGES * args.share:,.0f} edges, {FEATURES} float16 features; groups of "
        f"{found['build']['limit_bytes'] / 1e9:.2f} GB"
    )
    print_table(
        title,
        ["stage", "seconds", "of processors", "private GB", "shared GB", "GB read", "GB written", "MB sent"],
        rows,
    )
    for name, each in found.items():
        for trainer in each.get("trainers", []):
            print(f"\n{name}, epoch of {trainer['epoch_s']:.0f} s, loss {trainer['losses']}\n{trainer['stats']}")
        if "accuracy" in each:
            print(f"accuracy on {each['evaluated']:,} nodes: {each['accuracy']:.3f} (a guess: {1 / CLASSES:.3f})")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--share", type=float, default=0.25, help="of the graph's size, and of 16 GB")
    parser.add_argument("--memory", help="of the control group, where not by the share")
    parser.add_argument("--feature-memory", help="of each server and its loaders; a sixth of what processes leave")
    parser.add_argument("--dir", type=Path, required=True, help="for tables, partitions and logs")
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--localities", type=int, nargs="*", default=[0, 8], help="0: seeds from everywhere")
    parser.add_argument("--max-batches", type=int, default=0, help="of each trainer; 0: a whole epoch")
    parser.add_argument("--keep-tables", action="store_true")
    parser.add_argument("--name", default="proof", help="of the file in results/")
    args = parser.parse_args()
    torch.manual_seed(0)
    limit_bytes = parse_size(args.memory) if args.memory else int(PROCESSES + (MEMORY - PROCESSES) * args.share)
    args.dir.mkdir(parents=True, exist_ok=True)
    done = args.dir / "build.json"
    if not done.exists():
        done.write_text(json.dumps({**build(args, args.dir, limit_bytes), "limit_bytes": limit_bytes}))
    found = {"build": json.loads(done.read_text())}
    for locality in args.localities:
        name = f"epoch, locality={locality}" if locality else "epoch"
        done = args.dir / f"epoch-{locality}-{args.max_batches}.json"
        if not done.exists():
            done.write_text(json.dumps(epoch(args, args.dir, limit_bytes, locality or None)))
        found[name] = json.loads(done.read_text())
    show(found, args)
    arguments = {key: value for key, value in vars(args).items() if key != "dir"}
    print(write_json(args.name, {"arguments": arguments, "found": found}))


if __name__ == "__main__":
    main()
