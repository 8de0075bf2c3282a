"""Whole jobs: what a server lets others call, and a job under TLS between its processes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from graphlearn_dist.distributed import (
    DistNeighborLoader,
    DistServer,
    RemoteDistSamplingWorkerOptions,
    init_client,
    init_server,
    request_server,
    rpc,
    shutdown_client,
    shutdown_server,
)
from graphlearn_dist.errors import AuthenticationError, InvalidArgumentError, ProtocolError
from graphlearn_dist.loader import NeighborLoader
from graphlearn_dist.rpc import endpoint, links
from tests.support.certificates import Certificates
from tests.support.jobs import load, make_partitions, running_servers, same_batches

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
    "get_tensor_size",
    "open_producer",
    "share_partition",
    "start_new_epoch_sampling",
]
TABLE = [
    *(f"DistServer.{name}" for name in METHODS),
    *(f"partition.{name}" for name in ("edges", "has_edges", "induced", "lookup", "one_hop")),
    *(f"registry.{name}" for name in ("gather", "hello", "join", "leave")),
]


def test_what_a_server_lets_others_call(tmp_path: Path) -> None:
    directory = make_partitions(tmp_path / "partitions", 1)
    init_server(1, 0, 0, load(directory), "127.0.0.1", 0)
    try:
        callees = rpc.get_endpoint()._callees._functions
        assert sorted(callees) == TABLE
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
