"""DistDGL on the hosts of bench_hosts.py: its argument is a job, as of host_programs.py. It needs DGL's interpreter."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
from host_reader import Job, Reader, answer, commands, run, uses_of

PORT = 30050
GRAPH = "graph"


def can(job: Job) -> None:
    """Says which version is here."""
    import dgl

    answer(version=f"DGL {dgl.__version__}")


def partition(job: Job) -> None:
    """Cuts the graph at random, as ours is."""
    import dgl
    import torch

    edges = torch.from_numpy(np.load(job["edges"]))
    graph = dgl.graph((edges[0], edges[1]), num_nodes=job["nodes"])
    graph.ndata["x"] = torch.randn(job["nodes"], job["width"], generator=torch.Generator().manual_seed(0))
    dgl.distributed.partition_graph(graph, GRAPH, len(job["addresses"]), job["directory"], part_method="random")
    answer(done=True)


def join(job: Job, role: str) -> Any:
    """What DGL's launcher would do for one process; a server's stays here until its clients are gone."""
    config = Path(job["directory"], "hosts.txt")
    if not config.exists():
        config.write_text("".join(f"{address} {PORT}\n" for address in job["addresses"]))
    description = str(Path(job["directory"], f"{GRAPH}.json"))
    count = str(len(job["addresses"]))
    os.environ.update(
        DGL_DIST_MODE="distributed", DGL_ROLE=role, DGL_SERVER_ID=str(job["rank"]), DGL_IP_CONFIG=str(config),
        DGL_NUM_SERVER="1", DGL_NUM_CLIENT=count, DGL_CONF_PATH=description, DGL_GRAPH_FORMAT="csc",
        DGL_NUM_SAMPLER="0", DGLBACKEND="pytorch",
    )  # fmt: skip
    import dgl

    dgl.distributed.initialize(str(config))
    return dgl


def end_with_input() -> None:
    """Ends this process at the end of its input, whatever DGL waits for then."""
    sys.stdin.read()
    os._exit(0)


def serve(job: Job) -> None:
    """Serves a partition until nobody is there to tell it anything."""
    threading.Thread(target=end_with_input, daemon=True).start()
    join(job, "server")


def train(job: Job) -> None:
    """Reads batches of seeds from all nodes, and their rows."""
    dgl = join(job, "client")
    import torch

    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo", f"tcp://{job['addresses'][0]}:{PORT + 1}", rank=job["rank"], world_size=len(job["addresses"])
    )
    graph = dgl.distributed.DistGraph(GRAPH, part_config=str(Path(job["directory"], f"{GRAPH}.json")))
    answer(up=True)

    def open_loader(command: Job) -> Any:
        if "rows" in command:
            return learn(command, job, dgl, graph)
        sampler = dgl.dataloading.NeighborSampler(command["fanout"])
        loader = dgl.dataloading.DistNodeDataLoader(
            graph, torch.arange(job["nodes"]), sampler, batch_size=command["batch_size"], shuffle=True, drop_last=False
        )
        return _WithRows(loader, graph) if command["features"] else loader

    reader = Reader(job)
    for command in commands():
        reader.do(command, open_loader)
    os._exit(0)  # DGL's own way out waits for others


def first_rows(shape: Any, dtype: Any) -> Any:
    """First values, made by the servers."""
    import torch

    return torch.randn(shape, dtype=dtype)


def learn(command: Job, job: Job, dgl: Any, graph: Any) -> Any:
    """Steps of rows that are learned, as ours are."""
    import torch

    embedding = dgl.distributed.DistEmbedding(
        job["nodes"], command["dim"], name="rows", init_func=first_rows,
        part_policy=graph.get_node_partition_policy("_N"),
    )  # fmt: skip
    optimizer = dgl.distributed.optim.SparseAdam([embedding], lr=0.01)
    for ids in uses_of(command, job["nodes"], job["rank"]):
        optimizer.zero_grad()
        embedding(torch.from_numpy(ids)).square().sum().backward()
        optimizer.step()
        yield


class _WithRows:
    """Batches with the features of their nodes."""

    def __init__(self, loader: Any, graph: Any) -> None:
        self._loader, self._graph = loader, graph

    def __iter__(self) -> Any:
        for nodes, seeds, blocks in self._loader:
            yield self._graph.ndata["x"][nodes], seeds, blocks


if __name__ == "__main__":
    run({"can": can, "partition": partition, "server": serve, "trainer": train})
