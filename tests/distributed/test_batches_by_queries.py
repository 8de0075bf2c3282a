"""Batches that a client asks for by queries: from the core of a server to its own, whatever either does in Python."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from graphlearn_dist._C import PendingAnswer, fetch_query, unpack
from graphlearn_dist.distributed import (
    DistNeighborLoader,
    RemoteDistSamplingWorkerOptions,
    async_request_server,
    register_function,
    request_server,
)
from graphlearn_dist.distributed import rpc as session_rpc
from graphlearn_dist.distributed.dist_options import ProducerRequest
from graphlearn_dist.distributed.dist_server import DistServer
from graphlearn_dist.distributed.producers.pending_batch import Core, PendingBatch
from graphlearn_dist.distributed.server.producer_leases import BATCHES
from graphlearn_dist.errors import InvalidArgumentError, PeerLostError, ProducerGoneError
from graphlearn_dist.loader import NeighborLoader
from graphlearn_dist.messages import EndOfEpoch, SampledBatch
from graphlearn_dist.rpc import Endpoint
from graphlearn_dist.sampler import NodeSamplerInput, SamplingConfig, SamplingType
from tests.support import jobs
from tests.support.jobs import NUM_NODES, Job, load, make_partitions, running_servers, same_batches

DEADLINE_S = 60.0
SERVERS = range(2)
CONFIG = SamplingConfig(SamplingType.NODE, [2, 2], 10, False, False, False, True, False, False, "in", 0)
REQUEST = ProducerRequest(
    num_workers=1, concurrency=1, num_threads=1, buffer_bytes=1 << 20, request_timeout_s=DEADLINE_S
)


async def stand_still(stands: str, go_on: str) -> None:
    """Keeps the loop of a server's interpreter: says so at one pipe, and goes on when another is written to."""
    Path(stands).write_bytes(b"\0")
    Path(go_on).read_bytes()


def serve(**options: Any) -> int:
    register_function(stand_still, "stand_still")
    return jobs.serve(**options)


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_partitions(tmp_path_factory.mktemp("parts"), len(SERVERS))


@pytest.fixture(scope="module", params=["0", "1"], ids=["tcp", "unix"])
def job(parts: Path, request: pytest.FixtureRequest) -> Iterator[Job]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GLD_UNIX_SOCKETS", request.param)
        with (
            running_servers(parts, parts, program="tests.distributed.test_batches_by_queries.serve") as job,
            job.client(),
        ):
            yield job


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> NeighborLoader:
    whole = load(make_partitions(tmp_path_factory.mktemp("whole"), 1))
    return NeighborLoader(whole, [2, 2], torch.arange(NUM_NODES), batch_size=8, shuffle=True)


@contextlib.contextmanager
def remote_loader(**options: Any) -> Iterator[DistNeighborLoader]:
    """A loader of all nodes from both servers."""
    worker_options = RemoteDistSamplingWorkerOptions(
        server_rank=[0, 1], num_workers=1, rpc_timeout=DEADLINE_S, **options
    )
    seeds = torch.arange(NUM_NODES)
    with DistNeighborLoader(
        None, [2, 2], seeds, batch_size=8, shuffle=True, collect_features=True, worker_options=worker_options
    ) as loader:
        yield loader


def core_of(rank: int, endpoint: Endpoint | None = None) -> Core:
    """How this process asks a server."""
    endpoint = endpoint or session_rpc.get_endpoint()
    engine = endpoint.native_engine
    stream, peer, take_lent = endpoint.connect(("server", rank), DEADLINE_S).result(DEADLINE_S)
    assert engine is not None
    assert stream is not None
    return Core(engine, stream, peer, take_lent)


def ask(head: bytes, endpoint: Endpoint | None = None, service: str = BATCHES) -> tuple[PendingBatch, PendingAnswer]:
    core = core_of(0, endpoint)
    answer = core.engine.ask(core.stream, service, head, DEADLINE_S)
    return PendingBatch(answer, core), answer


@contextlib.contextmanager
def standing_still(directory: Path) -> Iterator[None]:
    """Servers whose interpreters do nothing else."""
    asked = []
    for rank in SERVERS:
        stands, go_on = directory / f"{rank}.stands", directory / f"{rank}.go"
        for pipe in (stands, go_on):
            os.mkfifo(pipe)
        asked.append(async_request_server(rank, "stand_still", str(stands), str(go_on)))
        stands.read_bytes()
    try:
        yield
    finally:
        for rank in SERVERS:
            (directory / f"{rank}.go").write_bytes(b"\0")
        for future in asked:
            future.wait()


@pytest.mark.parametrize("together", [1, 4])
def test_an_epoch_while_the_interpreters_of_all_servers_stand_still(
    job: Job, local: NeighborLoader, tmp_path: Path, together: int
) -> None:
    before = sum(core_of(rank).stream.queries_sent for rank in SERVERS)
    with remote_loader(batches_per_message=together) as loader:
        epoch = iter(loader)
        first = [next(epoch) for _ in range(2 * together)]  # both servers have begun
        with standing_still(tmp_path):
            same_batches([*first, *epoch], [local.batch(0, index) for index in range(len(local))])
        asked = sum(core_of(rank).stream.queries_sent for rank in SERVERS) - before
        assert asked == -(-len(local) // together)
        same_batches(loader, [local.batch(1, index) for index in range(len(local))])


def test_epochs_that_are_left(job: Job, local: NeighborLoader) -> None:
    with remote_loader(prefetch_size=4) as loader:
        for epoch, num_read in enumerate((1, 7, len(local) - 1)):
            batches = iter(loader)
            same_batches([next(batches) for _ in range(num_read)], [local.batch(epoch, i) for i in range(num_read)])
        same_batches(loader, [local.batch(3, index) for index in range(len(local))])


def test_what_servers_refuse(job: Job) -> None:
    """Each in words of its own, and the connection goes on."""
    info = request_server(0, DistServer.open_producer, NodeSamplerInput(torch.arange(40)), CONFIG, REQUEST)
    producer = info.producer_id
    assert info.answers_queries
    with pytest.raises(InvalidArgumentError, match="run: expected the current run 0, got 1"):
        ask(fetch_query(producer, 1, 0, None))[0].result(DEADLINE_S)
    request_server(0, DistServer.start_new_epoch_sampling, producer, 0)
    for index, words in ((-1, "index: expected one of 0, 1, 2, 3, got -1"), (-(1 << 63), "index: expected one of")):
        with pytest.raises(InvalidArgumentError, match=words):
            ask(fetch_query(producer, 1, index, None))[0].result(DEADLINE_S)
    for head in (b"", b"\xff", b"\x90", b"\x94\xa1a\x01\x01\xc0", b"\x94\x01\x01\x01\xa1a"):
        _, answer = ask(head)
        assert answer.wait(DEADLINE_S)
        ending = answer.take()
        assert ending is not None
        assert ending[0] == "failed"
        assert unpack(ending[1])[1] == "ProtocolError"
    with pytest.raises(ProducerGoneError, match=r"producer_id: there is no producer 7 \(any more\)"):
        ask(fetch_query(7, 1, 0, None))[0].result(DEADLINE_S)
    with pytest.raises(InvalidArgumentError, match="service: batch is not served by"):
        ask(fetch_query(producer, 1, 0, None), service="batch")[0].result(DEADLINE_S)
    with Endpoint("client", 7, use_unix=False) as other:
        other.join("127.0.0.1", job.port)
        with pytest.raises(InvalidArgumentError, match=rf"got {producer}, which is .*client_0 .*'s"):
            ask(fetch_query(producer, 1, 0, None), other)[0].result(DEADLINE_S)
        with pytest.raises(PeerLostError, match="query: expected"):  # noise on the way, it seems
            ask(b"\x90", other)[0].result(DEADLINE_S)
    found = ask(fetch_query(producer, 1, 1, None))[0].result(DEADLINE_S)
    assert isinstance(found, SampledBatch)
    assert found.index == 1
    assert ask(fetch_query(producer, 1, 4, 0))[0].result(DEADLINE_S) == EndOfEpoch(1, 0, 4)
    request_server(0, DistServer.destroy_sampling_producer, producer)
    with pytest.raises(ProducerGoneError, match=rf"producer_id: there is no producer {producer} \(any more\)"):
        ask(fetch_query(producer, 1, 0, None))[0].result(DEADLINE_S)


def test_waits_that_end_early(job: Job) -> None:
    """By a time, by who waits, by who calls them off, and by a signal; the batch is there for who asks again."""
    inputs = NodeSamplerInput(torch.arange(40))
    producer = request_server(0, DistServer.open_producer, inputs, CONFIG, REQUEST).producer_id
    request_server(0, DistServer.start_new_epoch_sampling, producer, 0, 1, None, 1)  # one batch at a time
    assert ask(fetch_query(producer, 1, 0, 0))[0].result(DEADLINE_S).index == 0
    waiting, answer = ask(fetch_query(producer, 1, 1, 0))
    with pytest.raises(TimeoutError):
        waiting.result(0.01)
    assert not waiting.done()
    earlier, (waiting, answer) = waiting, ask(fetch_query(producer, 1, 1, 0))
    with pytest.raises(InvalidArgumentError, match="index: batch 1 was asked for again"):
        earlier.result(DEADLINE_S)
    main = threading.main_thread().ident
    assert main is not None
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's jobs in the background ignore it
    threading.Timer(0.2, signal.pthread_kill, (main, signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        waiting.result(DEADLINE_S)
    signal.signal(signal.SIGINT, before)
    threading.Timer(0.2, waiting.cancel).start()
    assert answer.wait(DEADLINE_S)
    assert waiting.cancelled()
    assert not waiting.cancel()
    again, _ = ask(fetch_query(producer, 1, 1, 1))
    assert again.result(DEADLINE_S).index == 1
    request_server(0, DistServer.destroy_sampling_producer, producer)


@pytest.mark.parametrize("unix", ["0", "1"], ids=["tcp", "unix"])
def test_who_waits_when_a_producer_or_a_server_ends(parts: Path, unix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLD_UNIX_SOCKETS", unix)
    with running_servers(parts, parts) as job, Endpoint("client", 3) as client:
        client.join("127.0.0.1", job.port)

        def call(method: Any, *args: Any) -> Any:
            return client.call(("server", 0), method.__qualname__, *args, timeout_s=DEADLINE_S)

        def wait_for_second() -> tuple[int, PendingBatch]:
            inputs = NodeSamplerInput(torch.arange(40))
            producer = call(DistServer.open_producer, inputs, CONFIG, REQUEST).producer_id
            call(DistServer.start_new_epoch_sampling, producer, 0, 1, None, 1)
            assert ask(fetch_query(producer, 1, 0, 0), client)[0].result(DEADLINE_S).index == 0
            return producer, ask(fetch_query(producer, 1, 1, 0), client)[0]

        producer, waiting = wait_for_second()
        call(DistServer.destroy_sampling_producer, producer)
        with pytest.raises(Exception, match=r"producer 0: it was shut down|there is no producer"):
            waiting.result(DEADLINE_S)
        producer, waiting = wait_for_second()
        call(DistServer.start_new_epoch_sampling, producer, 1, 2)
        with pytest.raises(Exception, match=r"producer 1: run 2 has begun|expected the current run 2, got 1"):
            waiting.result(DEADLINE_S)
        _, waiting = wait_for_second()
        job.servers[0].send_signal(signal.SIGTERM)
        with pytest.raises(PeerLostError):
            waiting.result(DEADLINE_S)
