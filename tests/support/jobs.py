"""Jobs of real servers for tests: a small graph, servers in processes of their own, and what is left when they end."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from graphlearn_dist.cli import main
from graphlearn_dist.config import LaunchContext
from graphlearn_dist.distributed import DistDataset, init_client, shutdown_client
from graphlearn_dist.partition import RangePartitioner
from tests.support.processes import TestProcess, start

NUM_NODES = 120
NUM_FEATURES = 4


def make_partitions(
    directory: Path,
    num_parts: int,
    *,
    num_features: int = NUM_FEATURES,
    splits: bool = False,
    valid: Sequence[int] = range(50, 60),
    num_nodes: int = NUM_NODES,
) -> Path:
    """Node v has in-neighbors v+1 … v+4 (modulo ``num_nodes``), features [v, v, …] and label v."""
    ids = torch.arange(num_nodes)
    test = ids[60:]
    edges = torch.cat([torch.stack([(ids + hop) % num_nodes, ids]) for hop in (1, 2, 3, 4)], dim=1)
    partitioner = RangePartitioner(
        str(directory),
        num_parts,
        num_nodes,
        edges,
        node_feat=ids.float()[:, None].repeat(1, num_features),
        edge_assign_strategy="by_dst",
        node_labels=ids,
        node_split=(ids[:50], torch.tensor(valid), test[~torch.isin(test, torch.tensor(valid))]) if splits else None,
    )
    partitioner.partition()
    return directory


def load(directory: Path, partition_idx: int = 0, **options: Any) -> DistDataset:
    """One partition of a directory."""
    dataset = DistDataset()
    dataset.load(directory, partition_idx, **options)
    return dataset


def serve(
    directory: str,
    rank: int,
    num_servers: int,
    num_clients: int,
    port: int,
    fd: int,
    partition: int,
) -> int:
    """What ``graphlearn-dist serve`` does under the launcher; with ``partition`` >= 0 instead of its rank's own."""
    os.environ.update(LaunchContext("server", rank, num_servers, num_clients, "127.0.0.1", port, fd).to_environ())
    if partition >= 0:
        load_own = DistDataset.load
        DistDataset.load = lambda self, root, _: load_own(self, root, partition)  # type: ignore[method-assign]
    return main(["serve", "--data", directory])


@dataclass
class Job:
    """Servers that run, and where their clients find them."""

    port: int
    servers: list[TestProcess]
    num_clients: int

    @contextlib.contextmanager
    def client(self, rank: int = 0) -> Iterator[None]:
        """This process as a client of the job."""
        init_client(len(self.servers), self.num_clients or 1, rank, "127.0.0.1", self.port, is_dynamic=True)
        try:
            yield
        finally:
            shutdown_client()


@contextlib.contextmanager
def running_servers(
    *directories: Path,
    num_clients: int = 0,
    partitions: Iterable[int] = (),
    program: str = "tests.support.jobs.serve",
) -> Iterator[Job]:
    """One server for each directory, by rank; killed at the end of the block if they still run.

    ``program`` is a function that takes the arguments of ``serve``.
    """
    own = list(partitions) or [-1] * len(directories)
    with contextlib.ExitStack() as stack:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port, fd = listener.getsockname()[1], listener.fileno()
            servers = [
                stack.enter_context(
                    start(
                        program,
                        pass_fds=[fd] if rank == 0 else [],
                        directory=str(directory),
                        rank=rank,
                        num_servers=len(directories),
                        num_clients=num_clients,
                        port=port,
                        fd=fd if rank == 0 else -1,
                        partition=own[rank],
                    )
                )
                for rank, directory in enumerate(directories)
            ]
        yield Job(port, servers, num_clients)


def children(pid: int) -> list[int]:
    """Processes whose parent it is, by their ids; but for what ``multiprocessing`` and tests have besides."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                name, _, rest = (entry / "stat").read_text().rpartition(")")
                fields = rest.split()
                is_tracker = b"multiprocessing.resource_tracker" in (entry / "cmdline").read_bytes()
                is_nursery = name.endswith("(gld-nursery")
                if int(fields[1]) == pid and fields[0] != "Z" and not is_tracker and not is_nursery:
                    found.append(int(entry.name))
    return sorted(found)


def told_of(pid: int, what: str) -> str:
    """What the system tells of a process in ``/proc``; ``ProcessLookupError`` where there is none."""
    try:
        return Path(f"/proc/{pid}/{what}").read_text()
    except FileNotFoundError:
        raise ProcessLookupError(f"there is no process {pid}") from None


def parent_of(pid: int) -> int:
    """The process that it is a child of; ``ProcessLookupError`` where it has ended."""
    return int(told_of(pid, "stat").rpartition(")")[2].split()[1])


def workers_of(pid: int) -> list[int]:
    """The sampling workers of a process, children of its fork server, by their ids."""
    found = []
    for child in children(pid):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            if Path(f"/proc/{child}/comm").read_text().strip() == "gld-fork-server":
                found += children(child)
    return sorted(found)


def wait_ended(pids: Iterable[int], timeout_s: float) -> None:
    """Returns when all these processes have ended; ``AssertionError`` names those that do not in time."""
    deadline = time.monotonic() + timeout_s
    waiting: dict[int, int] = {}
    try:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                waiting[os.pidfd_open(pid)] = pid
        left = dict(waiting)
        while left:
            ended, _, _ = select.select(list(left), [], [], max(0.0, deadline - time.monotonic()))
            if not ended:
                raise AssertionError(f"still running after {timeout_s:g} s: {sorted(left.values())}")
            for descriptor in ended:
                del left[descriptor]
    finally:
        for descriptor in waiting:
            os.close(descriptor)


def shared_memory_names() -> set[str]:
    """What lies in /dev/shm under a name of ours; other programs of this host have theirs there too."""
    return {name for name in os.listdir("/dev/shm") if "gld" in name or "graphlearn" in name}


def same_batches(batches: Iterable[Any], expected: Iterable[Any]) -> None:
    """Asserts that two epochs hold the same batches, tensor by tensor."""
    first, second = list(batches), list(expected)
    assert len(first) == len(second)
    for batch, other in zip(first, second, strict=True):
        for name in ("n_id", "edge_index", "x", "y", "input_id"):
            assert torch.equal(batch[name], other[name]), name
