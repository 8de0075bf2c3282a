"""The registry and collectives, with all endpoints in one process; the arena's file; who is who in a job."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import fcntl
import gc
import mmap
import os
import queue
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from graphlearn_dist.config import RpcSettings
from graphlearn_dist.distributed import dist_context, rpc
from graphlearn_dist.errors import (
    DeadlineExceededError,
    InvalidArgumentError,
    NotInitializedError,
    PeerLostError,
    ProtocolError,
    RegistryError,
)
from graphlearn_dist.rpc import Endpoint
from graphlearn_dist.rpc.calls import callees
from graphlearn_dist.rpc.calls.remote import remote_name
from graphlearn_dist.rpc.job import last_known, membership
from graphlearn_dist.rpc.job.collectives import Collectives
from graphlearn_dist.rpc.job.last_known import LastKnown
from graphlearn_dist.rpc.job.registry import EVENT_TOPIC, PROBE_TOPIC, Registry, ViewChange
from graphlearn_dist.rpc.peers.identity import Member, Peer, PeerAddress
from graphlearn_dist.rpc.shm.arena import ReceivingArena, SendingArena, SlotAllocator
from tests.faults.proxy import Proxy
from tests.support.waiting import collect

pytestmark = pytest.mark.usefixtures("engines")

DEADLINE_S = 60.0  # only ever reached by a hang
SETTINGS = RpcSettings(connect_timeout_s=DEADLINE_S, request_timeout_s=DEADLINE_S)
HELLO, JOIN = remote_name(Registry.hello), remote_name(Registry.join)


@pytest.fixture
def job() -> Iterator[Any]:
    """Makes members; the first, server 0, hosts the registry."""
    with contextlib.ExitStack() as stack:
        hosts: list[Endpoint] = []

        def member(role: str = "server", rank: int = 0, world_size: int | None = 2, **options: Any) -> Endpoint:
            endpoint = stack.enter_context(Endpoint(role, rank, settings=SETTINGS, **options))
            port = hosts[0].master_port if hosts else 0
            endpoint.join("127.0.0.1", port, host_registry=not hosts, world_size=world_size)
            hosts.append(endpoint)
            return endpoint

        yield member


def in_threads(*functions: Any) -> list[Any]:
    """The results, or the errors, of functions that wait for each other."""

    def run(function: Any) -> Any:
        try:
            return function()
        except Exception as error:
            return error

    with ThreadPoolExecutor(len(functions)) as pool:
        return [future.result(2 * DEADLINE_S) for future in [pool.submit(run, function) for function in functions]]


def cut(one: Endpoint, other: Endpoint) -> None:
    """Closes the connections that one endpoint has to another, as a broken network does."""

    def close() -> None:
        for connection in one._links.connections:
            if connection.is_open and connection.peer == other.peer:
                connection.close("cut")

    one.loop.call_soon_threadsafe(close)


def test_members_see_each_other(job: Any) -> None:
    a, b, c = job(), job(rank=1), job("client", 0, None)
    for endpoint in (a, b, c):
        assert [m.name for m in endpoint.wait_for_members("server", 2, DEADLINE_S)] == ["server-0", "server-1"]
        assert [m.rank for m in endpoint.wait_for_members("client", 1, DEADLINE_S)] == [0]
    b.register("name", lambda: "b")
    assert c.call("server-1", "name") == c.call(("server", 1), "name") == b.call("server-1", "name") == "b"
    assert c.stats().unix_connections == 1  # requests do not go over the registry's TCP connection
    with pytest.raises(DeadlineExceededError, match=r"server: ranks \[2, 3\] of 4 did not join within 0.1 s"):
        a.wait_for_members("server", 4, 0.1)
    with pytest.raises(PeerLostError, match="has not joined"):
        a.call("server-7", "name", fail_fast=True)


def test_leaving_is_not_being_lost(job: Any) -> None:
    a, b, c = job(), job(rank=1), job("client", 0, None)
    events: queue.Queue[tuple[str, str]] = queue.Queue()
    left: queue.Queue[str] = queue.Queue()
    a.on_member_lost(lambda member, why: events.put((member.name, why)))
    a.on_member_left(lambda member: left.put(member.name))
    a.wait_for_members("client", 1, DEADLINE_S)
    b.leave()
    c.close()
    assert left.get(timeout=DEADLINE_S) == "server-1"
    assert events.get(timeout=DEADLINE_S)[0] == "client-0"
    assert events.empty()
    assert [m.name for m in a.members()] == ["server-0"]
    b.leave()
    with pytest.raises(NotInitializedError):
        b.barrier()


def test_a_rank_is_taken_only_once(job: Any) -> None:
    a = job()
    with pytest.raises(RegistryError, match=r"rank 0 of server is taken: server-0 .* alive; other"):
        job(name="other")
    with pytest.raises(RegistryError, match="the name 'server-0' is taken"):
        job("client", 0, None, name="server-0")
    with pytest.raises(RegistryError, match=r"says 3, server-0 .* says 2"):
        job(rank=1, world_size=3)
    with pytest.raises(RegistryError, match="outside of its world size"):
        job(rank=2)
    assert [m.name for m in a.members()] == ["server-0"]


def test_who_finds_its_rank_taken_waits_for_the_heartbeats_verdict() -> None:
    """A host that vanished closed no connection: its rank is taken until its heartbeat is missed, and free then."""
    settings = replace(SETTINGS, heartbeat_interval_s=0.5, heartbeat_timeout_s=2.0)
    with contextlib.ExitStack() as stack:

        def member(rank: int, name: str | None = None) -> Endpoint:
            return stack.enter_context(Endpoint("server", rank, name=name, settings=settings))

        host, lost, proxy = member(0), member(1), stack.enter_context(contextlib.closing(Proxy()))
        host.join("127.0.0.1", 0, host_registry=True)
        lost.join("127.0.0.1", proxy.open(lambda: ("127.0.0.1", host.master_port)))
        why: queue.Queue[str] = queue.Queue()
        host.on_member_lost(lambda member, reason: why.put(f"{member.peer}: {reason}"))
        proxy.silence(silent=True)
        newcomers = [member(1), member(1, "other")]  # the second one has to wait for the first one's verdict too
        results = in_threads(*[lambda e=e: e.join("127.0.0.1", host.master_port) for e in newcomers])
        [winner] = [one.peer for one, result in zip(newcomers, results, strict=True) if result is None]
        [error] = [result for result in results if result is not None]
        assert isinstance(error, RegistryError)
        assert f"rank 1 of server is taken: {winner} is alive" in str(error)
        assert f"{lost.peer}: heartbeat timeout" in why.get(timeout=DEADLINE_S)
        assert [one.peer for one in host.members()] == [host.peer, winner]


def test_a_member_that_is_too_busy_to_say_so_keeps_its_rank(job: Any) -> None:
    a, b = job(), job(rank=1)
    assert a._membership._registry is not None
    a._membership._registry._verdict_s = 0.1
    b.subscribe(PROBE_TOPIC, lambda connection, _: None)
    with pytest.raises(RegistryError, match=r"taken: server-1 .* gave no answer for 0.1 s, and is not given up; other"):
        job(rank=1, name="other")


def test_a_rank_is_free_again_after_its_member_is_gone(job: Any) -> None:
    a, b = job(), job(rank=1)
    a.wait_for_members("server", 2, DEADLINE_S)
    lost = threading.Event()
    a.on_member_lost(lambda member, why: lost.set())
    b.close()
    assert lost.wait(DEADLINE_S)
    again = job(rank=1)
    again.register("me", lambda: again.peer.incarnation)
    assert a.call("server-1", "me") == again.peer.incarnation != b.peer.incarnation


def test_a_client_may_come_before_the_registry() -> None:
    with socket.socket() as reserved:  # bound and not listening: connections are refused until the host adopts it
        reserved.bind(("127.0.0.1", 0))
        port = reserved.getsockname()[1]
        with Endpoint("server", 0, settings=SETTINGS) as server, Endpoint("client", 0, settings=SETTINGS) as client:
            joined = threading.Event()
            errors: list[BaseException] = []

            def join() -> None:
                try:
                    client.join("127.0.0.1", port)
                except Exception as error:
                    errors.append(error)
                joined.set()

            thread = threading.Thread(target=join)
            thread.start()
            assert not joined.wait(0.2)
            server.join("127.0.0.1", port, host_registry=True, master_fd=reserved.detach())
            assert joined.wait(DEADLINE_S)
            thread.join(DEADLINE_S)
            assert errors == []
            assert server.wait_for_members("client", 1, DEADLINE_S)


def test_joining_an_endpoint_that_hosts_nothing() -> None:
    with Endpoint("server", 0, settings=SETTINGS) as other, Endpoint("client", 0, settings=SETTINGS) as client:
        with pytest.raises(InvalidArgumentError, match=r"Registry\.hello"):
            client.join("127.0.0.1", other.address.port)


def test_a_registry_that_comes_back() -> None:
    """Its members join it again by themselves; who does not is lost, and what only they know stays what it was."""
    with contextlib.ExitStack() as stack:
        reserved = stack.enter_context(socket.create_server(("127.0.0.1", 0)))  # as a launcher keeps it

        def host() -> Endpoint:
            endpoint = Endpoint("server", 0, settings=SETTINGS)
            endpoint.register("me", lambda: endpoint.peer.incarnation)
            endpoint.open()
            endpoint.join("127.0.0.1", 0, host_registry=True, master_fd=os.dup(reserved.fileno()), world_size=2)
            return endpoint

        first = stack.enter_context(host())
        a, b = (stack.enter_context(Endpoint(role, 1, settings=SETTINGS)) for role in ("server", "client"))
        changes: queue.Queue[tuple[str, Any]] = queue.Queue()
        a.on_member_lost(lambda member, why: changes.put(("lost", member.peer)))
        for endpoint in (a, b):
            endpoint.join("127.0.0.1", first.master_port, world_size=2)
        a.wait_for_members("server", 2, DEADLINE_S)
        first.close()
        with pytest.raises(PeerLostError, match="registry"):
            a.barrier(DEADLINE_S, group={"server": 2})
        second = stack.enter_context(host())
        assert [m.rank for m in second.wait_for_members("server", 2, DEADLINE_S)] == [0, 1]
        assert changes.get(timeout=DEADLINE_S) == ("lost", first.peer)
        assert in_threads(lambda: second.barrier(group={"server": 2}), lambda: a.barrier(group={"server": 2})) == [
            None,
            None,
        ]
        for endpoint in (a, b):
            assert endpoint.call(("server", 0), "me") == second.peer.incarnation
        b.close()
        assert changes.get(timeout=DEADLINE_S) == ("lost", b.peer)


def test_who_left_while_the_registry_was_away_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that is back does not know of it: those who knew it say so, whether they wait already or come later."""
    monkeypatch.setattr(membership, "_UNCONFIRMED_S", 1.0)
    with contextlib.ExitStack() as stack:
        reserved = stack.enter_context(socket.create_server(("127.0.0.1", 0)))

        def host() -> Endpoint:
            endpoint = stack.enter_context(Endpoint("server", 0, settings=SETTINGS))
            endpoint.join("127.0.0.1", 0, host_registry=True, master_fd=os.dup(reserved.fileno()))
            return endpoint

        def client(rank: int) -> Endpoint:
            endpoint = stack.enter_context(Endpoint("client", rank, settings=SETTINGS))
            endpoint.join("127.0.0.1", reserved.getsockname()[1], world_size=2)
            return endpoint

        first = host()
        a, b = client(0), client(1)
        a.wait_for_members("client", 2, DEADLINE_S)
        first.close()
        with pytest.raises(PeerLostError, match="registry"):
            b.barrier()
        b.close()
        host().wait_for_members("client", 1, DEADLINE_S)  # `a` has come back to the second one
        asyncio.run_coroutine_threadsafe(have_joined_again(a), a.loop).result(DEADLINE_S)
        for _ in range(2):
            with pytest.raises(PeerLostError, match=r"client 1.*it did not join again after the registry was lost"):
                a.all_gather(1)
        again = client(1)
        a.wait_for_members("client", 2, DEADLINE_S)  # it has heard of it, too
        assert in_threads(a.barrier, again.barrier) == [None, None]


def test_a_registry_in_whose_place_another_jobs_is() -> None:
    """Who belongs to the job that is gone says so, and knocks there no more."""
    with contextlib.ExitStack() as stack:
        reserved = stack.enter_context(socket.create_server(("127.0.0.1", 0)))

        def host(token: bytes) -> Endpoint:
            endpoint = stack.enter_context(Endpoint("server", 0, settings=SETTINGS, token=token))
            endpoint.join("127.0.0.1", 0, host_registry=True, master_fd=os.dup(reserved.fileno()))
            return endpoint

        first = host(b"one job's")
        member = stack.enter_context(Endpoint("server", 1, settings=SETTINGS, token=b"one job's"))
        refused: queue.Queue[str] = queue.Queue()
        member.on_refused(refused.put)
        member.join("127.0.0.1", first.master_port)
        first.close()
        second = host(b"another job's")
        assert "is another job's registry now: token: _" in refused.get(timeout=DEADLINE_S).replace("server-0", "_")
        looking = member._membership._rejoining
        assert looking is not None
        asyncio.run_coroutine_threadsafe(asyncio.wait_for(asyncio.shield(looking), DEADLINE_S), member.loop).result()
        assert second.members("server") == [second.members()[0]]
        with pytest.raises(PeerLostError, match="AuthenticationError"):
            member.wait_for_members("server", 3, DEADLINE_S)


def test_a_registry_whose_place_another_one_takes(job: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who listens there meanwhile is no registry: its members go on looking."""
    monkeypatch.setattr(membership, "_REJOIN_PAUSE_S", 0.05)
    a, b = job(), job(rank=1)
    asked = threading.Event()

    async def is_unknown() -> str:
        asked.set()
        raise InvalidArgumentError("function: there is no 'Registry.hello'")

    registry = a._membership._registry
    assert registry is not None
    a.register(HELLO, is_unknown)
    cut(b, a)
    assert asked.wait(DEADLINE_S)
    a.register(HELLO, registry.hello)
    asyncio.run_coroutine_threadsafe(have_joined_again(b), b.loop).result(DEADLINE_S)
    assert in_threads(lambda: a.barrier(DEADLINE_S), lambda: b.barrier(DEADLINE_S)) == [None, None]


def test_an_answer_of_the_registry_that_comes_too_late(job: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The member asks again, and is not told that its rank is taken: by itself."""
    monkeypatch.setattr(membership, "_GRACE_S", 0.5)
    a, b = job(), job(rank=1)
    registry, joined, again = a._membership._registry, [], threading.Event()
    assert registry is not None

    async def join_late(member: Member, world_size: int | None) -> None:
        await registry.join(member, world_size)
        joined.append(member.peer)
        if len(joined) == 1:
            await asyncio.get_running_loop().create_future()  # until the member gives up
        again.set()

    a.register(JOIN, join_late)
    lost: queue.Queue[str] = queue.Queue()
    b.on_member_lost(lambda member, why: lost.put(why))
    cut(b, a)
    assert again.wait(DEADLINE_S)
    asyncio.run_coroutine_threadsafe(have_joined_again(b), b.loop).result(DEADLINE_S)
    assert joined == [b.peer, b.peer]
    assert in_threads(lambda: a.barrier(DEADLINE_S), lambda: b.barrier(DEADLINE_S)) == [None, None]
    assert lost.empty()


def test_a_connection_that_breaks_while_a_member_joins(job: Any) -> None:
    """It asks again until its time is over, and is told then that there is no registry."""
    a = job()
    registry, breaks = a._membership._registry, [HELLO, JOIN, JOIN]
    assert registry is not None

    async def hello() -> str:
        break_if(HELLO)
        return await registry.hello()

    async def join(member: Member, world_size: int | None) -> None:
        await registry.join(member, world_size)
        break_if(JOIN)

    def break_if(function: str) -> None:
        if breaks and breaks[0] == function:
            del breaks[0]
            callees.current_connection().close("cut")

    a.register(HELLO, hello)
    a.register(JOIN, join)
    b = job(rank=1)
    assert breaks == []
    assert in_threads(lambda: a.barrier(DEADLINE_S), lambda: b.barrier(DEADLINE_S)) == [None, None]
    breaks.extend([JOIN] * 10_000)
    with Endpoint("client", 0, settings=SETTINGS) as late:
        with pytest.raises(DeadlineExceededError, match=r"no registry at .* after 0.5 s: is server 0 running\?"):
            late.join("127.0.0.1", a.master_port, timeout_s=0.5)


def test_waiting_for_members_while_the_registry_is_gone() -> None:
    """Who is patient waits for it as well; others are told."""
    with contextlib.ExitStack() as stack:
        reserved = stack.enter_context(socket.create_server(("127.0.0.1", 0)))

        def host() -> Endpoint:
            endpoint = stack.enter_context(Endpoint("server", 0, settings=SETTINGS))
            endpoint.join("127.0.0.1", 0, host_registry=True, master_fd=os.dup(reserved.fileno()))
            return endpoint

        first = host()
        client = stack.enter_context(Endpoint("client", 0, settings=SETTINGS))
        client.join("127.0.0.1", first.master_port)
        first.close()
        for patient, timeout_s in ((False, DEADLINE_S), (True, 0.2)):
            with pytest.raises(PeerLostError, match="registry server-0"):
                client.wait_for_members("server", 2, timeout_s, patient=patient)
        looked = threading.Event()
        look_for = client._membership._look_for

        def look_and_tell(waiting: Any) -> Any:
            found = look_for(waiting)
            looked.set()
            return found

        client._membership._look_for = look_and_tell  # type: ignore[method-assign]
        with ThreadPoolExecutor(1) as pool:
            members = pool.submit(client.wait_for_members, "server", 2, DEADLINE_S, patient=True)
            assert looked.wait(DEADLINE_S)
            port = host().master_port
            second = stack.enter_context(Endpoint("server", 1, settings=SETTINGS))
            second.join("127.0.0.1", port)
            assert [member.rank for member in members.result(DEADLINE_S)] == [0, 1]


async def have_joined_again(endpoint: Endpoint) -> None:
    """On its loop."""
    rejoining = endpoint._membership._rejoining
    assert rejoining is not None
    await rejoining


class Unread:
    """An endpoint, to a ``Membership``, whose answers are all there before they are read."""

    def __init__(self) -> None:
        self.peer = Peer("client-0", "client", 0, 1, 2, "host")
        self.address = PeerAddress("127.0.0.1", 1)
        self.name = self.peer.name
        self.loop = asyncio.get_running_loop()
        self.on_join: Callable[[], None] = lambda: None
        self.num_joins = 0

    def subscribe(self, topic: str, handler: Callable[[Any, Any], None]) -> None:
        if topic == EVENT_TOPIC:
            self.tell = handler

    def call(self, target: Any, function: str, *args: Any, **options: Any) -> Any:
        return self.request(target, function).result()

    def request(self, target: Any, function: str, *args: Any, **options: Any) -> Future[Any]:
        future: Future[Any] = Future()
        if function == JOIN:
            self.num_joins += 1
            self.connection = SimpleNamespace(peer=replace(self.peer, name="server-0"), is_open=True)
            self.tell(self.connection, ViewChange("joined", Member(self.peer, self.address)))
        future.set_result("server-0")
        if function == JOIN:
            self.on_join()
        return future


def test_a_registry_that_is_lost_again_while_a_member_joins() -> None:
    """Its answer is there, and not yet read, when the connection closes that it came by."""

    async def scenario() -> None:
        endpoint = Unread()
        member = membership.Membership(endpoint)  # type: ignore[arg-type]
        member.join("127.0.0.1", 1, None, DEADLINE_S)

        def lose() -> None:
            endpoint.connection.is_open = False
            member.connection_closed(endpoint.connection, "cut")  # type: ignore[arg-type]

        endpoint.on_join = lambda: lose() if endpoint.num_joins == 2 else None
        lose()
        for _ in range(20):  # turns of the loop: nothing has to be waited for
            await asyncio.sleep(0)
        assert endpoint.num_joins == 3
        assert endpoint.connection.is_open
        member.retire()

    asyncio.run(asyncio.wait_for(scenario(), DEADLINE_S))


def test_visitors_are_forgotten(job: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many come, each with another rank, the registry and the others remember a few of them."""
    monkeypatch.setattr(last_known, "_KEPT", 4)
    host, gone = job(), queue.SimpleQueue[int]()
    host.on_member_lost(lambda member, why: gone.put(member.rank))
    host.on_member_left(lambda member: gone.put(member.rank))

    def visit(ranks: range) -> int:
        for rank in ranks:
            with Endpoint("client", rank, settings=SETTINGS, use_unix=rank % 2 == 0) as visitor:
                visitor.join("127.0.0.1", host.master_port)
                if rank % 4:
                    visitor.leave()
            assert gone.get(timeout=DEADLINE_S) == rank
        collect()
        return sum(type(found) is Peer for found in gc.get_objects())

    before = visit(range(8))
    assert visit(range(8, 24)) < before + 8  # what is on its way out takes a moment; each visitor had brought two
    assert host._membership.describe("client", 23).startswith("client-23 (client 23, pid")
    assert host._membership.describe("client", 3) == "client 3"


# --- collectives -----------------------------------------------------------------------------------------------


def test_all_gather(job: Any) -> None:
    a, b, c = job(), job(rank=1), job("client", 0, 1)
    for round_ in range(3):
        values = [{"from": rank, "round": round_, "t": torch.full((2000,), rank)} for rank in range(2)]
        results = in_threads(lambda v=values: b.all_gather(v[1]), lambda v=values: a.all_gather(v[0]))
        for result in results:
            assert list(result) == ["server-0", "server-1"]
            assert [result[name]["round"] for name in result] == [round_, round_]
            assert (result["server-1"]["t"] == 1).all()
    everyone = {"server": 2, "client": 1}
    results = in_threads(*[lambda e=e: e.all_gather(e.name, group=everyone) for e in (a, b, c)])
    assert results == [{name: name for name in ("server-0", "server-1", "client-0")}] * 3
    with pytest.raises(InvalidArgumentError, match="group"):
        c.barrier(group={"server": 2})


def test_all_have_their_answers_before_the_host_can_close() -> None:
    """What the host does after its own answer comes to the loop one turn later, at the earliest."""
    slots = [("server", rank) for rank in range(4)]
    leases = [SimpleNamespace(slot=slot, member=SimpleNamespace(name=f"server-{slot[1]}")) for slot in slots]
    registry = SimpleNamespace(on_gone=[], gone=LastKnown(), lease_of=lambda connection: connection)
    collectives = Collectives(cast(Any, registry))

    async def scenario() -> list[bool]:
        loop = asyncio.get_running_loop()
        tasks: list[asyncio.Task[Any]] = []
        seen: asyncio.Future[list[bool]] = loop.create_future()
        for lease in leases:
            context = contextvars.Context()
            context.run(callees._CURRENT_CONNECTION.set, cast(Any, lease))
            tasks.append(context.run(loop.create_task, collectives.gather({"server": 4}, b"", DEADLINE_S)))
            tasks[-1].add_done_callback(lambda _: seen.done() or seen.set_result([each.done() for each in tasks]))
        return await seen

    assert asyncio.run(scenario()) == [True] * 4


def test_a_host_that_closes_after_a_barrier(job: Any) -> None:
    a, b, c = job(world_size=3), job(rank=1, world_size=3), job(rank=2, world_size=3)

    def come_last_and_close() -> None:
        a.barrier(DEADLINE_S)
        a.close()

    assert in_threads(lambda: b.barrier(DEADLINE_S), lambda: c.barrier(DEADLINE_S), come_last_and_close) == [None] * 3


def test_a_missing_rank_is_named_and_may_come_later(job: Any) -> None:
    a, b = job(), job(rank=1)
    with pytest.raises(DeadlineExceededError, match=r"server 1 did not come within 0.2 s"):
        a.barrier(0.2)
    assert in_threads(a.barrier, b.barrier) == [None, None]  # who gave up has taken its part back


def test_a_late_joiner_fills_its_slot(job: Any) -> None:
    a = job()
    results = in_threads(lambda: a.all_gather(1), lambda: job(rank=1).all_gather(2))
    assert results == [{"server-0": 1, "server-1": 2}] * 2


def test_a_group_that_is_gone_is_not_waited_for_by_the_next_one(job: Any) -> None:
    """Who comes first again waits for the others of its run; they come later. Until then all of them are gone."""
    server = job()
    first, second = (job("client", rank, 2) for rank in range(2))
    second.close()
    with pytest.raises(PeerLostError, match=r"lost client-1 .*before all of 2 client had come"):
        first.barrier(DEADLINE_S)  # it is one of the run that has lost a member
    first.close()
    with pytest.raises(PeerLostError, match="before all of 1 server and 2 client had come"):
        server.barrier(DEADLINE_S, group={"server": 1, "client": 2})
    again = job("client", 0, 2)
    results = in_threads(lambda: again.all_gather(1), lambda: job("client", 1, 2).all_gather(2))
    assert results == [{"client-0": 1, "client-1": 2}] * 2


def test_a_lost_member_fails_the_collective_early(job: Any) -> None:
    a, b = job(), job(rank=1)
    a.wait_for_members("server", 2, DEADLINE_S)
    closing = threading.Thread(target=b.close)
    errors = in_threads(lambda: a.barrier(DEADLINE_S), closing.start)
    closing.join(DEADLINE_S)
    assert isinstance(errors[0], PeerLostError)
    assert "server-1" in str(errors[0])
    with pytest.raises(PeerLostError, match="server-1"):
        a.barrier(DEADLINE_S)
    again = job(rank=1)
    assert in_threads(a.barrier, again.barrier) == [None, None]


def test_the_same_member_twice_in_one_round(job: Any) -> None:
    a = job()
    job(rank=1)
    errors = in_threads(lambda: a.barrier(0.5), lambda: a.barrier(0.5))
    assert sorted(type(error).__name__ for error in errors) == ["DeadlineExceededError", "RegistryError"]


# --- the arena's file ------------------------------------------------------------------------------------------


def test_slots() -> None:
    slots = SlotAllocator(4096, 4096 * 5)
    offsets = [slots.allocate(n) for n in (1, 4096, 4097)]
    assert offsets == [4096, 8192, 12288]
    assert slots.allocate(1) is None
    slots.release(8192)
    slots.release(4096)
    assert slots.allocate(8192) == 4096  # neighbours are merged
    with pytest.raises(ProtocolError):
        slots.release(8192)
    slots.release(4096)
    slots.release(12288)
    assert slots.used_bytes == 0
    assert slots.allocate(4096 * 4) == 4096


def test_a_receiver_checks_the_arena() -> None:
    arena = SendingArena(1 << 16)
    try:
        offset = arena.put([memoryview(b"hello"), memoryview(b" world")], 11)
        assert offset is not None
        receiver = ReceivingArena(arena.path, arena.capacity_bytes, arena.nonce)
        assert bytes(memoryview(receiver.take(offset, 11))) == b"hello world"
        for bad in ((0, 11), (offset, 1 << 16), (-4096, 10), (offset, 0)):
            with pytest.raises(ProtocolError, match="outside"):
                receiver.take(*bad)
        receiver.close()
        with pytest.raises(ProtocolError, match="bytes, found"):
            ReceivingArena(arena.path, 1 << 17, arena.nonce)
        with pytest.raises(ProtocolError, match="not the peer's"):
            ReceivingArena(arena.path, arena.capacity_bytes, bytes(16))
        with pytest.raises(OSError, match="not permitted"):
            os.ftruncate(int(arena.path.rsplit("/", 1)[1]), 4096)
        assert arena.put([memoryview(bytes(1 << 17))], 1 << 17) is None
    finally:
        arena.close()
        arena.close()


def test_a_receiver_refuses_other_files(tmp_path: Any) -> None:
    with pytest.raises(ProtocolError, match="expected a path"):
        ReceivingArena("/etc/passwd", 4096, bytes(16))
    file = tmp_path / "file"
    file.write_bytes(bytes(8192))
    with file.open("rb") as opened, pytest.raises(OSError):
        ReceivingArena(f"/proc/{os.getpid()}/fd/{opened.fileno()}", 8192, bytes(16))
    unsealed = os.memfd_create("unsealed", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(unsealed, 8192)
        with pytest.raises(ProtocolError, match="sealed"):
            ReceivingArena(f"/proc/{os.getpid()}/fd/{unsealed}", 8192, bytes(16))
        fcntl.fcntl(unsealed, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
        ReceivingArena(f"/proc/{os.getpid()}/fd/{unsealed}", 8192, bytes(16)).close()
    finally:
        os.close(unsealed)


def test_a_receiver_cannot_write() -> None:
    arena = SendingArena(1 << 16)
    try:
        receiver = ReceivingArena(arena.path, arena.capacity_bytes, arena.nonce)
        with pytest.raises(ValueError, match="read-only"):
            receiver._bytes[0] = 1
        assert isinstance(receiver._map, mmap.mmap)
        receiver.close()
    finally:
        arena.close()


# --- GLT's names -----------------------------------------------------------------------------------------------


@pytest.fixture
def no_context() -> Iterator[None]:
    yield
    rpc.shutdown_rpc()
    dist_context._reset_context()


def test_contexts(no_context: None) -> None:
    dist_context.init_worker_group(4, 1)
    context = dist_context.get_context()
    assert context is not None
    assert (context.worker_name, context.is_worker(), context.global_rank) == ("_default_worker_1", True, 1)
    dist_context._set_client_context(2, 3, 1, "trainers")
    context = dist_context.get_context()
    assert context is not None
    assert (context.worker_name, context.global_rank, context.global_world_size) == ("trainers_1", 3, 5)
    assert (context.num_servers(), context.num_clients()) == (2, 3)
    with pytest.raises(InvalidArgumentError, match="rank"):
        dist_context.init_worker_group(2, 2)


@pytest.mark.parametrize(
    ("num_servers", "num_clients", "expected"),
    [(4, 2, {0: [0, 1], 1: [2, 3]}), (2, 4, {0: [0], 1: [1], 2: [0], 3: [1]}), (5, 2, {0: [0, 1, 2], 1: [3, 4]})],
)
def test_servers_are_shared_out_evenly(
    no_context: None, num_servers: int, num_clients: int, expected: dict[int, list[int]]
) -> None:
    for rank, servers in expected.items():
        dist_context._set_client_context(num_servers, num_clients, rank)
        assert dist_context.assign_server_by_order() == servers
    assert dist_context.get_clients_to_servers() == expected
    dist_context._set_server_context(num_servers, 0)
    with pytest.raises(NotInitializedError):
        dist_context.assign_server_by_order()


def test_rpc_of_one_worker(no_context: None) -> None:
    assert not rpc.rpc_is_initialized()
    with pytest.raises(NotInitializedError, match="init_worker_group"):
        rpc.init_rpc("127.0.0.1", 0)
    with pytest.raises(NotInitializedError):
        rpc.barrier()
    dist_context.init_worker_group(1, 0)
    rpc.init_rpc("127.0.0.1", 0, num_rpc_threads=1, rpc_timeout=DEADLINE_S)
    assert rpc.rpc_is_initialized()
    assert rpc.get_rpc_worker_names() == {dist_context.DistRole.WORKER: ["_default_worker_0"]}
    assert rpc.rpc_sync_data_partitions(1, 0) == [["_default_worker_0"]]

    def add(a: int, b: int) -> int:
        return a + b

    with pytest.raises(InvalidArgumentError, match=r"add.* is not registered"):
        rpc.rpc_global_request_by_rank(0, add, args=(1, 2))
    rpc.register_function(add)
    assert rpc.rpc_global_request_by_rank(0, add, args=(1, 2)) == 3
    with pytest.raises(InvalidArgumentError, match="partitions"):
        rpc.RpcDataPartitionRouter([["a"], []])
    rpc.shutdown_rpc()
    rpc.shutdown_rpc()
    assert not rpc.rpc_is_initialized()


def test_settings_of_a_short_connect_timeout_name_the_registry() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        with Endpoint("client", 0, settings=replace(SETTINGS, connect_timeout_s=0.3)) as client:
            with pytest.raises(DeadlineExceededError, match=r"no registry at .* after 0\.3 s"):
                client.join("127.0.0.1", unused.getsockname()[1])
