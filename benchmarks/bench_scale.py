"""Partitions from tables of any size: time, memory, bytes and rates of each stage of a build, in a control group.

Tables are generated a chunk at a time: nodes in communities, degrees that follow a power law. The build runs in a
process of its own, in a control group of so much memory where one may be made (page cache counts there, too); its
private memory is read ten times a second.

    python benchmarks/bench_scale.py --nodes 100e6 --edges 1e9 --memory 4GB --dir /data/scale
    python benchmarks/bench_scale.py --nodes 10e6 --edges 100e6 --ids text

`--glt-python` names an interpreter that has GraphLearn-for-PyTorch (see benchmarks/README.md): its partitioner is then
measured in the same run, on the same edges, which it needs in memory.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from harness import print_table, write_json

from graphlearn_dist import _C
from graphlearn_dist.core import to_tensor
from graphlearn_dist.utils.units import parse_size

CHUNK = 2_000_000
ROW_GROUP = 1_000_000
EXPONENT = 0.6
INSIDE = 0.7  # of the edges lie in a community
POLL_S = 0.1

_BUILD = """
import json, sys, time
begin = time.monotonic()
import psutil
from graphlearn_dist.tables import build
stages = []
def note(progress):
    if progress.finished:
        stages.append((progress.stage, progress.done, progress.elapsed_s))
started = time.monotonic()
build(sys.argv[1], sys.argv[2], num_parts=int(sys.argv[3]), memory=sys.argv[4], progress=note)
times = psutil.Process().cpu_times()
print(json.dumps({"stages": stages, "seconds": time.monotonic() - started, "cpu_seconds": times.user + times.system,
                  "io": psutil.Process().io_counters()._asdict()}))
"""

_GLT = """
import json, sys, time, types
import numpy as np, torch
sys.modules.setdefault("torch_sparse", types.ModuleType("torch_sparse"))  # imported, and not used here
from graphlearn_torch.partition import RandomPartitioner
begin = time.monotonic()
ends = torch.from_numpy(np.load(sys.argv[1]))
loaded = time.monotonic()
RandomPartitioner(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), ends, chunk_size=1_000_000).partition()
print(json.dumps({"seconds": time.monotonic() - begin, "partition_seconds": time.monotonic() - loaded}))
"""


# --- tables ------------------------------------------------------------------------------------------------------


def edges_of(num_nodes: int, num_edges: int, num_communities: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Sources and targets, int64, a chunk at a time; the same for the same numbers."""
    size = max(num_nodes // num_communities, 1)
    for number, first in enumerate(range(0, num_edges, CHUNK)):
        random = np.random.default_rng([number, num_nodes, num_edges])
        count = min(CHUNK, num_edges - first)
        rank = (num_nodes * random.random(count) ** (1 / (1 - EXPONENT))).astype(np.int64)
        source = to_tensor(_C.permute(torch.from_numpy(rank), num_nodes, 17)).numpy()  # popular nodes are anywhere
        inside = source // size * size + random.integers(0, size, count)
        target = np.where(random.random(count) < INSIDE, inside, random.integers(0, num_nodes, count))
        yield source, np.minimum(target, num_nodes - 1)


def write_tables(folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    """Parquet files of nodes (where they have features or texts as ids) and edges; the config of a build."""
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    def ids(numbers: np.ndarray) -> Any:
        if args.ids == "dense":
            return pa.array(numbers)
        spread = to_tensor(_C.permute(torch.from_numpy(numbers), args.nodes, 5)).numpy()  # not in the order of texts
        return pc.binary_join_element_wise("user-", pc.cast(pa.array(spread), pa.string()), "")

    folder.mkdir(parents=True, exist_ok=True)
    id_type = pa.int64() if args.ids == "dense" else pa.string()
    ends = pa.schema([("source", id_type), ("target", id_type)])
    per_file = -(-args.edges // args.files)
    writer, written, file = None, 0, 0
    for source, target in edges_of(args.nodes, args.edges, args.communities):
        if writer is None:
            writer = pq.ParquetWriter(folder / f"edges-{file:03}.parquet", ends, use_dictionary=False)
        writer.write_table(pa.table([ids(source), ids(target)], schema=ends), row_group_size=ROW_GROUP)
        written += len(source)
        if written >= per_file * (file + 1) or written == args.edges:
            writer.close()
            writer, file = None, file + 1
    edges = {"source_id_col": "source", "dest_id_col": "target", "files": f"{folder}/edges-*.parquet"}
    if args.ids == "dense" and not args.features:
        return {"nodes": [{"num_nodes": args.nodes}], "edges": [edges]}
    schema = pa.schema([("id", id_type), *([("x", pa.list_(pa.float32(), args.features))] if args.features else [])])
    step = max(min(CHUNK, (64 << 20) // (4 * max(args.features, 1))), 1)
    with pq.ParquetWriter(folder / "nodes.parquet", schema) as nodes:
        for first in range(0, args.nodes, step):
            numbers = np.arange(first, min(first + step, args.nodes))
            columns = [ids(numbers)]
            if args.features:
                values = np.random.default_rng(first).random(len(numbers) * args.features, np.float32)
                columns.append(pa.FixedSizeListArray.from_arrays(pa.array(values), args.features))
            nodes.write_table(pa.table(columns, schema=schema), row_group_size=ROW_GROUP)
    features = [{"feature_col": "x"}] if args.features else []
    node = {"node_id_col": "id", "files": f"{folder}/nodes.parquet", "features": features}
    return {"nodes": [node], "edges": [edges]}


# --- measuring ---------------------------------------------------------------------------------------------------


@contextmanager
def control_group(limit_bytes: int) -> Iterator[Path | None]:
    """A memory control group of that limit (version 1 or 2); None where none may be made."""
    name = f"gld-scale-{os.getpid()}"
    for root, limit in (("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")):
        group = Path(root) / name
        try:
            group.mkdir()
        except OSError:
            continue
        try:
            (group / limit).write_text(str(limit_bytes))
        except OSError:
            group.rmdir()
            continue
        try:
            yield group
        finally:
            group.rmdir()
        return
    yield None


def private_bytes(pid: int) -> int:
    """Anonymous memory of a process."""
    try:
        with open(f"/proc/{pid}/status") as status:
            return next((int(line.split()[1]) << 10 for line in status if line.startswith("RssAnon")), 0)
    except (FileNotFoundError, ProcessLookupError):
        return 0


def measured(command: list[str], group: Path | None) -> dict[str, Any]:
    """What a program printed last, as JSON, with the most private memory that it was seen to have."""

    def enter() -> None:
        if group is not None:
            (group / "cgroup.procs").write_text(str(os.getpid()))

    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, preexec_fn=enter)
    peak, over = [0], threading.Event()

    def watch() -> None:
        while not over.wait(POLL_S):
            peak[0] = max(peak[0], private_bytes(process.pid))

    watcher = threading.Thread(target=watch)
    watcher.start()
    output, _ = process.communicate()
    over.set()
    watcher.join()
    if process.returncode != 0:
        return {"failed": process.returncode, "peak_private_bytes": peak[0]}
    return {**json.loads(output.strip().splitlines()[-1]), "peak_private_bytes": peak[0]}


def bytes_in(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def run(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    begin = time.monotonic()
    tables = folder / "tables"
    if not (tables / "config.json").exists():
        config = write_tables(tables, args)
        (tables / "config.json").write_text(json.dumps(config))
    generated = time.monotonic() - begin
    print(f"tables: {bytes_in(tables) / 1e9:.1f} GB in {generated:.0f} s", flush=True)
    out = folder / "partitions"
    shutil.rmtree(out, ignore_errors=True)
    load = os.getloadavg()[0]  # of others: what a build takes is its processor time, how long that takes is theirs, too
    with control_group(parse_size(args.memory)) as group:
        command = [sys.executable, "-c", _BUILD, str(tables / "config.json"), str(out), str(args.parts), args.memory]
        found = measured(command, group)
        found |= {"control_group": group is not None, "load_before": load}
    found |= {"table_bytes": bytes_in(tables), "partition_bytes": bytes_in(out)}
    if args.glt_python:
        ends = np.lib.format.open_memmap(folder / "ends.npy", "w+", np.int64, (2, args.edges))
        first = 0
        for source, target in edges_of(args.nodes, args.edges, args.communities):
            ends[:, first : first + len(source)] = source, target
            first += len(source)
        del ends
        glt = folder / "glt"
        peer = [args.glt_python, "-c", _GLT, str(folder / "ends.npy"), str(glt), str(args.parts), str(args.nodes)]
        found["glt"] = measured(peer, None)
        shutil.rmtree(glt, ignore_errors=True)
        (folder / "ends.npy").unlink()
    shutil.rmtree(out, ignore_errors=True)
    return found


def show(found: dict[str, Any], args: argparse.Namespace) -> None:
    if "failed" in found:
        print(f"the build ended with {found['failed']}, after {found['peak_private_bytes'] / 1e9:.2f} GB")
        return
    rows = [
        [stage, f"{seconds:.1f}", f"{done / max(seconds, 1e-9) / 1e6:.2f}"] for stage, done, seconds in found["stages"]
    ]
    rows.append(["all", f"{found['seconds']:.1f}", f"{args.edges / found['seconds'] / 1e6:.2f} (edges)"])
    title = (
        f"{args.nodes:,} nodes, {args.edges:,} edges, ids {args.ids}, {args.features} features, {args.parts} partitions"
    )
    print_table(title, ["stage", "seconds", "M rows/s"], rows)
    limit = f"in a control group of {args.memory}" if found["control_group"] else "in no control group"
    print(
        f"\n{found['peak_private_bytes'] / 1e9:.2f} GB of private memory at most, {limit}; "
        f"{found['cpu_seconds'] / args.edges * 1e9:.0f} ns of processor time an edge; "
        f"{found['table_bytes'] / 1e9:.1f} GB of tables, {found['io']['write_bytes'] / 1e9:.1f} GB written, "
        f"{found['partition_bytes'] / 1e9:.1f} GB of partitions"
    )
    if "seconds" in found.get("glt", {}):
        peer = found["glt"]
        print(
            f"GraphLearn-for-PyTorch: {peer['seconds']:.1f} s ({args.edges / peer['seconds'] / 1e6:.2f} M edges/s), "
            f"{peer['peak_private_bytes'] / 1e9:.2f} GB of private memory"
        )
    elif "glt" in found:
        print(f"GraphLearn-for-PyTorch ended with {found['glt']['failed']}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=lambda text: int(float(text)), default=1_000_000)
    parser.add_argument("--edges", type=lambda text: int(float(text)), default=10_000_000)
    parser.add_argument("--features", type=int, default=0, help="float32 a node")
    parser.add_argument("--ids", choices=("dense", "text"), default="dense")
    parser.add_argument("--parts", type=int, default=2)
    parser.add_argument("--memory", default="4GB")
    parser.add_argument("--communities", type=int, default=1000)
    parser.add_argument("--files", type=int, default=8)
    parser.add_argument("--dir", type=Path, help="where tables stay for another run; default: a folder that is removed")
    parser.add_argument("--glt-python", help="an interpreter that has GraphLearn-for-PyTorch")
    parser.add_argument("--name", default="scale", help="of the file in results/")
    parser.add_argument("--only-tables", action="store_true", help="write tables, and build nothing")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="gld-scale-") as temporary:
        folder = args.dir or Path(temporary)
        if args.only_tables:
            config = write_tables(folder / "tables", args)
            (folder / "tables" / "config.json").write_text(json.dumps(config))
            return
        found = run(args, folder)
    show(found, args)
    arguments = {key: value for key, value in vars(args).items() if key not in ("dir", "glt_python", "only_tables")}
    print(write_json(args.name, {"arguments": arguments, "found": found}))


if __name__ == "__main__":
    main()
