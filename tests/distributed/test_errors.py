"""What goes wrong gives one clear exception where somebody can act on it, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import shutil
import signal
import threading
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from graphlearn_dist.distributed import (
    DistNeighborLoader,
    DistServer,
    RemoteDistSamplingWorkerOptions,
    dist_server,
    init_client,
    init_server,
    request_server,
    rpc,
    shutdown_client,
)
from graphlearn_dist.distributed.dist_options import ProducerRequest
from graphlearn_dist.errors import (
    DeadlineExceededError,
    InvalidArgumentError,
    NotInitializedError,
    PartitionFormatError,
    PeerLostError,
    RegistryError,
    SamplingWorkerError,
    UnknownIdError,
    VersionMismatchError,
)
from graphlearn_dist.sampler.base import NodeSamplerInput, SamplingConfig, SamplingType
from graphlearn_dist.typing import Split
from tests.support.jobs import (
    NUM_NODES,
    Job,
    children,
    load,
    make_partitions,
    running_servers,
    shared_memory_names,
    wait_ended,
    workers_of,
)
from tests.support.processes import ProcessFailure, start

HERE = "tests.distributed.test_errors"
SOON_S = 60.0  # far above what anything here takes; reached by a hang alone
SEEDS = torch.arange(NUM_NODES)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_partitions(tmp_path_factory.mktemp("whole") / "graph", 1)


@pytest.fixture(scope="module")
def halves(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_partitions(tmp_path_factory.mktemp("halves") / "graph", 2)


@pytest.fixture(scope="module", autouse=True)
def nothing_is_left() -> Iterator[None]:
    names, processes = set(shared_memory_names()), set(children(os.getpid()))
    yield
    # What an earlier test had left may have ended meanwhile.
    assert (set(shared_memory_names()) - names, set(children(os.getpid())) - processes) == (set(), set())


def make_loader(num_neighbors: Any = (2, 2), input_nodes: Any = SEEDS, **options: Any) -> DistNeighborLoader:
    """A loader over the job's servers; ``options`` that are not the loader's are its worker options."""
    names = {"data", "batch_size", "edge_dir", "shard", "collect_features", "with_weight", "temporal_strategy"}
    own = {"data": None, "batch_size": 4, "edge_dir": "in", "collect_features": True}
    own |= {name: options.pop(name) for name in names & set(options)}
    return DistNeighborLoader(
        own.pop("data"),
        num_neighbors,
        input_nodes,
        worker_options=RemoteDistSamplingWorkerOptions(**({"rpc_timeout": 60} | options)),
        **own,
    )


# --- arguments -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def server(whole: Path) -> Iterator[Job]:
    with running_servers(whole) as job:
        yield job


@pytest.fixture
def job(server: Job) -> Iterator[Job]:
    """The same server for all tests here; for each of them this process is a new client of it."""
    with server.client():
        yield server


BAD_LOADERS: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"input_nodes": torch.tensor([3, -2])}, UnknownIdError, r"input_nodes: node id -2 is outside \[0"),
    ({"input_nodes": torch.tensor([3, 120])}, UnknownIdError, r"input_nodes: node id 120 is outside \[0, 120\)"),
    ({"input_nodes": torch.tensor([0.5])}, InvalidArgumentError, "input_nodes: expected dtype int64.*float32"),
    ({"input_nodes": torch.zeros(2, 2, dtype=torch.int64)}, InvalidArgumentError, r"input_nodes: .*shape \(2, 2\)"),
    ({"input_nodes": torch.zeros(2, 2, dtype=torch.bool)}, InvalidArgumentError, r"input_nodes: .*\(2, 2\)"),
    ({"input_nodes": [0, 1]}, InvalidArgumentError, r"input_nodes: expected a torch.Tensor of ids, got list"),
    ({"input_nodes": ("user", SEEDS)}, InvalidArgumentError, "input_nodes: .*'user'"),
    ({"input_nodes": Split.train}, InvalidArgumentError, "input_nodes: the data set has no 'train' split"),
    ({"num_neighbors": [2, -3]}, InvalidArgumentError, "num_neighbors: expected each fan-out .* got -3"),
    ({"num_neighbors": [-2]}, InvalidArgumentError, "num_neighbors: expected each fan-out .* got -2"),
    ({"num_neighbors": [1.5]}, InvalidArgumentError, "num_neighbors: expected each fan-out .* got 1.5"),
    ({"num_neighbors": []}, InvalidArgumentError, "num_neighbors: expected at least one hop"),
    ({"num_neighbors": 3}, InvalidArgumentError, "num_neighbors: expected a list .* got 3"),
    ({"num_neighbors": {("a", "b", "c"): [1]}}, InvalidArgumentError, "num_neighbors: unknown edge type"),
    ({"temporal_strategy": "first"}, InvalidArgumentError, "temporal_strategy: expected one of .*, got 'first'"),
    ({"temporal_strategy": "last"}, InvalidArgumentError, "temporal_strategy: 'last' expects a data set with times"),
    ({"edge_dir": "out"}, InvalidArgumentError, "edge_dir: the data set holds 'in'-neighbors.*'out'"),
    ({"edge_dir": "both"}, InvalidArgumentError, "edge_dir: expected 'in', 'out' or None, got 'both'"),
    ({"batch_size": 0}, InvalidArgumentError, "batch_size: expected at least 1, got 0"),
    (
        {"batch_size": SEEDS},
        InvalidArgumentError,
        r"batch_size: expected an integer, got tensor\(torch",
    ),  # those as seeds
    ({"batch_size": 2.5}, InvalidArgumentError, r"batch_size: expected an integer, got 2\.5"),
    ({"with_weight": True}, InvalidArgumentError, "with_weight"),
    ({"shard": (2, 2)}, InvalidArgumentError, "shard: expected"),
    ({"shard": (-1, 2)}, InvalidArgumentError, "shard: expected"),
    ({"shard": (0, 0)}, InvalidArgumentError, "shard: expected"),
    ({"server_rank": 1}, InvalidArgumentError, "server_rank: expected 0 to 0, got 1"),
    ({"server_rank": [0, 0]}, InvalidArgumentError, r"server_rank: expected distinct ranks, got \[0, 0\]"),
    ({"server_rank": []}, InvalidArgumentError, "server_rank: expected"),
    ({"num_workers": 0}, InvalidArgumentError, "num_workers: expected at least 1, got 0"),
    ({"worker_concurrency": 33}, InvalidArgumentError, "worker_concurrency: expected at most 32, got 33"),
    ({"prefetch_size": 0}, InvalidArgumentError, "prefetch_size: expected at least 1, got 0"),
    ({"num_threads": -1}, InvalidArgumentError, "num_threads: expected at least 1, got -1"),
    ({"rpc_timeout": 0}, InvalidArgumentError, "rpc_timeout: expected a positive number of seconds, got 0"),
    ({"buffer_size": "64 apples"}, InvalidArgumentError, "size: expected a size such as .*'64 apples'"),
    ({"buffer_size": 0}, InvalidArgumentError, "size: expected at least one byte, got 0"),
    ({"worker_devices": [torch.device("cuda")]}, InvalidArgumentError, "worker_devices: expected CPUs"),
]


@pytest.mark.parametrize(("arguments", "kind", "message"), BAD_LOADERS, ids=lambda value: str(value)[:60])
def test_a_loader_with_wrong_arguments(
    job: Job, arguments: dict[str, Any], kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message):
        make_loader(**arguments)
    assert workers_of(job.servers[0].pid) == []  # no sampling worker was started, or none is left


def test_data_together_with_remote_options(job: Job, whole: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="data: expected None with RemoteDistSamplingWorkerOptions"):
        make_loader(data=load(whole))
    with pytest.raises(InvalidArgumentError, match="data: expected a DistDataset unless servers sample"):
        DistNeighborLoader(None, [2], SEEDS)


def config(**changes: Any) -> SamplingConfig:
    values = {"num_neighbors": [2], "batch_size": 4, "shuffle": False, "drop_last": False, "with_edge": False}
    values |= {"collect_features": True, "with_neg": False, "with_weight": False, "edge_dir": "in", "seed": 0}
    return SamplingConfig(SamplingType.NODE, **(values | changes))


BAD_REQUESTS: list[tuple[Any, dict[str, Any], type[Exception], str]] = [
    (NodeSamplerInput(torch.tensor([-1])), {}, UnknownIdError, "input_nodes: node id -1"),
    (NodeSamplerInput(torch.tensor([120])), {}, UnknownIdError, r"input_nodes: node id 120 is outside \[0, 120\)"),
    (NodeSamplerInput(torch.tensor([1.0])), {}, InvalidArgumentError, "input_nodes: expected dtype int64"),
    (NodeSamplerInput(torch.tensor([[1]])), {}, InvalidArgumentError, "input_nodes: expected a one-dimensional"),
    (NodeSamplerInput(SEEDS, "paper"), {}, InvalidArgumentError, "input_nodes: .*'paper'"),
    (NodeSamplerInput(SEEDS), {"num_neighbors": [-2]}, InvalidArgumentError, "num_neighbors: .* got -2"),
    (NodeSamplerInput(SEEDS), {"num_neighbors": []}, InvalidArgumentError, "num_neighbors: expected at least one hop"),
    (NodeSamplerInput(SEEDS), {"num_neighbors": None}, InvalidArgumentError, "num_neighbors: expected a list"),
    (NodeSamplerInput(SEEDS), {"edge_dir": "out"}, InvalidArgumentError, "edge_dir: the data set holds 'in'"),
    ("nodes", {}, InvalidArgumentError, "input_nodes: expected"),
]


@pytest.mark.parametrize(("seeds", "changes", "kind", "message"), BAD_REQUESTS, ids=lambda value: str(value)[:60])
def test_a_server_checks_for_itself(
    job: Job, seeds: Any, changes: dict[str, Any], kind: type[Exception], message: str
) -> None:
    """What did not pass through a loader's checks is refused all the same, with the server's traceback as the cause."""
    with pytest.raises(kind, match=message) as caught:
        request_server(
            0, DistServer.create_sampling_producer, seeds, config(**changes), RemoteDistSamplingWorkerOptions()
        )
    assert "remote traceback" in str(caught.value.__cause__)
    assert workers_of(job.servers[0].pid) == []


MISTAKES: list[tuple[dict[str, Any], str]] = [
    ({"edge_dir": "out"}, "edge_dir: the data set holds 'in'-neighbors, the loader asks for 'out'"),
    ({"input_nodes": Split.train}, "input_nodes: the data set has no 'train' split; its splits: none"),
    (
        {"input_nodes": ("paper", Split.train)},
        "input_nodes: unknown node type 'paper'; the data set has no named types",
    ),
    ({"num_neighbors": {("a", "to", "b"): [2]}}, "num_neighbors: unknown edge type ('a', 'to', 'b'); the data set has"),
]


@pytest.mark.parametrize(("change", "message"), MISTAKES, ids=lambda value: str(value)[:40])
def test_a_users_mistake_is_told_without_the_servers_depths(job: Job, change: dict[str, Any], message: str) -> None:
    """What exists is named, and the traceback leads from the user's line to the loader, and no further."""
    given = {"num_neighbors": [2], "input_nodes": SEEDS, "edge_dir": "in", **change}
    with pytest.raises(InvalidArgumentError) as caught:
        DistNeighborLoader(None, batch_size=4, worker_options=RemoteDistSamplingWorkerOptions(), **given)
    assert str(caught.value).startswith(message)
    shown = "".join(traceback.format_exception(caught.value))
    assert "remote traceback" not in shown
    assert shown.count("  File ") <= 4, shown


@pytest.mark.parametrize("name", ["num_workers", "concurrency", "num_threads", "buffer_bytes"])
def test_a_server_checks_what_it_shall_produce(job: Job, name: str) -> None:
    good = {"num_workers": 1, "concurrency": 1, "num_threads": 1, "buffer_bytes": 1 << 20}
    with pytest.raises(InvalidArgumentError, match=f"{name}: expected"):
        ProducerRequest(**(good | {name: -1}), request_timeout_s=10.0)


# --- while sampling --------------------------------------------------------------------------------------------


def test_a_batch_too_large_for_the_buffer(tmp_path: Path) -> None:
    """The loop gets the error of that batch; the server goes on."""
    directory = make_partitions(tmp_path / "graph", 1, num_features=20_000)  # 80 000 bytes a node
    with running_servers(directory) as job, job.client():
        loader = make_loader(batch_size=20, buffer_size="1MB")
        with pytest.raises(SamplingWorkerError, match="buffer_size or channel_size: expected room") as caught:
            list(loader)
        assert "worker traceback" in str(caught.value)
        assert "batch 0 of epoch 0" in str(caught.value)
        loader.shutdown()
        with make_loader(batch_size=2, num_neighbors=[1], buffer_size="1MB") as small:
            assert len(list(small)) == 60


def shared_memory_kib(pid: int) -> int:
    """Shared memory that a process has touched."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("RssShmem")))


def test_batches_that_nobody_reads_stay_few(tmp_path: Path) -> None:
    """A worker whose trainer is busy makes a few batches ahead, however large its buffer is."""
    directory = make_partitions(tmp_path / "graph", 1, num_features=20_000)  # 160 KB and more a batch
    with running_servers(directory) as job, job.client():
        unread = {"batch_size": 1, "num_neighbors": [1], "input_nodes": SEEDS.repeat(3), "batches_per_message": 2}
        with make_loader(**unread) as loader:
            next(iter(loader))
            (worker,) = workers_of(job.servers[0].pid)
            with make_loader(batch_size=1, num_neighbors=[1]) as other:  # time enough for what must not happen
                assert len(list(other)) == NUM_NODES
            assert shared_memory_kib(worker) < 10 * 1024  # all together are 56 MiB


def test_killed_worker(job: Job) -> None:
    """The client's loop hears which worker died, and how; then the server makes another one."""
    with make_loader(max_restarts=0) as loader:
        iterator = iter(loader)
        next(iterator)
        (pid,) = workers_of(job.servers[0].pid)
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(SamplingWorkerError, match=rf"server_0, producer \d+, worker 0 \(pid {pid}\).*SIGKILL"):
            list(iterator)
        with pytest.raises(SamplingWorkerError, match=rf"pid {pid}"):  # nor does a new epoch hang
            list(loader)
    assert workers_of(job.servers[0].pid) == []
    with make_loader() as loader:
        assert len(list(loader)) == len(loader)


def test_killed_server(whole: Path) -> None:
    """Whoever waits for a batch hears of it, the loader can still be shut down, and no worker outlives its server."""
    with running_servers(whole) as job, job.client():
        server = job.servers[0]
        with make_loader(reconnect_timeout=0) as loader:
            iterator = iter(loader)
            next(iterator)
            workers = workers_of(server.pid)
            server.send_signal(signal.SIGKILL)
            with pytest.raises(PeerLostError, match="_default_server_0"):
                list(iterator)
            wait_ended([server.pid, *workers], SOON_S)
            with pytest.raises(DeadlineExceededError, match=r"open_producer: no answer from .*server.* within 0.5 s"):
                make_loader(rpc_timeout=0.3, start_timeout=0.2)
        with pytest.raises(ProcessFailure, match="ended with -9"):
            server.wait(SOON_S)


def test_killed_peer_of_a_worker(halves: Path) -> None:
    """A worker that cannot ask the other partition says so, with its traceback."""
    with running_servers(halves, halves) as job, job.client():
        seeds = torch.arange(55, 60).repeat(40)
        with make_loader(server_rank=0, num_neighbors=[-1, -1], input_nodes=seeds, reconnect_timeout=0) as loader:
            iterator = iter(loader)
            next(iterator)
            job.servers[1].send_signal(signal.SIGKILL)
            where = r"worker 0 \(pid \d+ on \S+\): batch \d+ of epoch 0, stage sample"
            with pytest.raises(SamplingWorkerError, match=f"{where}: PeerLostError: lost _default_server_1") as e:
                list(iterator)
            assert "worker traceback" in str(e.value)
            assert "Traceback (most recent call last)" in str(e.value)


def client_that_dies(port: int) -> None:
    init_client(1, 1, 0, "127.0.0.1", port)
    iterator = iter(make_loader(num_workers=2))
    next(iterator)
    print("sampling", flush=True)
    os.kill(os.getpid(), signal.SIGKILL)


def test_killed_client(whole: Path) -> None:
    """Its workers end on the server, which serves the next client of the same rank."""
    with running_servers(whole) as job:
        with start(f"{HERE}.client_that_dies", port=job.port) as process:
            assert process.readline() == "sampling"
            workers = workers_of(job.servers[0].pid)
            assert len(workers) == 2
            wait_ended([process.pid, *workers], SOON_S)
        with job.client(), make_loader() as loader:
            assert len(list(loader)) == 30


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_server_ended_by_a_signal(whole: Path, number: int) -> None:
    with running_servers(whole) as job, job.client():
        server = job.servers[0]
        with make_loader(reconnect_timeout=0) as loader:
            iterator = iter(loader)
            next(iterator)
            workers = workers_of(server.pid)
            assert len(workers) == 1
            server.send_signal(number)
            wait_ended([server.pid, *workers], SOON_S)  # else all batches may come before it takes the signal
            with pytest.raises((PeerLostError, SamplingWorkerError), match=r"_default_server_0|was shut down"):
                list(iterator)  # which of them depends on what the server took down first
    assert "Traceback" not in server.output()


# --- partition directories -------------------------------------------------------------------------------------


def truncate(directory: Path) -> None:
    path = directory / "part0/node_feat/x.npy"
    path.write_bytes(path.read_bytes()[:-1])


def alter(directory: Path) -> None:
    path = directory / "part0/graph/indices.npy"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def make_foreign(directory: Path) -> None:
    (directory / "META.json").write_text(json.dumps({"format": "something else"}))


def lose(directory: Path) -> None:
    shutil.rmtree(directory / "part0")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (truncate, r"part0/node_feat/x\.npy: .*expected \d+ bytes, found \d+"),
        (alter, r"part0/graph/indices\.npy: altered: expected CRC-32"),
        (make_foreign, "expected format 'graphlearn-dist-partition', found 'something else'"),
        (lose, "part0"),
        (shutil.rmtree, "no .*partition directory"),
    ],
)
def test_damaged_partition(tmp_path: Path, whole: Path, damage: Callable[[Path], None], message: str) -> None:
    directory = Path(shutil.copytree(whole, tmp_path / "graph"))
    damage(directory)
    with pytest.raises(PartitionFormatError, match=message):
        load(directory)


@pytest.mark.parametrize("index", [-1, 1, "0"])
def test_partition_index_out_of_range(whole: Path, index: Any) -> None:
    with pytest.raises(InvalidArgumentError, match=f"partition_idx: expected 0 to 0, got {index!r}"):
        load(whole, index)


def test_a_damaged_partition_ends_the_server_with_a_message(tmp_path: Path, whole: Path) -> None:
    directory = Path(shutil.copytree(whole, tmp_path / "graph"))
    truncate(directory)
    with running_servers(directory) as job:
        assert job.servers[0].wait(SOON_S) == 1
        assert "part0/node_feat/x.npy" in job.servers[0].output()
        assert "Traceback" not in job.servers[0].output()


def test_servers_of_different_data_sets(whole: Path, halves: Path) -> None:
    with running_servers(halves, whole, partitions=[0, 0]) as job, job.client():
        with pytest.raises(
            InvalidArgumentError, match="server_1 serves a data set of 1 partitions, this server one of 2"
        ):
            make_loader(server_rank=0)
        assert workers_of(job.servers[0].pid) == []


def test_missing_partition(halves: Path) -> None:
    with running_servers(halves, halves, partitions=[1, 1]) as job, job.client():
        with pytest.raises(InvalidArgumentError, match=r"dataset: no server holds partitions \[0\]"):
            make_loader(server_rank=0)
    with running_servers(halves) as job, job.client():
        with pytest.raises(InvalidArgumentError, match=r"dataset: no server holds partitions \[1\]"):
            make_loader()


# --- joining ---------------------------------------------------------------------------------------------------


def test_a_client_without_servers(port: int) -> None:
    with pytest.raises(
        DeadlineExceededError, match=rf"no registry at 127.0.0.1:{port} after 0.5 s: is server 0 running"
    ):
        init_client(1, 1, 0, "127.0.0.1", port, connect_timeout_s=0.5)
    assert not rpc.rpc_is_initialized()
    with pytest.raises(NotInitializedError, match="call init_client first"):
        make_loader()
    with pytest.raises(InvalidArgumentError, match="connect_timeout_s: expected a positive number of seconds, got 0"):
        init_client(1, 1, 0, "127.0.0.1", port, connect_timeout_s=0)


def test_a_client_that_comes_first(whole: Path, port: int) -> None:
    """It waits for its server."""
    failures: list[BaseException] = []

    def join() -> None:
        try:
            init_client(1, 1, 0, "127.0.0.1", port, connect_timeout_s=60.0)
        except BaseException as error:
            failures.append(error)

    waiting = threading.Thread(target=join)
    waiting.start()
    arguments = {"directory": str(whole), "rank": 0, "num_servers": 1, "num_clients": 0, "port": port}
    with start("tests.support.jobs.serve", **arguments, fd=-1, partition=-1) as server:
        waiting.join(60.0)
        assert not waiting.is_alive()
        assert failures == []
        try:
            assert request_server(0, DistServer.get_dataset_meta)[0] == 1
            assert request_server(0, DistServer.exit) is True
        finally:
            shutdown_client()
        assert server.wait(SOON_S) == 0


def test_ranks_that_are_taken_or_missing(server: Job, whole: Path, halves: Path) -> None:
    where = ("127.0.0.1", server.port)
    with server.client(), start(f"{HERE}.second_client", port=server.port) as other:
        kind, message = other.wait(SOON_S)
        assert kind == "RegistryError"
        assert "rank 0 of client is taken: _default_client_0" in message
        with make_loader() as loader:
            assert len(list(loader)) == 30
    with pytest.raises(RegistryError, match=rf"127.0.0.1:{server.port}: server 0 cannot listen there: Address already"):
        init_server(1, 0, 0, load(whole), *where)
    with pytest.raises(RegistryError, match=r"world_size: _default_server_1.* says 2, _default_server_0.* says 1"):
        init_server(2, 0, 1, load(halves, 1), *where)
    with pytest.raises(DeadlineExceededError, match=r"server: ranks \[1\] of 2 did not join within 0.5 s"):
        init_client(2, 1, 0, *where, connect_timeout_s=0.5)
    with running_servers(halves, halves) as job:
        with job.client():
            pass  # both servers are there
        with pytest.raises(RegistryError, match="rank 1 of server is taken: _default_server_1"):
            init_server(2, 0, 1, load(halves, 1), "127.0.0.1", job.port)
    assert not rpc.rpc_is_initialized()


def second_client(port: int) -> list[str]:
    try:
        init_client(1, 1, 0, "127.0.0.1", port)
    except Exception as error:
        return [type(error).__name__, str(error)]
    return ["", ""]


def client_of_another_version(port: int) -> list[str]:
    from graphlearn_dist.rpc.peers import handshake

    pack_frame = handshake.pack_frame

    def pack_frame_of_another_version(*parts: Any) -> bytes:
        frame = bytearray(pack_frame(*parts))
        frame[4] += 1
        return bytes(frame)

    handshake.pack_frame = pack_frame_of_another_version
    try:
        init_client(1, 1, 0, "127.0.0.1", port, connect_timeout_s=2 * SOON_S)  # longer than the test waits
    except VersionMismatchError as error:
        return [type(error).__name__, str(error)]
    return ["", ""]


def test_another_version_of_the_protocol(job: Job) -> None:
    """It is told at once, not after trying until its deadline; the servers go on."""
    with start(f"{HERE}.client_of_another_version", port=job.port) as process:
        kind, message = process.wait(SOON_S)
    assert kind == "VersionMismatchError"
    assert "version 2" in message
    assert "speaks 1" in message
    assert request_server(0, DistServer.get_dataset_meta)[0] == 1


def test_one_role_in_a_process(job: Job, whole: Path) -> None:
    """A client cannot become another client or a server, and is none the worse for having tried."""
    with pytest.raises(InvalidArgumentError, match="init_client: this process is a client already"):
        init_client(1, 1, 0, "127.0.0.1", job.port)
    with pytest.raises(InvalidArgumentError, match="init_server: this process is a client already"):
        init_server(1, 0, 0, load(whole), "127.0.0.1", 0)
    with pytest.raises(NotInitializedError, match="call init_server first"):
        dist_server.get_server()
    assert request_server(0, DistServer.get_dataset_meta)[0] == 1
