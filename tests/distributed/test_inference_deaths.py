"""Inference over deaths: of servers, and of processes that infer alone or together. It goes on, or ends with one error.

``python -m pytest tests/distributed/test_inference_deaths.py -m thorough`` has twenty deaths at random moments in each
way of computing.
"""

from __future__ import annotations

import contextlib
import random
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch_geometric.nn import GraphSAGE

from graphlearn_dist.distributed import ServedDataset, init_client, shutdown_client
from graphlearn_dist.errors import PeerLostError
from graphlearn_dist.inference import InferenceOptions, infer, open_results
from tests.support.graphs import random_graph
from tests.support.inference import basic, dataset_of, num_done, partitions_of
from tests.support.jobs import Job, running_servers
from tests.support.processes import TestProcess, start
from tests.support.worker_groups import DEADLINE_S, member, running_group

HERE = "tests.distributed.test_inference_deaths"
GRAPH = random_graph(900, 7000, 7)
OPTIONS = InferenceOptions(block_size=2, num_threads=2, resume=True)  # many blocks: a death may come in any of them
TOGETHER = replace(OPTIONS, together=True)

pytestmark = pytest.mark.faults


def expected_rows() -> torch.Tensor:
    return infer(basic(GraphSAGE), dataset_of(GRAPH)).rows()


# --- a server, at a known block ----------------------------------------------------------------------------------


@contextlib.contextmanager
def served_again(directory: Path, job: Job, rank: int) -> Iterator[TestProcess]:
    """A server in place of one that was killed."""
    arguments = {"directory": str(directory), "rank": rank, "num_servers": 2, "num_clients": job.num_clients}
    with start("tests.support.jobs.serve", **arguments, port=job.port, fd=-1, partition=-1) as server:
        yield server


class Calling(torch.nn.Module):
    """A layer that calls a function before one of its blocks, its third one."""

    def __init__(self, conv: torch.nn.Module, function: Callable[[], None]) -> None:
        super().__init__()
        self.conv, self._function, self.calls = conv, function, 0

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        if self.calls == 3:
            self._function()
        return self.conv(x, edge_index)  # type: ignore[no-any-return]


def layers(layer: int, function: Callable[[], None]) -> list[torch.nn.Module]:
    """Two layers, of which one calls."""
    return [Calling(conv, function if layer == i else lambda: None) for i, conv in enumerate(basic(GraphSAGE).convs)]


@pytest.mark.parametrize(("layer", "num_threads"), [(0, 1), (0, 3), (1, 2)])
def test_a_server_that_comes_back_is_asked_again(layer: int, num_threads: int, tmp_path: Path) -> None:
    directory = partitions_of(GRAPH, tmp_path, "random", 2)
    with contextlib.ExitStack() as stack, running_servers(directory, directory) as job, job.client():

        def die() -> None:
            job.servers[1].kill()
            stack.enter_context(served_again(directory, job, 1))

        options = InferenceOptions(block_size=100, num_threads=num_threads, reconnect_timeout=DEADLINE_S)
        found = infer(layers(layer, die), ServedDataset.connect(DEADLINE_S), options=options)
    assert torch.equal(found.rows(), infer(layers(-1, lambda: None), dataset_of(GRAPH)).rows())


def test_a_server_that_stays_away_is_one_error(tmp_path: Path) -> None:
    """What was finished is kept."""
    directory = partitions_of(GRAPH, tmp_path, "random", 2)
    options = InferenceOptions(block_size=100, num_threads=1, resume=True, reconnect_timeout=0)
    with running_servers(directory, directory) as job, job.client():
        served = ServedDataset.connect(DEADLINE_S)
        with pytest.raises(PeerLostError, match="server 1"):
            infer(layers(0, job.servers[1].kill), served, tmp_path / "out", options=options)
        with served_again(directory, job, 1):
            again = replace(options, reconnect_timeout=DEADLINE_S)
            model = layers(-1, lambda: None)
            found = infer(model, served, tmp_path / "out", options=again)
    assert torch.equal(found.rows(), infer(layers(-1, lambda: None), dataset_of(GRAPH)).rows())
    assert [layer.calls for layer in model] == [10 - 3, 10]  # of 5 blocks in each partition


# --- anyone, at random moments -----------------------------------------------------------------------------------


def alone(directory: str, out: str) -> str | None:
    infer(basic(GraphSAGE), f"{directory}/partitions", out, options=OPTIONS)
    return None


def worker(rank: int, world_size: int, port: int, fd: int, directory: str, out: str) -> str | None:
    """One of the workers; what it says when another one is gone."""
    with member(rank, world_size, port, fd):
        try:
            infer(basic(GraphSAGE), f"{directory}/partitions", out, options=TOGETHER)
        except PeerLostError as error:
            return str(error)
    return None


def client(rank: int, port: int, out: str) -> str | None:
    """One of two clients of two servers."""
    init_client(2, 2, rank, "127.0.0.1", port, is_dynamic=True, connect_timeout_s=DEADLINE_S)
    try:
        infer(basic(GraphSAGE), ServedDataset.connect(DEADLINE_S), out, options=TOGETHER)
    except PeerLostError as error:
        return str(error)
    finally:
        shutdown_client()
    return None


@dataclass
class Running:
    """Processes of an inference.

    Attributes:
        inferring: those that compute.
        servers: that can be started again, by rank.
        serve_again: does so.
    """

    inferring: list[TestProcess]
    servers: list[TestProcess]
    serve_again: Callable[[int], None] = lambda rank: None


@contextlib.contextmanager
def running_alone(root: Path, out: Path) -> Iterator[Running]:
    with start(f"{HERE}.alone", directory=str(root), out=str(out)) as process:
        yield Running([process], [])


@contextlib.contextmanager
def running_workers(root: Path, out: Path) -> Iterator[Running]:
    with running_group(f"{HERE}.worker", 2, directory=str(root), out=str(out)) as processes:
        yield Running(processes, [])


class OverServers:
    """Two servers, which stay from one inference to the next, and two clients."""

    def __init__(self, root: Path, stack: contextlib.ExitStack) -> None:
        self._directory, self._stack = root / "partitions", stack
        self._job = stack.enter_context(running_servers(self._directory, self._directory))

    @contextlib.contextmanager
    def __call__(self, _: Path, out: Path) -> Iterator[Running]:
        with contextlib.ExitStack() as stack:
            clients = [
                stack.enter_context(start(f"{HERE}.client", rank=rank, port=self._job.port, out=str(out)))
                for rank in range(2)
            ]
            yield Running(clients, self._job.servers, self._serve_again)

    def _serve_again(self, rank: int) -> None:
        self._job.servers[rank] = self._stack.enter_context(served_again(self._directory, self._job, rank))


def wait_for_a_block(out: Path, before: int, running: Running) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while num_done(out) <= before and all(process.poll() is None for process in running.inferring):
        assert time.monotonic() < deadline
        time.sleep(0.002)


def kill_one(running: Running, rng: random.Random) -> bool:
    """Whether it was still alive."""
    number = rng.randrange(len(running.inferring) + len(running.servers))
    if number < len(running.inferring):
        running.inferring[number].kill()
        return running.inferring[number].poll() == -signal.SIGKILL
    rank = number - len(running.inferring)
    is_needed = any(process.poll() is None for process in running.inferring)
    running.servers[rank].kill()
    running.serve_again(rank)
    return is_needed


def ends_of(running: Running) -> list[str | None]:
    """What each said that was not killed: nothing, or who was lost."""
    found = [process.wait(DEADLINE_S) for process in running.inferring if process.poll() != -signal.SIGKILL]
    assert all(said is None or said.startswith("lost ") for said in found), found
    return found


def check_deaths(way: Any, root: Path, num_deaths: int, seed: int) -> None:
    """Kills one process after the other until so many were, and compares what is there at the end of each inference."""
    rng = random.Random(seed)
    expected, left, number = expected_rows(), num_deaths, 0
    while left or number == 0 or (root / f"out{number}").exists():
        out = root / f"out{number}"
        before = num_done(out)
        with way(root, out) as running:
            wait_for_a_block(out, before, running)
            if left:
                time.sleep(rng.uniform(0.0, 0.4))
                left -= kill_one(running, rng)
            ends = ends_of(running)
        if (out / "RESULTS.json").exists():
            assert torch.equal(open_results(out).rows(), expected)
            number += 1
        else:
            assert left < num_deaths  # nobody fails by itself
            assert any(ends) or len(ends) < len(running.inferring)
    assert number > 0


WAYS = ("alone", "workers", "servers")


def check_way(way: str, root: Path, num_deaths: int, seed: int) -> None:
    partitions_of(GRAPH, root, "random", 2)
    with contextlib.ExitStack() as stack:
        ways: dict[str, Callable[[], Any]] = {
            "alone": lambda: running_alone,
            "workers": lambda: running_workers,
            "servers": lambda: OverServers(root, stack),
        }
        check_deaths(ways[way](), root, num_deaths, seed)


@pytest.mark.parametrize("way", WAYS)
def test_two_deaths_at_random_moments(way: str, tmp_path: Path) -> None:
    check_way(way, tmp_path, 2, 1)


@pytest.mark.thorough
@pytest.mark.parametrize("way", WAYS)
def test_twenty_deaths_at_random_moments(way: str, tmp_path: Path) -> None:
    check_way(way, tmp_path, 20, 2)
