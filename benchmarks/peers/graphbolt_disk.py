"""GraphBolt's features on disk: the rows of ``bench_disk.py`` as ``gb.OnDiskDataset`` has them by ``in_memory: false``.

Runs in an environment of its own (``make_env.sh dgl``), with nothing of this project; the argument is a JSON object.
Its graph is in memory, its seeds are the ones it is given, and it makes batches until ``limit_s`` is over.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from pathlib import Path

import dgl
import dgl.graphbolt as gb
import numpy as np
import torch
from dgl.graphbolt.internal import read_data


def private_bytes() -> int:
    """Resident memory of this process that is no file's."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("RssAnon"))


def read_bytes() -> int:
    """Bytes that this process has read from disk."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("read_bytes"))


def open_loaders(options: dict) -> list[gb.DataLoader]:
    """Batches of the partition, rows of which are looked up in their mapped file; first a small one, to begin with."""
    part = Path(options["directory"]) / "part0"
    indptr, indices = (torch.from_numpy(np.load(part / "graph" / f"{name}.npy")) for name in ("indptr", "indices"))
    graph = gb.fused_csc_sampling_graph(indptr.to(indices.dtype), indices)
    mapped = read_data(str(part / "node_feat" / "x.npy"), "numpy", in_memory=False)  # gb.OnDiskDataset's function
    features = gb.BasicFeatureStore({("node", None, "feat"): gb.TorchBasedFeature(mapped)})
    given = torch.from_numpy(np.load(options["seeds"])).to(indices.dtype)
    loaders = []
    for seeds in (torch.arange(8, dtype=indices.dtype), given):
        pipe = gb.ItemSampler(gb.ItemSet(seeds, names="seed_nodes"), batch_size=options["batch_size"])
        pipe = pipe.sample_neighbor(graph, options["fanouts"][::-1])  # it takes the seeds' hop last
        pipe = pipe.fetch_feature(features, node_feature_keys=["feat"])
        loaders.append(gb.DataLoader(pipe, num_workers=0))
    return loaders


def main() -> None:
    """Reads, and prints what ``bench_disk.py`` prints of the other ways."""
    options = json.loads(sys.argv[1])
    first, loader = open_loaders(options)
    next(iter(first))
    peak, ended, rows, done = 0, threading.Event(), 0, 0

    def watch() -> None:
        nonlocal peak
        while not ended.wait(0.02):
            peak = max(peak, private_bytes())

    watcher = threading.Thread(target=watch)
    watcher.start()
    before, begin, cpu = read_bytes(), time.monotonic(), sum(os.times()[:2])
    for batch in loader:
        done, rows = done + 1, rows + len(batch.node_features["feat"])
        if time.monotonic() - begin > options["limit_s"]:
            break
    seconds, cpu = time.monotonic() - begin, sum(os.times()[:2]) - cpu
    ended.set()
    watcher.join()
    found = {"batches": done, "seconds": seconds, "read_bytes": read_bytes() - before, "cpu_seconds": cpu}
    found |= {"peak_private_bytes": peak, "rows": rows, "counts": [], "version": f"dgl {dgl.__version__}"}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
