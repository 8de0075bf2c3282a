"""Endpoints in processes of their own: what happens when one of them dies, freezes, or comes back."""

from __future__ import annotations

import asyncio
import os
import queue
import signal
import socket
import sys
import threading
from dataclasses import replace
from typing import Any

import pytest
import torch

from graphlearn_dist.config import RpcSettings
from graphlearn_dist.errors import PeerLostError
from graphlearn_dist.rpc import Endpoint, PeerAddress
from graphlearn_dist.rpc.traffic import FRAME_USES
from tests.support.processes import ProcessFailure, TestProcess, assert_nothing_left, run_processes, start
from tests.support.waiting import wait_until

pytestmark = pytest.mark.usefixtures("over_unix_sockets")

HERE = "tests.distributed.test_rpc_processes"
DEADLINE_S = 60.0  # only ever reached by a hang
SETTINGS = RpcSettings(
    connect_timeout_s=20.0, request_timeout_s=DEADLINE_S, heartbeat_interval_s=0.5, heartbeat_timeout_s=2.0
)


# --- what the processes run ------------------------------------------------------------------------------------


async def hang() -> None:
    await asyncio.get_running_loop().create_future()


def serve(role: str = "server", rank: int = 0, master_port: int = 0, port: int = 0) -> None:
    """An endpoint that serves until its standard input ends."""
    with Endpoint(role, rank, settings=SETTINGS, listen_port=port) as endpoint:
        endpoint.register("echo", lambda x: x)
        endpoint.register("pid", os.getpid)
        endpoint.register("hang", hang)
        endpoint.register("stats", lambda: vars(endpoint.stats()))
        if master_port:
            endpoint.join("127.0.0.1", master_port, world_size=2)
        address = endpoint.address
        print(address.host, address.port, address.unix, address.boot_id, address.name, flush=True)
        sys.stdin.readline()


def address_of(process: TestProcess) -> PeerAddress:
    host, port, unix, boot, name = process.readline().split()
    return PeerAddress(host, int(port), unix, boot, name)


# --- the helper ------------------------------------------------------------------------------------------------


def test_the_helper_returns_fails_and_kills() -> None:
    pids = run_processes([("os.getpid", {}), ("os.getpid", {})], DEADLINE_S)
    assert len(set(pids)) == 2
    assert_nothing_left(*pids)
    with pytest.raises(ProcessFailure, match="No module named 'nothing'"):
        run_processes([("importlib.import_module", {"name": "nothing"}), ("signal.pause", {})], DEADLINE_S)
    with start("signal.pause") as process:
        with pytest.raises(AssertionError, match="still running"):
            assert_nothing_left(process.pid)
        with pytest.raises(ProcessFailure, match="did not end"):
            process.wait(0.1)
        assert_nothing_left(process.pid)


# --- death and return ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("use_unix", [True, False])
def test_killed_peer(use_unix: bool) -> None:
    """Outstanding calls fail when the peer's kernel closes its socket, and the endpoint lives on."""
    with start(f"{HERE}.serve") as process, Endpoint("client", 0, settings=SETTINGS, use_unix=use_unix) as client:
        address = address_of(process)
        lost: queue.Queue[tuple[str, str]] = queue.Queue()
        client.on_peer_lost(lambda peer, why: lost.put((peer.name, why)))
        assert client.call(address, "pid") == process.pid
        futures = [client.request(address, "hang") for _ in range(8)]
        assert client.call(address, "echo", 1) == 1
        process.send_signal(signal.SIGKILL)
        for future in futures:
            with pytest.raises(PeerLostError, match="server-0") as caught:
                future.result(DEADLINE_S)
            assert "heartbeat" not in caught.value.why  # told by the closed connection, not by silence
        assert lost.get(timeout=DEADLINE_S)[0] == "server-0"
        with pytest.raises(PeerLostError, match="no connection"):
            client.call(address, "echo", 1, fail_fast=True)
        process.kill()
        assert_nothing_left(process.pid)


def test_frozen_peer() -> None:
    """A stopped process keeps its connection open: only silence tells. It is welcome again when it goes on."""
    with start(f"{HERE}.serve") as process, Endpoint("client", 0, settings=SETTINGS) as client:
        address = address_of(process)
        future = client.request(address, "hang")
        assert client.call(address, "echo", 1) == 1
        process.freeze()
        try:
            with pytest.raises(PeerLostError, match="heartbeat timeout"):
                future.result(DEADLINE_S)
        finally:
            process.send_signal(signal.SIGCONT)
        assert client.call(address, "echo", 2) == 2


def test_restarted_peer_and_member_lost() -> None:
    with Endpoint("server", 0, settings=SETTINGS) as host:
        host.join("127.0.0.1", 0, host_registry=True, world_size=2)
        lost: queue.Queue[tuple[int, str]] = queue.Queue()
        host.on_member_lost(lambda member, why: lost.put((member.rank, why)))
        arguments = {"rank": 1, "master_port": host.master_port}
        with start(f"{HERE}.serve", **arguments) as first:
            address_of(first)
            assert host.call("server-1", "pid") == first.pid
            outstanding = host.request("server-1", "hang")
            first.send_signal(signal.SIGKILL)
            with pytest.raises(PeerLostError, match="server-1"):
                outstanding.result(DEADLINE_S)
            assert lost.get(timeout=DEADLINE_S)[0] == 1
        assert [member.rank for member in host.members("server")] == [0]
        early = host.request(("server", 1), "pid")  # asked while nobody is there: it waits for the next one
        with start(f"{HERE}.serve", **arguments) as second:
            address_of(second)
            assert early.result(DEADLINE_S) == second.pid
            assert host.call("server-1", "pid") == second.pid
            assert second.pid != first.pid


def test_the_registrys_process_is_killed() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with start(f"{HERE}.host_registry", pass_fds=[listener.fileno()], master_fd=listener.fileno()) as process:
            listener.close()
            assert process.readline() == "ready"
            with Endpoint("client", 0, settings=SETTINGS) as a, Endpoint("client", 1, settings=SETTINGS) as b:
                for endpoint in (a, b):
                    endpoint.register("echo", lambda x: x)
                    endpoint.join("127.0.0.1", port, world_size=3)
                assert len(a.wait_for_members("client", 2, DEADLINE_S)) == 2
                errors: queue.Queue[BaseException] = queue.Queue()

                def barrier() -> None:
                    try:
                        a.barrier(DEADLINE_S)
                    except PeerLostError as error:
                        errors.put(error)

                waiting = threading.Thread(target=barrier)
                waiting.start()
                process.send_signal(signal.SIGKILL)
                assert isinstance(errors.get(timeout=DEADLINE_S), PeerLostError)
                waiting.join(DEADLINE_S)
                with pytest.raises(PeerLostError, match="registry"):
                    a.barrier(DEADLINE_S)
                with pytest.raises(PeerLostError, match="registry"):
                    b.wait_for_members("client", 3, DEADLINE_S)
                assert b.call("client-0", "echo", 5) == 5  # what is between the others goes on


def host_registry(master_fd: int) -> None:
    with Endpoint("server", 0, settings=SETTINGS) as endpoint:
        endpoint.join("127.0.0.1", 0, host_registry=True, master_fd=master_fd)
        print("ready", flush=True)
        sys.stdin.readline()


# --- the arena between processes -------------------------------------------------------------------------------


def test_the_arena_carries_large_payloads_between_processes() -> None:
    with start(f"{HERE}.serve") as process, Endpoint("client", 0, settings=SETTINGS) as client:
        address = address_of(process)
        tensor = torch.arange(300_000)
        kept = [client.call(address, "echo", tensor) for _ in range(10)]
        assert all(torch.equal(old, tensor) for old in kept)
        theirs = client.call(address, "stats")
        assert client.stats().arena_payloads_sent >= 9
        assert client.stats().arena_payloads_received == theirs["arena_payloads_sent"] >= 9
        (traffic,) = client.traffic.by_peer().values()
        for way, use in ((traffic.sent, "request"), (traffic.received, "answer")):
            assert way.in_memory[FRAME_USES.index(use)] >= 9 * tensor.nbytes
            assert way.on_socket[FRAME_USES.index(use)] < 2 * tensor.nbytes  # the first may come before the arena
        wait_until(lambda: client.stats().arena_used_bytes == 0)  # slots are given back beside calls
        wait_until(lambda: client.call(address, "stats")["arena_used_bytes"] == 0)
        process.send_signal(signal.SIGKILL)
        process.kill()
        assert_nothing_left(process.pid)


def test_a_killed_peers_slots_come_back() -> None:
    """A peer that dies with payloads of ours unread does not keep their memory."""
    settings = replace(SETTINGS, arena_bytes=8 << 20)
    with start(f"{HERE}.serve") as process, Endpoint("client", 0, settings=settings) as client:
        address = address_of(process)
        tensor = torch.arange(100_000)
        for _ in range(2):
            client.call(address, "echo", tensor)
        process.freeze()
        futures = [client.request(address, "echo", tensor) for _ in range(5)]
        # the requests are handed over in order, so that the arena holds them when this one's turn has come
        assert client.stats().arena_used_bytes > 0
        process.send_signal(signal.SIGKILL)
        for future in futures:
            with pytest.raises(PeerLostError):
                future.result(DEADLINE_S)
        assert client.stats().arena_used_bytes == 0


# --- GLT's names, in a group of workers and in a job of servers and clients ------------------------------------


def worker(rank: int, world_size: int, port: int, fd: int) -> dict[str, Any]:
    from graphlearn_dist.distributed import dist_context, rpc

    class Scale(rpc.RpcCalleeBase):
        def call(self, x: torch.Tensor, factor: int = 1) -> torch.Tensor:
            return x * factor + rank

    dist_context.init_worker_group(world_size, rank, "group")
    rpc.init_rpc("127.0.0.1", port, num_rpc_threads=2, rpc_timeout=DEADLINE_S, master_fd=fd if rank == 0 else -1)
    try:
        callee = rpc.rpc_register(Scale())
        table = rpc.rpc_sync_data_partitions(2, rank % 2)
        router = rpc.RpcDataPartitionRouter(table)
        asked = [router.get_to_worker(0) for _ in range(2)]
        other = f"group_{(rank + 1) % world_size}"
        answer = rpc.rpc_request_async(other, callee, args=(torch.arange(3),), kwargs={"factor": 10}).wait()
        gathered = rpc.all_gather({"rank": rank})
        rpc.barrier()
        return {
            "callee": callee,
            "asked": asked,
            "answer": answer.tolist(),
            "gathered": gathered,
            "names": rpc.get_rpc_current_group_worker_names(),
            "master": [rpc.get_rpc_master_addr(), rpc.get_rpc_master_port()],
        }
    finally:
        rpc.shutdown_rpc()


def test_a_group_of_workers() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port, fd = listener.getsockname()[1], listener.fileno()
        ranks = [(f"{HERE}.worker", {"rank": rank, "world_size": 3, "port": port, "fd": fd}) for rank in range(3)]
        results = run_processes(ranks, 60, pass_fds=[fd])
    for rank, result in enumerate(results):
        assert result["callee"] == 0
        assert result["asked"] == ["group_0", "group_2"]
        assert result["answer"] == [(rank + 1) % 3 + 10 * i for i in range(3)]
        assert result["gathered"] == {f"group_{i}": {"rank": i} for i in range(3)}
        assert result["names"] == ["group_0", "group_1", "group_2"]
        assert result["master"] == ["127.0.0.1", port]


def describe(value: int) -> list[Any]:
    from graphlearn_dist.distributed import rpc
    from graphlearn_dist.rpc import current_peer

    return [rpc.get_endpoint().name, current_peer().name, value]


def member(role: str, rank: int, port: int, fd: int) -> Any:
    from graphlearn_dist.distributed import dist_context, rpc

    if role == "server":
        dist_context._set_server_context(2, rank, num_clients=1)
    else:
        dist_context._set_client_context(2, 1, rank)
    rpc.register_function(describe)
    is_master = role == "server" and rank == 0
    rpc.init_rpc("127.0.0.1", port, num_rpc_threads=2, rpc_timeout=DEADLINE_S, master_fd=fd if is_master else -1)
    try:
        rpc.global_barrier()
        result = None
        if role == "client":
            result = [
                rpc.rpc_global_request(dist_context.DistRole.SERVER, 1, describe, args=(5,)),
                rpc.rpc_global_request_by_rank(0, describe, kwargs={"value": 6}),
                rpc.rpc_global_request_async(dist_context.DistRole.SERVER, 0, describe, args=(7,)).wait(),
                {role.name: names for role, names in rpc.get_rpc_worker_names().items()},
                dist_context.assign_server_by_order(),
            ]
        rpc.global_barrier()
        return result
    finally:
        rpc.shutdown_rpc()


def test_servers_and_a_client() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port, fd = listener.getsockname()[1], listener.fileno()
        members = [("client", 0), ("server", 0), ("server", 1)]
        arguments = [{"role": role, "rank": rank, "port": port, "fd": fd} for role, rank in members]
        result = run_processes([(f"{HERE}.member", each) for each in arguments], 60, pass_fds=[fd])[0]
    assert result[0] == ["_default_server_1", "_default_client_0", 5]
    assert result[1] == ["_default_server_0", "_default_client_0", 6]
    assert result[2] == ["_default_server_0", "_default_client_0", 7]
    assert result[3] == {"SERVER": ["_default_server_0", "_default_server_1"], "CLIENT": ["_default_client_0"]}
    assert result[4] == [0, 1]
