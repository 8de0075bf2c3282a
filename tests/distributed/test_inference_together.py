"""Processes that infer together give the bits of inference in one process, and its files."""

from __future__ import annotations

import functools
import os
import signal
import threading
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from torch_geometric.nn import GAT, GCN, GraphSAGE

from graphlearn_dist.distributed import ServedDataset, init_client, shutdown_client
from graphlearn_dist.errors import InvalidArgumentError, NotInitializedError, PeerLostError
from graphlearn_dist.inference import InferenceOptions, infer, open_results, together
from graphlearn_dist.rpc.calls.remote import LONGEST_S
from tests.support.graphs import TestGraph, random_graph, typed_graph, with_weights
from tests.support.inference import WIDTH, WeightedLayer, basic, dataset_of, partitions_of, pyg_of, typed_layers
from tests.support.jobs import load, running_servers
from tests.support.processes import run_processes
from tests.support.worker_groups import DEADLINE_S, member, run_group, running_group

HERE = "tests.distributed.test_inference_together"
HOMOGENEOUS = with_weights(random_graph(300, 2500, 1), 3, some_zero=False)
TYPED = typed_graph(130, 70, 900, 2)
CASES: dict[str, dict[str, Any]] = {
    "sage": {"block_size": 40},
    "sage-files": {"block_size": 40, "file_bytes": 900},
    "gat-fanout": {"block_size": 50, "fanout": 3},
    "gcn-float16": {"block_size": 64, "dtype": torch.float16},
    "weighted": {"block_size": 33, "weights": True},
    "typed": {"block_size": 20},
    "typed-one": {"block_size": 20, "node_types": ("item",), "format": "parquet"},
}


def graph_of(case: str) -> TestGraph:
    return TYPED if case.startswith("typed") else HOMOGENEOUS


def model_of(case: str) -> Any:
    torch.manual_seed(0)
    match case.partition("-")[0]:
        case "typed":
            return typed_layers(pyg_of(TYPED))
        case "weighted":
            return [WeightedLayer(WIDTH, 8), WeightedLayer(8, 4)]
        case name:
            return basic({"sage": GraphSAGE, "gat": GAT, "gcn": GCN}[name])


def options_of(case: str, **more: Any) -> InferenceOptions:
    return InferenceOptions(**CASES[case], num_threads=2, **more)


def check(out: Path, cases: list[str]) -> None:
    for case in cases:
        alone = out / f"{case}-alone"
        infer(model_of(case), dataset_of(graph_of(case)), alone, options=options_of(case))
        found, expected = open_results(out / case), open_results(alone)
        for node_type in expected.node_types:
            assert torch.equal(found.rows(node_type), expected.rows(node_type))
        assert [path.name for path in sorted((out / case).iterdir())] == [path.name for path in sorted(alone.iterdir())]


# --- workers, each with a partition ----------------------------------------------------------------------------


def work(rank: int, world_size: int, port: int, fd: int, directory: str) -> None:
    with member(rank, world_size, port, fd):
        for case in CASES:
            data = Path(directory, "typed" if case.startswith("typed") else "homogeneous", "partitions")
            part: Any = load(data, (rank + 1) % world_size) if case == "sage-files" else data
            infer(model_of(case), part, Path(directory, "out", case), options=options_of(case, together=True))


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_workers(world_size: int, tmp_path: Path) -> None:
    for name, graph in {"homogeneous": HOMOGENEOUS, "typed": TYPED}.items():
        partitions_of(graph, tmp_path / name, "random", world_size)
    run_group(f"{HERE}.work", world_size, directory=str(tmp_path))
    check(tmp_path / "out", list(CASES))


# --- clients of servers ----------------------------------------------------------------------------------------

SERVED = ["sage-files", "gcn-float16", "gat-fanout"]


def ask(port: int, rank: int, num_servers: int, num_clients: int, directory: str) -> None:
    init_client(num_servers, num_clients, rank, "127.0.0.1", port)
    served = ServedDataset.connect(DEADLINE_S)
    for case in SERVED:
        infer(model_of(case), served, Path(directory, "out", case), options=options_of(case, together=True))
    shutdown_client()


@pytest.mark.parametrize("num_clients", [1, 2, 3])
def test_clients(num_clients: int, tmp_path: Path) -> None:
    directory = partitions_of(HOMOGENEOUS, tmp_path, "random", 3)
    with running_servers(*[directory] * 3, num_clients=num_clients) as job:
        shared = {"port": job.port, "num_servers": 3, "num_clients": num_clients, "directory": str(tmp_path)}
        run_processes([(f"{HERE}.ask", {"rank": rank, **shared}) for rank in range(num_clients)], DEADLINE_S)
    check(tmp_path / "out", SERVED)


# --- failures --------------------------------------------------------------------------------------------------


class Stopping(torch.nn.Module):
    """A layer that does something in one of its calls."""

    def __init__(self, conv: torch.nn.Module, after: int, how: str) -> None:
        super().__init__()
        self.conv, self._left, self._how = conv, after, how

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        self._left -= 1
        if self._left == 0 and self._how == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if self._left == 0:
            raise RuntimeError("no rows")
        return self.conv(x, edge_index)  # type: ignore[no-any-return]


def stopping(layer: int, after: int, how: str) -> list[Stopping]:
    convs = basic(GraphSAGE).convs
    return [Stopping(conv, after if number == layer else 0, how) for number, conv in enumerate(convs)]


SMALL_BLOCKS = InferenceOptions(block_size=30, num_threads=1, together=True, resume=True)


def stop(
    rank: int, world_size: int, port: int, fd: int, directory: str, layer: int, after: int, how: str
) -> str | None:
    """Worker 1 stops in a layer; what the others say. ``layer`` -1: nobody stops."""
    with member(rank, world_size, port, fd):
        try:
            model = stopping(layer if rank == 1 else -1, after, how)
            infer(model, f"{directory}/partitions", f"{directory}/out", options=SMALL_BLOCKS)
        except (PeerLostError, RuntimeError) as error:
            return f"{type(error).__name__}: {error}"
    return None


def test_killed_and_resumed(tmp_path: Path) -> None:
    partitions_of(HOMOGENEOUS, tmp_path, "random", 2)
    for layer, after in ((0, 2), (1, 1), (1, 4)):
        more = {"directory": str(tmp_path), "layer": layer, "after": after, "how": "die"}
        with running_group(f"{HERE}.stop", 2, **more) as (other, dying):
            with pytest.raises(AssertionError):
                dying.wait(DEADLINE_S)
            assert other.wait(DEADLINE_S).startswith("PeerLostError: ")
        assert not (tmp_path / "out" / "RESULTS.json").exists()
    run_group(f"{HERE}.stop", 2, directory=str(tmp_path), layer=-1, after=0, how="")
    expected = infer(stopping(-1, 0, ""), dataset_of(HOMOGENEOUS))
    assert torch.equal(open_results(tmp_path / "out").rows(), expected.rows())
    assert [path.name for path in sorted((tmp_path / "out").iterdir())] == ["RESULTS.json", "part-00000.npy"]


def test_an_error_is_told(tmp_path: Path) -> None:
    partitions_of(HOMOGENEOUS, tmp_path, "random", 3)
    said = run_group(f"{HERE}.stop", 3, directory=str(tmp_path), layer=1, after=2, how="raise")
    assert said[1] == "RuntimeError: no rows"
    for each in (said[0], said[2]):
        assert "_default_worker_1" in each
        assert "its inference failed: RuntimeError: no rows" in each


class Counting(torch.nn.Module):
    """A layer whose second call ends when another process has failed, as this one was told."""

    def __init__(self, conv: torch.nn.Module, told: threading.Event | None) -> None:
        super().__init__()
        self.conv, self._told, self.calls = conv, told, 0

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        if self._told is not None and self.calls == 2:
            assert self._told.wait(DEADLINE_S)
        return self.conv(x, edge_index)  # type: ignore[no-any-return]


def count(rank: int, world_size: int, port: int, fd: int, directory: str, how: str) -> tuple[int, str, str]:
    """Worker 1 stops in its first block; how many blocks another one has computed, and what it says, twice."""
    event, alarm = threading.Event(), together.Alarm
    for name in ("ring", "lost"):
        told = getattr(alarm, name)
        setattr(alarm, name, functools.wraps(told)(lambda *args, told=told: (told(*args), event.set())))
    with member(rank, world_size, port, fd):
        conv = basic(GraphSAGE).convs[0]
        model = [Stopping(conv, 1, how) if rank == 1 else Counting(conv, event if rank == 0 else None)]
        with pytest.raises((PeerLostError, RuntimeError)) as caught:
            infer(model, f"{directory}/partitions", f"{directory}/out", options=SMALL_BLOCKS)
        calls, again = getattr(model[0], "calls", 0), ""
        if how == "raise":  # all met for the same, and can go on
            found = infer(model, f"{directory}/partitions", f"{directory}/out", options=SMALL_BLOCKS)
            again = str(tuple(found.rows().shape))
    return calls, f"{type(caught.value).__name__}: {caught.value}", again


def test_a_failure_is_told_before_the_next_block(tmp_path: Path) -> None:
    partitions_of(HOMOGENEOUS, tmp_path, "random", 3)
    found = run_group(f"{HERE}.count", 3, directory=str(tmp_path), how="raise")
    assert found[1] == [0, "RuntimeError: no rows", "(300, 16)"]
    for _, said, again in (found[0], found[2]):
        assert "_default_worker_1" in said
        assert "its inference failed: RuntimeError: no rows" in said
        assert again == "(300, 16)"
    assert found[0][0] <= 2  # of 4 blocks


def test_a_death_is_told_before_the_next_block(tmp_path: Path) -> None:
    partitions_of(HOMOGENEOUS, tmp_path, "random", 2)
    with running_group(f"{HERE}.count", 2, directory=str(tmp_path), how="die") as (other, dying):
        with pytest.raises(AssertionError):
            dying.wait(DEADLINE_S)
        calls, said, _ = other.wait(DEADLINE_S)
    assert calls <= 2  # of 5 blocks
    assert said.startswith("PeerLostError: lost ")
    assert "_default_worker_1" in said


def test_whoever_failed_waits_until_the_others_come(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long that takes: one that goes on living would else be waited for."""
    told: list[tuple[Any, float]] = []
    monkeypatch.setattr(together.rpc, "all_gather", lambda value, timeout: told.append((value, timeout)))
    endpoint = mock.Mock()
    monkeypatch.setattr(together.rpc, "get_endpoint", lambda: endpoint)
    alarm = together.Alarm(endpoint, 0)
    group = together.Group(0, ("a", "b"), (0,), {0: "a", 1: "b"}, 0, alarm)
    with pytest.raises(RuntimeError, match="no rows"), group.telling():
        raise RuntimeError("no rows")
    assert told == [({"error": "RuntimeError: no rows"}, LONGEST_S)]
    with pytest.raises(PeerLostError), group.telling():
        raise PeerLostError("b (worker 1, pid 1 on vm)", "it is gone")
    assert len(told) == 1  # of a process of the group the others know themselves
    with pytest.raises(PeerLostError), group.telling():
        raise PeerLostError("server (server 0, pid 1 on vm)", "it is gone")
    assert len(told) == 2


def differ(rank: int, world_size: int, port: int, fd: int, directory: str) -> list[str]:
    """Calls that do not fit together."""
    found = []
    with member(rank, world_size, port, fd):
        for number, (part, seed) in enumerate([(0, 0), (rank, rank)]):
            dataset, out = load(Path(directory, "partitions"), part), Path(directory, f"out{number}")
            with pytest.raises(InvalidArgumentError) as error:
                infer(basic(GraphSAGE, seed=seed), dataset, out, options=options_of("sage", together=True))
            found.append(str(error.value))
    return found


def test_mistakes(tmp_path: Path) -> None:
    directory = partitions_of(HOMOGENEOUS, tmp_path, "random", 2)
    for said in run_group(f"{HERE}.differ", 2, directory=str(tmp_path)):
        assert said[0].startswith("together: expected each of 2 partitions in one process")
        assert said[1].startswith("model, data, options: _default_worker_1 has others than _default_worker_0")
    with pytest.raises(NotInitializedError, match="together: expected a worker of a group or a client of servers"):
        infer(basic(GraphSAGE), directory, tmp_path / "out", options=options_of("sage", together=True))
