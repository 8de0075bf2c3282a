"""One oracle for all: every mode gives the bits of the loader in one process, whatever is sampled, how, and from where.

{collocated, multiprocessing, remote} x {1, 2, 3 partitions} x {homogeneous, typed} x {nodes, links, subgraphs, HGT} x
{uniform, weighted, temporal, near seeds} x {in, out}, partitions of others asked for and read in place. Processes are
dear, so that three workers run all of it in both of their modes, by turns, and three servers one job after another.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from graphlearn_dist.distributed import (
    CollocatedDistSamplingWorkerOptions,
    DistDataset,
    MpDistSamplingWorkerOptions,
    RemoteDistSamplingWorkerOptions,
    barrier,
    init_client,
    init_server,
    init_worker_group,
    shutdown_client,
    shutdown_rpc,
    wait_and_shutdown_server,
)
from graphlearn_dist.distributed.workers.fork_server import hold_fork_server
from graphlearn_dist.utils.system.ports import reserved_port
from tests.support.graphs import Direction
from tests.support.jobs import load
from tests.support.oracle import (
    GRAPHS,
    SAMPLINGS,
    compare_epochs,
    graph_of,
    open_loader,
    oracle_epochs,
    write_partitions,
)
from tests.support.processes import TestProcess, assert_nothing_left, start

HERE = "tests.distributed.test_oracle_modes"
DEADLINE_S = 600.0  # only ever reached by a hang
NUM_PROCESSES = 3
DIRECTIONS: tuple[Direction, ...] = ("in", "out")
TRAINED: tuple[str, Direction] = ("homogeneous", "in")  # what the tests of epochs go over
OTHER_SEED = -6
TOGETHER = (None, 2, 3)  # batches that travel together
CASES = list(itertools.product(sorted(GRAPHS), DIRECTIONS, (1, 2, 3)))
MakeDirectory = Callable[[str, Direction, int], str]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> MakeDirectory:
    """Partition directories, by graph, direction and number of partitions; random ones and ranges in turns. Where there
    are three, features lie in other partitions than their nodes and edges."""
    made: dict[tuple[str, Direction, int], str] = {}

    def find(name: str, edge_dir: Direction, num_parts: int) -> str:
        key = name, edge_dir, num_parts
        if key not in made:
            kind = ("random", "range")[(sorted(GRAPHS).index(name) + DIRECTIONS.index(edge_dir) + num_parts) % 2]
            root = tmp_path_factory.mktemp("graph")
            own = num_parts == 3
            made[key] = str(
                write_partitions(
                    graph_of(name), root, kind, num_parts, edge_dir, own_feature_books=own, with_order=True
                )
            )
        return made[key]

    return find


# --- epochs of several trainers ------------------------------------------------------------------------------------


def run_epochs(dataset: DistDataset | None, options: Any, shard: tuple[int, int]) -> dict[str, Any]:
    """Four epochs of one trainer's share of the batches, the second left early and the last with another seed: the
    positions of each batch's seeds in the input."""
    epochs = []
    with open_loader(*TRAINED, ("node", "uniform"), dataset, options, shard=shard) as loader:
        for stop in (None, 1 + shard[0], None):
            epochs.append([batch.input_id.tolist() for batch in itertools.islice(loader, stop)])
    with open_loader(*TRAINED, ("node", "uniform"), dataset, options, shard=shard, random_seed=OTHER_SEED) as loader:
        epochs.append([batch.input_id.tolist() for batch in loader])
    return {"shard": shard, "epochs": epochs}


def check_epochs(trainers: list[dict[str, Any]], num_trainers: int) -> None:
    """Together they have every input once in each epoch, in an order that seed and epoch alone decide."""
    assert [trainer["shard"] for trainer in trainers] == [[rank, num_trainers] for rank in range(num_trainers)]
    oracle = [
        *oracle_epochs(*TRAINED, ("node", "uniform"), count=3),
        *oracle_epochs(*TRAINED, ("node", "uniform"), count=1, seed=OTHER_SEED),
    ]
    orders = [[batch["input_id."].tolist() for batch in epoch] for epoch in oracle]
    flat = [list(itertools.chain(*order)) for order in orders]
    assert all(one != other for one, other in itertools.combinations(flat, 2))
    for number, order in enumerate(orders):
        shares = [trainer["epochs"][number] for trainer in trainers]
        for rank, share in enumerate(shares):
            assert share == order[rank::num_trainers][: 1 + rank if number == 1 else None]
        if number != 1:  # which all of them left
            seen = sorted(itertools.chain(*itertools.chain(*shares)))
            assert seen == sorted(flat[number]) == list(range(len(seen)))


# --- workers: collocated and multiprocessing -----------------------------------------------------------------------


@hold_fork_server()  # one for all loaders
def work(rank: int, port: int, directories: list[str], in_turns: bool) -> dict[str, Any]:
    """One worker of three: loaders over its share of the input, all or every third ("in turns");
    every third with subprocesses too; then the loops of a trainer.

    Where there are fewer partitions than workers, two hold the same one.
    """
    meeting = {"master_addr": "127.0.0.1", "master_port": port, "rpc_timeout": DEADLINE_S}
    init_worker_group(NUM_PROCESSES, rank)
    datasets = [load(Path(path), rank % case[2]) for case, path in zip(CASES, directories, strict=True)]
    compared = {"collocated": 0, "mp": 0}
    epochs: dict[str, Any] = {}
    for in_place in (False, True):
        if in_place:  # nobody is told how to read a partition before all have asked each other for everything
            barrier(DEADLINE_S)
            os.environ["GLD_SHARE_PARTITIONS"] = "1"
            barrier(DEADLINE_S)
        cells = itertools.product(zip(CASES, datasets, strict=True), SAMPLINGS)
        for number, (((name, edge_dir, _), dataset), sampling) in enumerate(cells):
            place = {"part": (rank, NUM_PROCESSES)}
            modes: dict[str, Any] = {}
            both = {"batches_per_message": TOGETHER[number % 3], "row_cache": (None, 0.3)[number % 2]}
            if not in_turns or (number + in_place) % NUM_PROCESSES == rank:
                modes["collocated"] = CollocatedDistSamplingWorkerOptions(**meeting, **both, prefetch_size=rank)
            if number % NUM_PROCESSES == rank and number // NUM_PROCESSES % 2 == in_place:
                own = {"num_workers": 1 + (number % 4 == 0), "num_threads": 1 + number % 2, "channel_size": "32MB"}
                modes["mp"] = MpDistSamplingWorkerOptions(**meeting, **both, **own)
            for mode, options in modes.items():
                with open_loader(name, edge_dir, sampling, dataset, options, **place) as loader:
                    expected = oracle_epochs(name, edge_dir, sampling, **place)[: 1 + (number % 4 == 0)]
                    assert compare_epochs(loader, expected) > 0
                compared[mode] += 1
    for num_trainers in (2, 3):
        dataset, shard = datasets[CASES.index((*TRAINED, num_trainers))], (rank, num_trainers)
        if rank < num_trainers:
            for options in (CollocatedDistSamplingWorkerOptions(), MpDistSamplingWorkerOptions()):
                epochs[f"{type(options).__name__}, {num_trainers}"] = run_epochs(dataset, options, shard)
    shutdown_rpc()
    return {**compared, "epochs": epochs}


@pytest.fixture(
    scope="module", params=[True, pytest.param(False, marks=pytest.mark.thorough)], ids=["in turns", "every worker"]
)
def worked(request: pytest.FixtureRequest, directory: MakeDirectory) -> list[dict[str, Any]]:
    """What three workers found."""
    directories = [directory(*case) for case in CASES]
    with ExitStack() as stack:
        port = stack.enter_context(reserved_port())
        arguments = {"port": port, "directories": directories, "in_turns": request.param}
        stack.enter_context(pytest.MonkeyPatch.context()).setenv("GLD_SHARE_PARTITIONS", "0")
        workers = [stack.enter_context(start(f"{HERE}.work", rank=i, **arguments)) for i in range(NUM_PROCESSES)]
        found = [worker.wait(DEADLINE_S) for worker in workers]
        assert_nothing_left(*(worker.pid for worker in workers))
    return found


def test_workers_make_the_batches_of_one_process(worked: list[dict[str, Any]], request: pytest.FixtureRequest) -> None:
    cells, in_turns = len(CASES) * len(SAMPLINGS), request.node.callspec.params["worked"]
    assert sum(found["collocated"] for found in worked) == 2 * cells * (1 if in_turns else NUM_PROCESSES)
    assert sum(found["mp"] for found in worked) == cells


def test_epochs_of_workers(worked: list[dict[str, Any]]) -> None:
    assert len(worked[0]["epochs"]) == 4
    for key in worked[0]["epochs"]:
        check_epochs([found["epochs"][key] for found in worked if key in found["epochs"]], int(key[-1]))


# --- servers -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Servers:
    """Processes that serve one job after another, each at a port of its own."""

    processes: list[TestProcess]
    ports: ExitStack

    def begin(self, num_servers: int, directory: str, *, in_place: bool, num_clients: int = 1) -> int:
        """The first of them begin a job; gives the port of its registry."""
        port = self.ports.enter_context(reserved_port())
        job = {
            "num_servers": num_servers,
            "num_clients": num_clients,
            "directory": directory,
            "port": port,
            "in_place": in_place,
        }
        for process in self.processes[:num_servers]:
            process.tell(json.dumps(job))
        return port


@hold_fork_server()  # one for all jobs
def serve_jobs(rank: int) -> int:
    """A server of every job that it is told of, until it is told of no more; how many there were."""
    jobs = 0
    for line in iter(sys.stdin.readline, "end\n"):
        job = json.loads(line)
        os.environ["GLD_SHARE_PARTITIONS"] = str(int(job["in_place"]))
        dataset = load(Path(job["directory"]), rank)
        init_server(job["num_servers"], job["num_clients"], rank, dataset, "127.0.0.1", job["port"])
        wait_and_shutdown_server()
        jobs += 1
    return jobs


@pytest.fixture(scope="module")
def servers() -> Iterator[Servers]:
    with ExitStack() as stack:
        processes = [stack.enter_context(start(f"{HERE}.serve_jobs", rank=rank)) for rank in range(NUM_PROCESSES)]
        yield Servers(processes, stack)
        for process in processes:
            process.tell("end")
        for process in processes:
            process.wait(60.0)
        assert_nothing_left(*(process.pid for process in processes))


@pytest.mark.parametrize(
    ("num_servers", "in_place", "name"),
    [
        # Each of the ways with one of the graphs; with the other where there is time.
        pytest.param(*way, name, marks=() if (number + place) % 2 else pytest.mark.thorough)
        for number, way in enumerate([(1, False), (2, False), (2, True), (3, False), (3, True)])
        for place, name in enumerate(sorted(GRAPHS))
    ],
)
def test_servers_make_the_batches_of_one_process(
    directory: MakeDirectory, servers: Servers, name: str, num_servers: int, in_place: bool
) -> None:
    """One server or all of them sample, with one worker or two each, and with one thread or two."""
    for edge_dir in DIRECTIONS:
        port = servers.begin(num_servers, directory(name, edge_dir, num_servers), in_place=in_place)
        init_client(num_servers, 1, 0, "127.0.0.1", port)
        try:
            for number, sampling in enumerate(SAMPLINGS, num_servers):
                ranks = list(range(num_servers)) if number % 4 == 0 else number % num_servers
                both = {"num_workers": 1 + (number % 4 == 1), "num_threads": 1 + number % 2, "buffer_size": "16MB"}
                options = RemoteDistSamplingWorkerOptions(ranks, **both, batches_per_message=TOGETHER[number % 3])
                with open_loader(name, edge_dir, sampling, None, options) as loader:
                    expected = oracle_epochs(name, edge_dir, sampling)[: 1 + (number % 3 == 0)]
                    assert compare_epochs(loader, expected) > 0
        finally:
            shutdown_client()


def train(rank: int) -> list[dict[str, Any]]:
    """A trainer of two jobs of servers: the epochs of each that it takes part in."""
    found = []
    for line in iter(sys.stdin.readline, "end\n"):
        num_trainers, num_servers, port = json.loads(line)
        if rank < num_trainers:
            init_client(num_servers, num_trainers, rank, "127.0.0.1", port)
            ranks = list(range(num_servers)) if rank == 0 else rank % num_servers
            found.append(run_epochs(None, RemoteDistSamplingWorkerOptions(ranks), (rank, num_trainers)))
            shutdown_client()
    return found


def test_epochs_of_clients(directory: MakeDirectory, servers: Servers) -> None:
    """Two and three trainers, over three servers and two."""
    with ExitStack() as stack:
        trainers = [stack.enter_context(start(f"{HERE}.train", rank=rank)) for rank in range(NUM_PROCESSES)]
        for num_trainers, num_servers in ((2, 3), (3, 2)):
            partitions = directory(*TRAINED, num_servers)
            port = servers.begin(num_servers, partitions, num_clients=num_trainers, in_place=False)
            for trainer in trainers:
                trainer.tell(json.dumps([num_trainers, num_servers, port]))
        for trainer in trainers:
            trainer.tell("end")
        found = [trainer.wait(DEADLINE_S) for trainer in trainers]
        assert_nothing_left(*(trainer.pid for trainer in trainers))
    check_epochs([jobs[0] for jobs in found[:2]], 2)
    check_epochs([jobs[-1] for jobs in found], 3)


def test_draws_differ() -> None:
    """That a mode draws by weight or time shows only where this is not what it would draw anyhow."""
    for task in ("node", "link", "subgraph", "hgt"):
        drawn = [oracle_epochs(*TRAINED, sampling)[0][0] for sampling in SAMPLINGS if sampling[0] == task]
        for one, other in itertools.combinations(drawn, 2):
            assert not torch.equal(one["e_id."], other["e_id."])
