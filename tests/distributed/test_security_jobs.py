"""Whole jobs: what a server lets others call, and a job under TLS between its processes."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
import torch

from graphlearn_dist.config import TlsSettings
from graphlearn_dist.distributed import (
    CollocatedDistSamplingWorkerOptions,
    DistNeighborLoader,
    DistServer,
    MpDistSamplingWorkerOptions,
    RemoteDistSamplingWorkerOptions,
    init_client,
    init_server,
    init_worker_group,
    rendezvous_store,
    request_server,
    rpc,
    shutdown_client,
    shutdown_server,
)
from graphlearn_dist.distributed.dist_context import _reset_context
from graphlearn_dist.errors import AuthenticationError, InvalidArgumentError, ProtocolError
from graphlearn_dist.loader import NeighborLoader
from graphlearn_dist.rpc import endpoint
from graphlearn_dist.rpc.peers import links
from tests.support.certificates import Certificates
from tests.support.jobs import load, make_partitions, running_servers, same_batches
from tests.support.processes import run_processes, start

HERE = "tests.distributed.test_security_jobs"
SEEDS = torch.arange(0, 60)

# Everything that bytes from the network can call in a server's process. A name more here is one to think about.
METHODS = [
    "client_done",
    "create_sampling_producer",
    "destroy_sampling_producer",
    "exit",
    "fetch_batch",
    "fetch_one_sampled_message",
    "find_input",
    "get_dataset_meta",
    "get_edge_index",
    "get_edge_size",
    "get_node_feature",
    "get_node_label",
    "get_node_partition_id",
    "get_outline",
    "get_producer_stats",
    "get_row_cache_stats",
    "get_tensor_size",
    "grant_batches",
    "holds_producer",
    "open_producer",
    "start_new_epoch_sampling",
    "withdraw_producer",
]
TABLE = [
    "Collectives.gather",
    *(f"DistServer.{name}" for name in METHODS),
    *(
        f"EmbeddingService.{name}"
        for name in (
            "load_embedding",
            "meet_to_load",
            "open_embedding",
            "pull_embedding",
            "push_embedding",
            "save_embedding",
        )
    ),
    *(f"PartitionService.{name}" for name in ("edge_weights", "edges", "query", "spread")),
    *(f"Registry.{name}" for name in ("clock", "hello", "join", "leave", "members")),
    "ServerHolders.share_partition",
    "StatusService.get_status",
]


def test_what_a_server_lets_others_call(tmp_path: Path) -> None:
    directory = make_partitions(tmp_path / "partitions", 1)
    init_server(1, 0, 0, load(directory), "127.0.0.1", 0)
    try:
        callees = rpc.get_endpoint()._callees._functions
        assert sorted(name for name in callees if not name.startswith("test_")) == TABLE  # other tests register theirs
    finally:
        shutdown_server()


def test_a_job_under_tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = make_partitions(tmp_path / "whole", 1)
    parts = make_partitions(tmp_path / "parts", 2)
    made = Certificates.make(tmp_path / "certificates")
    tls = made.settings()
    monkeypatch.setenv("GLD_TOKEN", "the token of this job")
    for name, value in (("AUTHORITY", tls.authority), ("CERTIFICATE", tls.certificate), ("KEY", tls.key)):
        monkeypatch.setenv(f"GLD_TLS_{name}", str(value))
    with running_servers(parts, parts) as job:
        monkeypatch.setattr(links, "boot_id", lambda: "another host's")  # this client is on another host, it says
        monkeypatch.setattr(endpoint, "boot_id", lambda: "another host's")
        for name in ("AUTHORITY", "CERTIFICATE", "KEY"):
            monkeypatch.delenv(f"GLD_TLS_{name}")
        with pytest.raises(ProtocolError, match="TLS: this side expects it"):
            init_client(2, 1, 0, "127.0.0.1", job.port, is_dynamic=True)
        monkeypatch.setenv("GLD_TOKEN", "another one")
        with pytest.raises(AuthenticationError, match="token"):
            init_client(2, 1, 0, "127.0.0.1", job.port, is_dynamic=True, tls=made.settings(None))
        monkeypatch.setenv("GLD_TOKEN", "the token of this job")
        init_client(2, 1, 0, "127.0.0.1", job.port, is_dynamic=True, tls=made.settings(None))
        try:
            assert rpc.get_endpoint().address.host == ""  # no certificate, so it does not listen
            assert request_server(0, DistServer.get_dataset_meta)[0] == 2
            for name in ("os.system", "builtins.exec", "DistServer.__init__", "DistServer.__class__"):
                with pytest.raises(InvalidArgumentError, match="is not registered"):
                    request_server(0, name, "true")
            workers = RemoteDistSamplingWorkerOptions(server_rank=[0, 1])
            options = {"edge_dir": "in", "collect_features": True, "worker_options": workers}
            with DistNeighborLoader(None, [3, 2], SEEDS, 6, True, random_seed=5, **options) as loader:
                same_batches(loader, NeighborLoader(load(whole), [3, 2], SEEDS, batch_size=6, shuffle=True, seed=5))
            assert rpc.get_endpoint().stats().unix_connections == 0
        finally:
            shutdown_client()


# --- workers that hold a partition each ----------------------------------------------------------------------------

WORKERS_TOKEN = b"given to init_rpc, not in the environment"
OPTIONS = {"edge_dir": "in", "collect_features": True, "random_seed": 5}


def another_host() -> None:
    """Whoever talks to this process does so over TCP from now on."""
    for module in (links, endpoint):
        module.boot_id = lambda: "another host's"  # type: ignore[attr-defined]


def serve_a_partition(directory: str, port: int, tls: list[str]) -> None:
    """Worker 1 of 2, which serves until it is told to end."""
    another_host()
    init_worker_group(2, 1)
    rpc.init_rpc("127.0.0.1", port, token=WORKERS_TOKEN, tls=TlsSettings(*tls))
    workers = CollocatedDistSamplingWorkerOptions()
    with DistNeighborLoader(load(Path(directory), 1), [3, 2], SEEDS, 6, True, worker_options=workers, **OPTIONS):
        print("ready", flush=True)
        input()
        rpc.shutdown_rpc()


def test_sampling_processes_get_in_with_what_init_rpc_was_given(tmp_path: Path, port: int) -> None:
    whole = make_partitions(tmp_path / "whole", 1)
    parts = make_partitions(tmp_path / "parts", 2)
    tls = Certificates.make(tmp_path / "certificates").settings()
    arguments = {"directory": str(parts), "port": port, "tls": [tls.authority, tls.certificate, tls.key]}
    with start(f"{HERE}.serve_a_partition", **arguments) as other:
        init_worker_group(2, 0)
        try:
            rpc.init_rpc("127.0.0.1", port, token=WORKERS_TOKEN, tls=tls)
            workers = MpDistSamplingWorkerOptions(channel_size="16MB")
            with DistNeighborLoader(load(parts), [3, 2], SEEDS, 6, True, worker_options=workers, **OPTIONS) as loader:
                same_batches(loader, NeighborLoader(load(whole), [3, 2], SEEDS, batch_size=6, shuffle=True, seed=5))
            assert other.readline() == "ready"
            other.tell()
        finally:
            rpc.shutdown_rpc()
            _reset_context()


# --- between hosts -------------------------------------------------------------------------------------------------


def own_address() -> str:
    """An address of this host that others reach it by; skips where there is none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:  # nothing is sent
        try:
            sock.connect(("192.0.2.1", 9))
        except OSError:
            pytest.skip("this host has no network")
        return str(sock.getsockname()[0])


def host_of_a_store(master_addr: str, port: int) -> str:
    """Where a client's store for torch listens."""
    init_client(1, 1, 0, master_addr, port)
    host = str(rendezvous_store().host)
    shutdown_client()
    return host


def test_a_job_that_others_reach(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its listeners are open to the network, so it needs a token; what it tells others leads to this host."""
    dataset, own = load(make_partitions(tmp_path / "partitions", 1)), own_address()
    with pytest.raises(InvalidArgumentError, match="needs a token"):
        init_server(1, 1, 0, dataset, own, 0)
    monkeypatch.setenv("GLD_TOKEN", "the token of this job")
    init_server(1, 1, 0, dataset, own, 0)
    try:
        arguments = {"master_addr": own, "port": rpc.get_rpc_master_port()}
        assert run_processes([(f"{HERE}.host_of_a_store", arguments)]) == [own]
    finally:
        shutdown_server()
