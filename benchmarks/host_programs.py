"""What runs in the hosts of bench_hosts.py, as ``line_programs`` do what they are told: the first argument is a job."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from host_reader import Job, Reader, answer, commands, compute, is_told, run, uses_of

from graphlearn_dist.distributed import (
    CollocatedDistSamplingWorkerOptions,
    DistDataset,
    DistEmbedding,
    DistNeighborLoader,
    DistServer,
    MpDistSamplingWorkerOptions,
    RemoteDistSamplingWorkerOptions,
    SparseAdam,
    async_request_server,
    init_client,
    init_server,
    init_worker_group,
    shutdown_client,
    shutdown_server,
)
from graphlearn_dist.distributed.copies.host_row_cache import RowCacheStats
from graphlearn_dist.distributed.dist_server import get_server
from graphlearn_dist.distributed.rpc import get_endpoint, init_rpc, shutdown_rpc
from graphlearn_dist.errors import NotInitializedError
from graphlearn_dist.loader import NeighborLoader
from graphlearn_dist.rpc import endpoint
from graphlearn_dist.rpc.peers import links

IN_FLIGHT = 16  # requests of a client that floods a server


def pretend_a_host(job: Job) -> None:
    """Where hosts are not namespaces: has this process connect to those of other hosts by TCP."""
    if job["boot_id"]:
        for module in (endpoint, links):
            module.boot_id = lambda: job["boot_id"]  # type: ignore[attr-defined]


# --- servers -----------------------------------------------------------------------------------------------------


def serve(job: Job) -> None:
    """Serves a partition; says how many requests it has answered."""
    pretend_a_host(job)
    dataset = DistDataset()
    dataset.load(job["directory"], job["rank"])
    init_server(job["servers"], 0, job["rank"], dataset, job["master"], job["port"], is_dynamic=True, **job["options"])
    answer(up=True)
    for _ in commands():
        answer(requests=get_endpoint().stats().requests_served, copies=asdict(get_server().get_row_cache_stats()))
    answer(exit=True)
    shutdown_server()


# --- loaders -----------------------------------------------------------------------------------------------------


def seeds_of(job: Job) -> Any:
    """All nodes, or those of the seeds' type, several times over: an epoch's end is not what is measured."""
    ids = torch.arange(job["seeds"]).repeat(job["rounds"])
    return ids if job["seed_type"] is None else (job["seed_type"], ids)


def loader_of(job: Job, command: Job, data: DistDataset | None, options: Any) -> DistNeighborLoader:
    """Of a trainer: in batches of its own, or, where batches are of near seeds, its share of one list."""
    is_near = job["locality"] is not None
    epoch = {"shard": (job["rank"], job["servers"]), "random_seed": 0} if is_near else {"random_seed": job["rank"]}
    return DistNeighborLoader(
        data, command["fanout"], seeds_of(job), command["batch_size"], True, edge_dir="in",
        collect_features=command["features"], worker_options=options, locality=job["locality"], **epoch,
    )  # fmt: skip


def train(job: Job) -> None:
    """Reads from the server of its host, or from that which owns the most seeds of a batch."""
    pretend_a_host(job)
    init_client(job["servers"], job["clients"], job["rank"], job["master"], job["port"], is_dynamic=True)
    answer(up=True)

    def open_loader(command: Job) -> Any:
        if "rows" in command:
            return learn(command, job)
        is_near = job["locality"] is not None
        ranks = None if is_near else job["rank"]  # batches of near seeds come from any server, mostly this host's
        options = RemoteDistSamplingWorkerOptions(server_rank=ranks, **job["options"])
        return loader_of(job, command, None, options)

    reader = Reader(job)
    for command in commands():
        reader.do(command, open_loader)
    answer(exit=True)
    shutdown_client()


def train_with_partition(job: Job) -> None:
    """Holds a partition, samples by itself or by processes of its own, and answers the other trainers."""
    pretend_a_host(job)
    dataset = DistDataset()
    dataset.load(job["directory"], job["rank"])
    init_worker_group(job["servers"], job["rank"])
    init_rpc(job["master"], job["port"])
    counts = np.memmap(job["counter"], np.int64, "r+")
    threading.Thread(target=count_requests, args=(counts,), daemon=True).start()
    answer(up=True)
    kind: Any = MpDistSamplingWorkerOptions if job["mode"] == "mp" else CollocatedDistSamplingWorkerOptions
    options = kind(**job["options"])
    loader: DistNeighborLoader | None = None

    def open_loader(command: Job) -> DistNeighborLoader:
        nonlocal loader
        loader = loader_of(job, command, dataset, options)
        return loader

    reader = Reader(job)
    for command in commands():
        if command["op"] == "stats":
            kept = None if loader is None else loader.row_cache_stats()
            answer(requests=0, copies=asdict(kept or RowCacheStats()))  # requests are counted meanwhile
        else:
            reader.do(command, open_loader)
    answer(exit=True)
    shutdown_rpc(graceful=False)  # trainers are ended one after another


def count_requests(counts: Any) -> None:
    """Writes down how many requests this process has answered, ten times a second, as long as it is in its job."""
    with contextlib.suppress(NotInitializedError):
        while True:
            counts[1] = get_endpoint().stats().requests_served
            time.sleep(0.1)


def learn(command: Job, job: Job) -> Iterator[Any]:
    """Steps of rows that are learned: looked up, and changed by all trainers together."""
    embedding = DistEmbedding(job["seeds"], command["dim"], name="rows")
    optimizer = SparseAdam([embedding], lr=0.01)
    for ids in uses_of(command, job["seeds"], job["rank"]):
        embedding(torch.from_numpy(ids)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        yield


def read_in_process(job: Job) -> None:
    """The loader without servers, of the whole graph."""
    datasets = {name: DistDataset() for name in job["directories"]}
    for name, directory in job["directories"].items():
        datasets[name].load(directory, 0)
    answer(up=True)

    def open_loader(command: Job) -> Any:
        data = datasets["features" if command["features"] else "bare"]
        return NeighborLoader(
            data, command["fanout"], seeds_of(job), batch_size=command["batch_size"], shuffle=True, prefetch=0
        )

    reader = Reader(job)
    for command in commands():
        reader.do(command, open_loader)
    answer(exit=True)


# --- others ------------------------------------------------------------------------------------------------------


def flood(job: Job) -> None:
    """Asks server 0 for small things, many at a time, while it is told to; says how many were answered."""
    pretend_a_host(job)
    init_client(job["servers"], job["clients"], job["rank"], job["master"], job["port"], is_dynamic=True)
    answer(up=True)
    count, asked = 0, deque[Any]()
    for command in commands():
        answer(requests=count)
        while command["op"] == "go" and not is_told():
            while len(asked) < IN_FLIGHT:
                asked.append(async_request_server(0, DistServer.get_dataset_meta))
            asked.popleft().wait()
            count += 1
        while asked:
            asked.popleft().wait()
    answer(exit=True)
    shutdown_client()


def keep_busy(job: Job) -> None:
    """Runs Python while it is told to."""
    answer(up=True)
    for command in commands():
        answer(done=command["op"])
        if command["op"] == "go":
            compute(is_told)


def move_bytes(job: Job) -> None:
    """One end of a bare connection: rank 0 sends as many bytes as rank 1 asks it for, from one block that stays in the
    cache to another; both say what CPU time that took."""
    with contextlib.ExitStack() as stack:
        if job["rank"] == 0:
            listener = stack.enter_context(socket.create_server(("", 0)))
            answer(port=listener.getsockname()[1])
            connection = stack.enter_context(listener.accept()[0])
        else:
            connection = stack.enter_context(socket.create_connection((job["address"], job["port"])))
            answer(up=True)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        block = memoryview(bytearray(128 << 10))
        for command in commands():
            began = time.process_time()
            for _ in range(command["rounds"]):
                left = command["bytes"]
                if job["rank"] == 0:
                    connection.recv(1)
                    while left:
                        left -= connection.send(block[: min(left, len(block))])
                else:
                    connection.sendall(b".")
                    while left:
                        left -= connection.recv_into(block, min(left, len(block)))
            answer(cpu_s=time.process_time() - began)


ROLES = {
    "server": serve,
    "wire": move_bytes,
    "trainer": train,
    "member": train_with_partition,
    "in process": read_in_process,
    "flood": flood,
    "busy": keep_busy,
}

if __name__ == "__main__":
    torch.set_num_threads(1)
    run(ROLES)
