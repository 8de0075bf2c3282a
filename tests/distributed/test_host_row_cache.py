"""Copies that servers keep of others' rows: the likeliest ones, within a budget; batches do not depend on them."""

from __future__ import annotations

import errno
import functools
import itertools
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from graphlearn_dist.data import ZoneOrder, shared_memory
from graphlearn_dist.distributed import (
    DistDataset,
    DistServer,
    MpDistSamplingWorkerOptions,
    RemoteDistSamplingWorkerOptions,
    init_client,
    init_server,
    request_server,
    shutdown_client,
    wait_and_shutdown_server,
)
from graphlearn_dist.distributed.copies import host_row_cache
from graphlearn_dist.distributed.copies.host_row_cache import (
    CopiesJob,
    HostRowCache,
    RowCacheStats,
    budget_of,
    choose_rows,
    store_groups,
)
from graphlearn_dist.distributed.copies.partition_asker import AskerClosed, PartitionAsker
from graphlearn_dist.distributed.copies.row_chances import Announcement, estimate_chances
from graphlearn_dist.distributed.partitions.dataset_handle import CacheHandle, cache_handle
from graphlearn_dist.distributed.partitions.partition_peers import PartitionHolders
from graphlearn_dist.distributed.partitions.partition_service import PartitionService
from graphlearn_dist.distributed.sampling.batches import PartitionedBatches
from graphlearn_dist.distributed.sampling.row_cache import open_caches
from graphlearn_dist.distributed.server.memory_budget import ServerMemory
from graphlearn_dist.errors import InvalidArgumentError, PeerLostError, ProtocolError, SystemLimitError, UnknownIdError
from graphlearn_dist.loader import NeighborLoader
from graphlearn_dist.messages import SpreadReply, SpreadRequest
from graphlearn_dist.partition import CachedRows, FrequencyPartitioner, RandomPartitioner
from graphlearn_dist.rpc.calls.remote import remote_functions
from graphlearn_dist.rpc.peers.identity import PeerAddress
from graphlearn_dist.rpc.wire.encoded import Encoded
from graphlearn_dist.sampler import NodeSamplerInput, SamplingConfig, SamplingType
from graphlearn_dist.sampler.plan import build_plan
from graphlearn_dist.sampler.probability import sampling_probability
from graphlearn_dist.utils.system.ports import reserved_port
from tests.support.direct_peers import DirectPeers
from tests.support.graphs import Direction, make_dataset, random_graph
from tests.support.jobs import load
from tests.support.oracle import (
    GRAPHS,
    SAMPLINGS,
    compare_epochs,
    graph_of,
    load_partitions,
    open_loader,
    oracle_epochs,
    write_partitions,
)
from tests.support.processes import assert_nothing_left, start
from tests.support.python_answers import FeatureRequest, lookup
from tests.support.queries import received, rows_query
from tests.support.waiting import collect, wait_until

HERE = "tests.distributed.test_host_row_cache"
DEADLINE_S = 120.0  # only ever reached by a hang
PARTS = 3
SHARE = 0.3
Asked = Callable[[PartitionService, Any], Any]


class DirectAsker:
    """All partitions in this process, in place of a ``PartitionAsker``."""

    def __init__(self, services: list[PartitionService]) -> None:
        self._services = services

    def ask(self, function: Asked, requests: Mapping[int, Any]) -> dict[int, Any]:
        return {partition: function(self._services[partition], request) for partition, request in requests.items()}


# --- which rows ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("edge_dir", ["in", "out"])
@pytest.mark.parametrize("name", sorted(GRAPHS))
def test_partitions_estimate_together_what_one_process_does(name: str, edge_dir: Direction, tmp_path: Path) -> None:
    graph = graph_of(name)
    whole = make_dataset(graph, edge_dir)
    parts = load_partitions(write_partitions(graph, tmp_path, "random", PARTS, edge_dir), PARTS)
    schema = whole.schema
    plan = build_plan(schema, [4, -1, 3])
    seeds = NodeSamplerInput(torch.arange(0, 60, 3), None if graph.is_homogeneous else "user")
    expected = sampling_probability(
        plan, [whole.graphs()[key].topo for key in schema.edge_types], seeds, schema.num_nodes
    )
    asker: Any = DirectAsker([PartitionService(part) for part in parts])
    announced = Announcement.of_loader(schema, seeds, len(seeds), plan.fanouts)
    for part in parts:
        found = estimate_chances(part, announced, [0], asker)
        for chances, wanted in zip(found.nodes, expected, strict=True):
            assert torch.allclose(chances.double(), wanted, atol=1e-5)
        drawn = found.edges[0] > 0
        assert torch.equal(found.degrees[0][drawn], _degrees(whole, 0)[drawn])


def _degrees(dataset: Any, edge_type: int) -> torch.Tensor:
    """Of all nodes that have rows in the graph of an edge type."""
    degrees = dataset.graphs()[dataset.schema.edge_types[edge_type]].topo.degrees
    count = dataset.schema.num_nodes[dataset.schema.edge_specs[edge_type][0]]
    return torch.nn.functional.pad(degrees.long(), (0, count - len(degrees)))


def test_smaller_batches_make_seeds_less_likely(tmp_path: Path) -> None:
    schema = make_dataset(graph_of("homogeneous"), "in").schema
    seeds = NodeSamplerInput(torch.tensor([4, 4, 7, 9]))
    announced = Announcement.of_loader(schema, seeds, 1, ())
    assert announced.seeds[0][[4, 7, 9, 1]].tolist() == [0.5, 0.25, 0.25, 0]
    assert float(Announcement.of_loader(schema, seeds, 3, ()).seeds[0][4]) == 1


def test_the_likeliest_rows_of_others_are_chosen_within_the_budget(tmp_path: Path) -> None:
    """Nodes and edges by one measure; what nobody announces is chosen by degree."""
    graph = graph_of("homogeneous")
    parts = load_partitions(write_partitions(graph, tmp_path, "random", PARTS, "in"), PARTS)
    asker: Any = DirectAsker([PartitionService(part) for part in parts])
    own, groups = parts[0], store_groups(parts[0])
    assert [(group.kind, group.stores) for group in groups] == [
        ("edge", ("edge_feature:0",)),
        ("node", ("node_feature:0", "node_label:0")),
    ]
    assert [group.item_bytes for group in groups] == [8 + 4, 8 + 8 + 8]
    chances = estimate_chances(own, Announcement.of_nobody(own.schema), [0], asker)
    budget = 24 * 50
    edges_of, nodes_of = (
        choose_rows(own, groups[:1], chances, [1, 2], budget)[0],
        choose_rows(own, groups[1:], chances, [1, 2], budget)[0],
    )
    chosen = torch.cat([*nodes_of.values()])
    assert len(chosen) == 50
    assert all(bool((own.node_pb[ids] == partition).all()) for partition, ids in nodes_of.items())
    arrivals = torch.bincount(graph.edges[None][0], minlength=own.schema.num_nodes[0])
    others = torch.nonzero(own.node_pb[torch.arange(len(arrivals))] != 0).flatten()
    left = others[~torch.isin(others, chosen)]
    assert int(arrivals[chosen].min()) >= int(arrivals[left].max())
    degrees = _degrees(make_dataset(graph, "in"), 0)
    taken = sum(int(degrees[ids].sum()) for ids in edges_of.values())
    assert 0 < 12 * taken <= budget
    both = choose_rows(own, groups, chances, [1, 2], budget)
    nbytes = 24 * sum(len(ids) for ids in both[1].values()) + 12 * sum(
        int(degrees[ids].sum()) for ids in both[0].values()
    )
    assert 0 < nbytes <= budget


def test_of_near_seeds_those_count_that_lie_here(tmp_path: Path) -> None:
    """Three clusters, a partition and a stretch of the seeds each: fewer rows are left to be asked for."""
    draw, count, degree = torch.Generator().manual_seed(0), 240, 8
    targets = torch.arange(count).repeat_interleave(degree)
    near = targets // 80 * 80 + torch.randint(0, 80, (len(targets),), generator=draw)
    far = torch.randint(0, count, (len(targets),), generator=draw)
    sources = torch.where(torch.rand(len(targets), generator=draw) < 0.8, near, far)
    graph = replace(random_graph(count, count * degree, 1), edges={None: torch.stack([sources, targets])})
    whole = make_dataset(graph, "in")
    whole.init_order(ZoneOrder(torch.arange(count), torch.tensor([0, count])))
    loader = NeighborLoader(whole, [3, 2], None, batch_size=20, shuffle=True, locality=PARTS)
    schedule, seeds = loader.batches.schedule, NodeSamplerInput(torch.arange(count))
    parts = load_partitions(write_partitions(graph, tmp_path, "range", PARTS, "in"), PARTS)
    asker: Any = DirectAsker([PartitionService(part) for part in parts])
    owners = schedule.owners(parts[0].node_pb[torch.arange(count)])
    assert sorted(owners) == [0, 1, 2]
    for rank, part in enumerate(parts):
        here = seeds[schedule.inputs_of(owners, rank)]
        assert bool((part.node_pb[here.node] == rank).all())
        batches = [loader.batch(0, i).n_id for i in range(len(loader)) if owners[i % PARTS] == rank]
        looked_up = torch.cat([ids[part.node_pb[ids] != rank] for ids in batches])
        groups = [group for group in store_groups(part) if group.kind == "node"]
        left = []
        for made in (here, seeds):
            announced = Announcement.of_loader(part.schema, made, 20, build_plan(part.schema, [3, 2]).fanouts)
            others = [p for p in range(PARTS) if p != rank]
            rows = choose_rows(part, groups, estimate_chances(part, announced, [], asker), others, 24 * 40)[0]
            copied = torch.cat([*rows.values()])
            assert len(copied) == 40
            left.append(int((~torch.isin(looked_up, copied)).sum()))
        assert left[0] < left[1] < len(looked_up)
    assert torch.equal(schedule.inputs_of((0, 0, 0), 1), torch.arange(count))


def test_what_spread_refuses(tmp_path: Path) -> None:
    part = load_partitions(write_partitions(graph_of("typed"), tmp_path, "random", PARTS, "in"), PARTS)[0]
    service = PartitionService(part)
    own = part.row_books()[0].local_ids(0)[:3].long()
    good = SpreadRequest(0, own, torch.rand(3), 2)
    assert isinstance(service.spread(good), SpreadReply)
    with pytest.raises(InvalidArgumentError, match="edge_types: expected less than 3, got 7"):
        service.spread(replace(good, edge_type=7))
    with pytest.raises(InvalidArgumentError, match=r"chances: expected float32 \[3\], got torch.float32 \[2\]"):
        service.spread(replace(good, chances=torch.rand(2)))
    with pytest.raises(UnknownIdError):
        service.spread(replace(good, ids=own + 10**6))


# --- how many ------------------------------------------------------------------------------------------------------


def test_budgets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    part = load_partitions(write_partitions(graph_of("homogeneous"), tmp_path, "random", PARTS, "in"), PARTS)[0]
    num_edges = part.edge_books()[None].num_ids
    rows = 500 * 24 + num_edges * 12
    assert budget_of(None, part) == 0
    assert budget_of(0.5, part) == budget_of("0.5", part) == rows // 2
    assert budget_of(1.0, part) == budget_of(1, part) == budget_of("1", part) == rows
    assert budget_of(4096, part) == budget_of("4KB", part) == budget_of("4096", part) == 4096
    monkeypatch.setenv("GLD_ROW_CACHE", "0.5")
    assert budget_of(None, part) == rows // 2
    assert budget_of("1KB", part) == 1024
    strange = (-(10**400), -(10**5000), b"0.5", np.True_, torch.tensor(True), torch.tensor(0.5j), 1 + 0j)
    nowhere = torch.tensor(0.5, device="meta")
    for wrong in (-0.5, 1.5, "1.5", "-1", -1, "0_1", "many", "nan", True, [], "1B", nowhere, *strange):
        with pytest.raises(InvalidArgumentError, match="row_cache: expected"):
            budget_of(wrong, part)
        with pytest.raises(InvalidArgumentError, match="row_cache: expected"):
            MpDistSamplingWorkerOptions(row_cache=wrong)
    for none in (0, 0.0, "0", "0GB", "0 B", np.float64(0), torch.tensor(0)):  # whatever the environment says
        assert budget_of(none, part) == 0
    assert budget_of(torch.tensor(4096), part) == budget_of(np.array(4096), part) == 4096
    assert budget_of(torch.tensor(0.5), part) == budget_of(Fraction(1, 2), part) == rows // 2
    assert budget_of(np.int64(4096), part) == budget_of("4096", part) == 4096
    assert budget_of(10**400, part) == budget_of("100000000000TB", part) == 1 << 62
    assert budget_of("5e-1", part) == budget_of(".5", part) == budget_of(" 0.50 ", part) == rows // 2
    assert budget_of(np.float32(0.5), part) == rows // 2
    monkeypatch.setenv("GLD_ROW_CACHE", "plenty")
    with pytest.raises(InvalidArgumentError, match="environment variable GLD_ROW_CACHE: expected a share"):
        budget_of(None, part)
    with pytest.raises(InvalidArgumentError, match=r"row_cache_by: expected one of \('loader', 'degree'\), got 'size'"):
        HostRowCache(part, PartitionService(part), 1, "size")
    memory = ServerMemory.of("1GB", row_cache=256 << 20)
    assert memory.batches + memory.arena + memory.row_cache == 1 << 30
    with pytest.raises(InvalidArgumentError, match=r"row_cache: expected at most .* MiB of memory_budget=1024.00 MiB"):
        ServerMemory.of("1GB", row_cache=900 << 20)


# --- partitions that are away --------------------------------------------------------------------------------------


class Elsewhere:
    """An endpoint by which one partition can be reached, at one address."""

    def __init__(self, service: PartitionService, address: PeerAddress) -> None:
        self._service, self._address = service, address
        self.asked: list[PeerAddress] = []

    def request(self, target: PeerAddress, function: str, *args: Any, **options: Any) -> Future[Any]:
        answer: Future[Any] = Future()
        self.asked.append(target)
        if target == self._address:
            found = remote_functions(self._service)[function](*args)
            answer.set_result(received(found) if isinstance(found, Encoded) else found)
        else:
            answer.set_exception(PeerLostError("server-1", "it is gone"))
        return answer


@pytest.mark.parametrize("by", ["call", "query"])
def test_a_partition_that_comes_back_elsewhere_is_asked_there(by: str, tmp_path: Path) -> None:
    parts = load_partitions(write_partitions(graph_of("homogeneous"), tmp_path, "random", 2, "in"), 2)
    old, new = PeerAddress("10.0.0.1", 1), PeerAddress("10.0.0.1", 2)
    endpoint = Elsewhere(PartitionService(parts[1]), new)
    found = iter([PeerLostError("server-1", "not up yet"), old, PeerLostError("server-1", "not back yet"), new])

    def find() -> PartitionHolders:
        one = next(found)
        if isinstance(one, PeerLostError):
            raise one
        return PartitionHolders({1: one})

    asker = PartitionAsker(PartitionService(parts[0]), endpoint, find, threading.Event())  # type: ignore[arg-type]
    ids = {p: parts[p].node_pb.local_ids(p)[:5].long() for p in (0, 1)}
    if by == "call":
        requests = {p: SpreadRequest(0, ids[p], torch.ones(5), -1) for p in (0, 1)}
        assert sorted(asker.ask(PartitionService.spread, requests)) == [0, 1]
    else:
        rows = FeatureRequest(("node_feature:0",), (ids[1],))
        found, expected = asker.query({1: rows_query(rows)}, 1), lookup(PartitionService(parts[1]), rows)
        assert [*found] == [1]
        assert torch.equal(*found[1], *expected)  # type: ignore[arg-type]
    assert endpoint.asked == [old, new]
    assert asker.lost == set()


def test_a_partition_that_stays_away_is_left_out(tmp_path: Path) -> None:
    parts = load_partitions(write_partitions(graph_of("homogeneous"), tmp_path, "random", 2, "in"), 2)
    gone = PeerAddress("10.0.0.1", 1)
    endpoint = Elsewhere(PartitionService(parts[1]), PeerAddress("10.0.0.2", 1))
    closed = threading.Event()
    asker = PartitionAsker(
        PartitionService(parts[0]),
        endpoint,
        lambda: PartitionHolders({1: gone}),
        closed,
        0.0,  # type: ignore[arg-type]
    )
    requests = {p: SpreadRequest(0, parts[p].node_pb.local_ids(p)[:5].long(), torch.ones(5), -1) for p in (0, 1)}
    assert [*asker.ask(PartitionService.spread, requests)] == [0]
    assert asker.lost == {1}
    assert [*asker.ask(PartitionService.spread, requests)] == [0]
    assert len(endpoint.asked) == 1
    closed.set()
    with pytest.raises(AskerClosed):
        asker.ask(PartitionService.spread, requests)


def asker_of_two(parts: Sequence[DistDataset]) -> PartitionAsker:
    """By which the first of two partitions asks both."""
    address = PeerAddress("10.0.0.1", 1)
    endpoint: Any = Elsewhere(PartitionService(parts[1]), address)
    return PartitionAsker(
        PartitionService(parts[0]), endpoint, lambda: PartitionHolders({1: address}), threading.Event()
    )


class FewRows:
    """In place of a ``PartitionAsker``: partitions that answer every lookup by one row of each store."""

    lost: frozenset[int] = frozenset()
    dtype = torch.float32

    def query(self, queries: Mapping[int, Any], num_tensors: int) -> dict[int, list[torch.Tensor]]:
        return {partition: [torch.zeros(1, 2, dtype=self.dtype)] * num_tensors for partition in queries}


def test_rows_that_were_not_asked_for_are_refused(tmp_path: Path) -> None:
    part = load_partitions(write_partitions(graph_of("homogeneous"), tmp_path, "random", PARTS, "in"), PARTS)[0]
    group = next(group for group in store_groups(part) if group.kind == "node")
    cache = HostRowCache(part, PartitionService(part), 1 << 20)
    asker: Any = FewRows()
    for count, dtype in ((5, torch.float32), (1, torch.float64)):
        asker.dtype = dtype
        expected = rf"torch.float32 \[{count}, 2\] of node_feature:0 from partition 1, got {dtype} \[1, 2\]"
        with pytest.raises(ProtocolError, match=f"answer: expected rows {expected}"):
            cache._fetch_group(group, {1: part.node_pb.local_ids(1)[:count].long()}, asker)
    cache.close()


class User:
    """In place of a producer: who samples for a loader."""


class Users:
    """Those of all loaders of a server."""

    def __init__(self, names: str) -> None:
        self.open = {name: User() for name in names}

    def __iter__(self) -> Iterator[Any]:
        return iter(self.open.values())


@pytest.fixture
def copies_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Users], HostRowCache]:
    """Makes copies of nothing for who is open, told at once; what their batches are like is asked."""
    part = load_partitions(write_partitions(graph_of("homogeneous"), tmp_path, "random", PARTS, "in"), PARTS)[0]
    holders: Future[PartitionHolders] = Future()
    holders.set_result(PartitionHolders({}))
    monkeypatch.setattr(host_row_cache, "post", lambda loop, function: function())
    monkeypatch.setattr(HostRowCache, "_fetch", lambda self, asker: (self._announced(), {})[1])
    monkeypatch.setattr(HostRowCache, "_tell_users", lambda self: None)

    def make(users: Users) -> HostRowCache:
        cache = HostRowCache(part, PartitionService(part), 1 << 20)
        cache.attach(CopiesJob(SimpleNamespace(loop=None), lambda _: holders, users))  # type: ignore[arg-type]
        return cache

    return make


@pytest.mark.parametrize(("closed", "expected"), [("a", "ac"), ("", "a"), ("ac", "ab"), ("abc", "a")])
def test_a_loader_that_is_opened_while_copies_are_fetched_may_be_next(
    copies_of: Callable[[Users], HostRowCache], monkeypatch: pytest.MonkeyPatch, closed: str, expected: str
) -> None:
    """Where the one they are fetched for is closed by then, and it is open still."""
    users, chosen = Users("abc"), []
    cache = copies_of(users)
    begun = SimpleQueue[Callable[[], None]]()
    monkeypatch.setattr(cache._threads, "submit", begun.put)
    for name in "abc":
        cache.announce(users.open[name], name, functools.partial(chosen.append, name))  # type: ignore[arg-type]
    for name in closed:
        del users.open[name]
    while not begun.empty():
        begun.get()()
    assert "".join(chosen) == expected
    assert not cache.stats().is_filling
    cache.close()


def test_after_any_failure_to_fetch_the_next_loader_has_its_turn(
    copies_of: Callable[[Users], HostRowCache], caplog: pytest.LogCaptureFixture
) -> None:
    """And nothing of a loader's input is kept once copies were chosen for it."""
    users = Users("ab")
    cache = copies_of(users)

    class Input:
        was_read = False

        def fail(self) -> Announcement:
            raise OSError(errno.EMFILE, "Too many open files")

        def read(self) -> Any:
            Input.was_read = True
            return {}

    cache.announce(users.open.pop("a"), "a", Input().fail)
    wait_until(lambda: not cache.stats().is_filling)
    assert "there are no copies" in caplog.text
    assert "Too many open files" in caplog.text
    given = Input()
    of_given = weakref.ref(given)
    cache.announce(users.open["b"], "b", given.read)
    del given
    wait_until(lambda: not cache.stats().is_filling)
    assert Input.was_read
    wait_until(lambda: collect() or of_given() is None)
    cache.close()


@pytest.mark.parametrize("is_open", [True, False])
def test_a_loader_like_one_whose_copies_could_not_be_fetched_has_them_fetched(
    copies_of: Callable[[Users], HostRowCache], is_open: bool
) -> None:
    """Whether that one is still open or not; it may be the same loader again."""
    users, chosen = Users("ab"), []
    cache = copies_of(users)

    def fail() -> Announcement:
        raise OSError(errno.EMFILE, "Too many open files")

    cache.announce(users.open["a"], "alike", fail)
    wait_until(lambda: not cache.stats().is_filling)
    if not is_open:
        del users.open["a"]
    cache.announce(users.open["b"], "alike", functools.partial(chosen.append, "b"))  # type: ignore[arg-type]
    wait_until(lambda: not cache.stats().is_filling)
    assert chosen == ["b"]
    cache.close()


def test_where_a_partition_was_left_out_the_next_loader_has_its_turn(
    copies_of: Callable[[Users], HostRowCache], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A like one too: that partition may be back."""
    users, chosen = Users("ab"), []
    cache = copies_of(users)

    def fetch(self: HostRowCache, asker: PartitionAsker) -> dict[str, Any]:
        self._announced()
        asker.lost.add(1)
        return {}

    monkeypatch.setattr(HostRowCache, "_fetch", fetch)
    for name in "ab":
        cache.announce(users.open[name], "alike", functools.partial(chosen.append, name))  # type: ignore[arg-type]
        wait_until(lambda: not cache.stats().is_filling)
    assert chosen == ["a", "b"]
    cache.close()


def test_where_no_thread_can_be_started_loaders_are_opened_without_copies(
    copies_of: Callable[[Users], HostRowCache], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The next one has them, once there can be threads again."""
    users, chosen = Users("ab"), []
    cache = copies_of(users)

    def refuse(work: object) -> None:
        raise SystemLimitError("no thread for row-cache")

    with monkeypatch.context() as limited:
        limited.setattr(cache._threads, "submit", refuse)
        cache.announce(users.open["a"], "a", functools.partial(chosen.append, "a"))  # type: ignore[arg-type]
    assert "there are no copies: no thread for row-cache" in caplog.text
    assert not cache.stats().is_filling
    cache.announce(users.open["b"], "b", functools.partial(chosen.append, "b"))  # type: ignore[arg-type]
    wait_until(lambda: not cache.stats().is_filling)
    assert chosen == ["b"]
    cache.close()


def test_nothing_is_kept_of_loaders_that_are_closed_while_copies_are_fetched(
    copies_of: Callable[[Users], HostRowCache], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither of the one they are fetched for, once it was looked at, nor of those that waited."""
    users, of_inputs = Users("ab"), []
    cache = copies_of(users)
    has_looked, goes_on = threading.Event(), threading.Event()

    class Input:
        def read(self) -> Any:
            return {}

    def fetch(self: HostRowCache, asker: PartitionAsker) -> dict[str, Any]:
        self._announced()
        has_looked.set()
        assert goes_on.wait(60.0)
        return {}

    monkeypatch.setattr(HostRowCache, "_fetch", fetch)
    for name in "ab":
        given = Input()
        of_inputs.append(weakref.ref(given))
        cache.announce(users.open[name], name, given.read)
    del given
    assert has_looked.wait(60.0)
    users.open.clear()
    wait_until(lambda: collect() or not any(one() for one in of_inputs))
    goes_on.set()
    wait_until(lambda: not cache.stats().is_filling)
    cache.close()


def test_copies_that_are_gone_leave_a_worker_with_those_of_before(tmp_path: Path) -> None:
    """It reads late which there are; newer ones are about to be told of."""
    parts = load_partitions(write_partitions(graph_of("homogeneous"), tmp_path, "random", PARTS, "in"), PARTS)
    config = SamplingConfig(SamplingType.NODE, [2], 10, False, False, False, True, False, False, "in", 0)
    services = [PartitionService(part) for part in parts]
    seeds = NodeSamplerInput(torch.arange(60))
    batches = PartitionedBatches(parts[0], seeds, config, services[:1], DirectPeers(services), 1)
    used: list[Mapping[str, CachedRows]] = []
    batches._sampler.collector.use_copies = used.append  # type: ignore[method-assign]

    def told(number: int) -> tuple[CachedRows, CacheHandle]:
        ids, rows = (shared_memory.share(torch.full(shape, number)) for shape in ((3,), (3, 2)))
        return CachedRows(ids, rows), cache_handle("node_feature:0", CachedRows(ids, rows))

    first, of_first = told(1)
    batches.use_copies([of_first])
    assert torch.equal(used[0]["node_feature:0"].feats, first.feats)
    gone, of_gone = told(2)
    del gone
    collect()
    batches.use_copies([of_gone])
    assert len(used) == 1
    last, of_last = told(3)
    batches.use_copies([of_last])
    assert torch.equal(used[1]["node_feature:0"].feats, last.feats)


def test_where_there_are_no_rows_there_are_no_copies(tmp_path: Path) -> None:
    RandomPartitioner(str(tmp_path), 2, 60, torch.randint(0, 60, (2, 200))).partition()
    parts = load_partitions(tmp_path, 2)
    assert store_groups(parts[0]) == []
    cache = HostRowCache(parts[0], PartitionService(parts[0]), 1 << 20)
    cache._make = lambda: Announcement.of_nobody(parts[0].schema)
    assert cache._fetch(asker_of_two(parts)) == {}
    cache.close()


def test_other_rows_of_ids_whose_features_a_directory_has_copies_of(tmp_path: Path) -> None:
    """Attributes of nodes are fetched for ids of their own, and of features those that are not there yet."""
    count = 200
    generator = torch.Generator().manual_seed(0)
    edges = torch.randint(0, count, (2, 1500), generator=generator)
    partitioner = FrequencyPartitioner(
        str(tmp_path), 2, count, edges, node_feat=torch.rand(count, 3, generator=generator),
        probs=[torch.rand(count, generator=generator) for _ in range(2)], cache_ratio=0.2,
        node_attrs={"pos": torch.rand(count, 2, generator=generator)},
    )  # fmt: skip
    partitioner.partition()
    parts = load_partitions(tmp_path, 2)
    own = parts[0]
    known = own.row_caches()["node_feature:0"]
    assert len(known.ids) > 0
    assert [group.stores for group in store_groups(own)] == [("node_attr:0:pos",), ("node_feature:0",)]
    cache = HostRowCache(own, PartitionService(own), 1 << 20)
    cache._make = lambda: Announcement.of_nobody(own.schema)
    copies = cache._fetch(asker_of_two(parts))
    assert not torch.isin(copies["node_feature:0"].ids, known.ids).any()
    others = torch.nonzero(own.node_pb[torch.arange(count)] != 0).view(-1)
    assert torch.equal(copies["node_attr:0:pos"].ids, others[torch.isin(others, edges[0])])
    opened = open_caches(own.row_caches(), copies)
    assert opened["node_feature:0"].places.count == len(known.ids) + len(copies["node_feature:0"].ids)
    cache.close()


# --- servers -------------------------------------------------------------------------------------------------------


def serve(rank: int, port: int, directory: str, by: str) -> None:
    """A server of three, until its client is done."""
    dataset = load(Path(directory), rank)
    init_server(PARTS, 1, rank, dataset, "127.0.0.1", port, row_cache=SHARE, row_cache_by=by)
    wait_and_shutdown_server()


def stats_when_filled(rank: int) -> RowCacheStats:
    """Those of a server when it has its copies."""
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        stats: RowCacheStats = request_server(rank, DistServer.get_row_cache_stats)
        if stats.rows and not stats.is_filling:
            return stats
        time.sleep(0.05)
    raise AssertionError(f"server {rank} has no copies after {DEADLINE_S:g} s: {stats}")


@pytest.mark.parametrize(
    ("name", "edge_dir", "kind", "own_books", "by"),
    [
        ("homogeneous", "in", "random", False, "loader"),
        ("typed", "out", "range", False, "loader"),
        ("typed", "in", "random", True, "degree"),
        pytest.param("homogeneous", "out", "range", True, "loader", marks=pytest.mark.thorough),
        pytest.param("homogeneous", "in", "random", False, "degree", marks=pytest.mark.thorough),
        pytest.param("typed", "in", "random", False, "loader", marks=pytest.mark.thorough),
    ],
)
def test_batches_are_the_same_with_copies(
    name: str, edge_dir: Direction, kind: str, own_books: bool, by: str, tmp_path: Path
) -> None:
    """Features of nodes and of edges, labels; while copies are fetched, and with them."""
    directory = write_partitions(graph_of(name), tmp_path, kind, PARTS, edge_dir, own_feature_books=own_books)
    with ExitStack() as stack:
        port = stack.enter_context(reserved_port())
        arguments = {"port": port, "directory": str(directory), "by": by}
        servers = [stack.enter_context(start(f"{HERE}.serve", rank=rank, **arguments)) for rank in range(PARTS)]
        init_client(PARTS, 1, 0, "127.0.0.1", port)
        try:
            if by == "degree":  # before anybody opens a loader
                assert [stats_when_filled(rank).hits for rank in range(PARTS)] == [0] * PARTS
            samplings = [("node", "uniform"), *itertools.islice((s for s in SAMPLINGS if s[0] == "link"), 1)]
            for number, sampling in enumerate([samplings[0], *samplings]):
                options = RemoteDistSamplingWorkerOptions(
                    [*range(PARTS)], num_workers=1 + number % 2, buffer_size="16MB"
                )
                with open_loader(name, edge_dir, sampling, None, options) as loader:
                    assert compare_epochs(loader, oracle_epochs(name, edge_dir, sampling)) > 0
                    before = [stats_when_filled(rank) for rank in range(PARTS)]
                    assert compare_epochs(loader, oracle_epochs(name, edge_dir, sampling, count=4)[2:]) > 0
                after = [request_server(rank, DistServer.get_row_cache_stats) for rank in range(PARTS)]
                for one, other in zip(before, after, strict=True):
                    assert 0 < other.nbytes <= other.budget_bytes
                    assert other.hits > one.hits
                    assert other.bytes_saved - one.bytes_saved >= other.hits - one.hits
        finally:
            shutdown_client()
        for server in servers:
            server.wait(DEADLINE_S)
        assert_nothing_left(*(server.pid for server in servers))
