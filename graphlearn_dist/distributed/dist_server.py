"""A server: holds one partition, answers for it, and runs sampling workers for clients."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import replace
from time import perf_counter_ns
from typing import Any

import torch

from .._C import Answerer
from ..config import LaunchContext, RpcSettings, TlsSettings, pulse_fd
from ..config import feature_memory as feature_memory_setting
from ..core import check_index_tensor, return_large_blocks
from ..data.feature import divide_memory
from ..data.graph import Graph
from ..errors import (
    InvalidArgumentError,
    NotInitializedError,
    PeerLostError,
    RpcError,
)
from ..messages import ChannelItem, SampledBatch
from ..rpc import Endpoint
from ..rpc.calls.remote import remote, remote_functions
from ..rpc.engine.threads import post
from ..rpc.peers.identity import Member, Peer, current_peer
from ..sampler.base import EdgeSamplerInput, NodeSamplerInput, RemoteSamplerInput, SamplingConfig
from ..sampler.epochs.fingerprint import input_settings
from ..sampler.epochs.locality import order_of_seeds, place_nodes
from ..sampler.epochs.schedule import BatchShare
from ..sampler.inputs import edge_type_index
from ..telemetry import MadeStats, Metric, register_source
from ..telemetry.loader_stats import made_metrics
from ..telemetry.process_status import Budget, ServedStatus
from ..telemetry.trace import tracer
from ..typing import EdgeType, NodeType
from ..utils.shown import shown
from ..utils.system.garbage import permanent_heap
from ..utils.system.lifetime import Home
from . import rpc
from .copies.host_row_cache import CopiesJob, HostRowCache, RowCacheStats, budget_of
from .copies.row_chances import Announcement
from .dist_context import UNSET, _reset_context, _set_server_context, check_given, get_context, undone_on_failure
from .dist_dataset import DistDataset
from .dist_options import ProducerInfo, ProducerRequest, RemoteDistSamplingWorkerOptions
from .embeddings.service import EmbeddingService
from .partitions.partition_input import own_input, resolve_among, resolve_here
from .partitions.partition_outline import DatasetOutline, outline_of
from .partitions.partition_peers import PartitionHolders
from .partitions.partition_service import SERVICE, PartitionService
from .server.client_exits import ClientExits
from .server.memory_budget import FeatureRooms, MemoryBudget, ServerMemory
from .server.producer_leases import BATCHES, ProducerLeases
from .server.server_holders import ServerHolders
from .server.server_log import log_members, log_start
from .workers.pulse import start_pulse
from .workers.sampling_producer import SamplingProducer

SERVER_EXIT_STATUS_CHECK_INTERVAL = 5.0


class DistServer:
    """Serves one partition. Clients call its methods that are declared by ``@remote``; see ``request_server``.

    Args:
        dataset: the partition.
        num_clients: clients after whose end ``wait_for_exit`` returns; 0 leaves their number open, see ``ClientExits``.
        memory_budget: most memory for what clients wait for, see ``ServerMemory.of``.
        lease_timeout: how long a client whose connection was lost keeps what it holds, see ``ProducerLeases``.
        is_supervised: whether a launcher ends this server when the clients have ended, see ``ClientExits``.
        row_cache: copies of other servers' rows, see ``init_server``.
        row_cache_by: which of them, see ``HostRowCache``.
        feature_memory: for features that lie in files, see ``init_server``.
    """

    def __init__(
        self,
        dataset: DistDataset,
        *,
        num_clients: int = 0,
        memory_budget: int | str | None = None,
        lease_timeout: float | None = None,
        is_supervised: bool = False,
        row_cache: float | str | None = None,
        row_cache_by: str = "loader",
        feature_memory: int | str | None = None,
    ) -> None:
        if not isinstance(dataset, DistDataset):
            raise InvalidArgumentError(f"dataset: expected a DistDataset, got {type(dataset).__name__}")
        self.home = Home("the server")
        self.dataset = dataset
        self._handle = dataset.to_handle(with_splits=False)
        copies = budget_of(row_cache, dataset)
        self.memory = ServerMemory.of(memory_budget, row_cache=copies)
        self._budget = MemoryBudget(self.memory.batches)
        self._service = PartitionService(dataset)
        self._embeddings = EmbeddingService(dataset)
        self._feature_rooms = self._limit_features(feature_memory)
        self._row_cache = HostRowCache(dataset, self._service, copies, row_cache_by)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ready = asyncio.Event()
        self._leases = ProducerLeases(lease_timeout, lambda client: rpc.get_endpoint().is_connected(client))
        self._holders = ServerHolders(dataset, self._handle, self._leases)
        self._name = "server"
        self._clients = ClientExits(num_clients, is_supervised=is_supervised)
        register_source(self)

    def _limit_features(self, feature_memory: int | str | None) -> FeatureRooms | None:
        wanted = feature_memory_setting() if feature_memory is None else feature_memory
        if wanted is not None:
            self.dataset.limit_feature_memory(wanted)
        if self.dataset.feature_memory is None:
            return None
        rooms = FeatureRooms(self.dataset.feature_memory)
        divide_memory(self._service.limited_features(), rooms.of_server)
        return rooms

    # --- life --------------------------------------------------------------------------------------------------

    @property
    def functions(self) -> dict[str, Callable[..., Any]]:
        """By name, what others may call."""
        parts = self, self._service, self._holders, self._embeddings
        return {name: function for part in parts for name, function in remote_functions(part).items()}

    @property
    def answerers(self) -> dict[str, Answerer]:
        """By service, what answers queries."""
        return {SERVICE: self._service.native, BATCHES: self._leases.answerer}

    def attach(self, endpoint: Endpoint) -> None:
        """Follows who comes and goes at the endpoint that answers for this server."""
        self._loop = endpoint.loop
        self._name = str(endpoint.peer)
        endpoint.on_peer_lost(self._on_peer_lost)
        endpoint.on_member_lost(self._on_member_lost)
        endpoint.on_member_left(self._on_member_left)
        endpoint.on_member_joined(self._on_member_joined)
        endpoint.on_refused(self._clients.refuse)
        log_members(endpoint)

    def set_ready(self) -> None:
        """This process has joined the job: what came before is answered from now on."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._on_ready)

    def _on_ready(self) -> None:
        self._ready.set()
        endpoint = rpc.get_endpoint()

        def find_holders(timeout_s: float) -> Future[PartitionHolders]:
            return endpoint.begin(lambda: self._holders.find(timeout_s))

        self._row_cache.attach(CopiesJob(endpoint, find_holders, self._leases))

    @remote
    def exit(self) -> bool:
        """Tells the server to end."""
        self._clients.end()
        return True

    @remote
    def client_done(self, group_size: int = 0) -> None:
        """The calling client says that it is done: what it still holds goes.

        Args:
            group_size: clients of its group, for which a server ends that counts none; 0 does not end it.
        """
        self._clients.done(current_peer(), group_size)
        if self._loop is not None:
            post(self._loop, self._leases.end_of, current_peer())

    def wait_for_exit(self) -> None:
        """Waits until every client that was announced is done, or lost for a while, or ``exit`` was called.

        Raises:
            AuthenticationError: where the registry was, that of another job is now; this server's job is gone.
        """
        self.home.check()
        self._clients.wait(SERVER_EXIT_STATUS_CHECK_INTERVAL)

    def shutdown(self) -> None:
        """Ends every producer. Idempotent; call it before the endpoint closes. Without effect in a fork."""
        if not self.home.is_here:
            return
        loop, self._loop = self._loop, None
        if loop is not None:
            asyncio.run_coroutine_threadsafe(self._end_all(), loop).result()

    async def _end_all(self) -> None:
        self._row_cache.close()
        self._holders.close()
        await self._leases.close_all(PeerLostError(self._name, "it was shut down"))

    def _on_peer_lost(self, peer: Peer, why: str) -> None:
        if self._loop is not None:
            post(self._loop, self._leases.connection_lost, peer)

    def _on_member_lost(self, member: Member, why: str) -> None:
        self._clients.lost(member.peer)
        if self._loop is not None:
            post(self._loop, self._embeddings.trainer_gone, member.peer, why)
        if member.role == "server" and self._loop is not None:
            post(self._loop, self._holders.server_lost)

    def _on_member_left(self, member: Member) -> None:
        self._clients.done(member.peer)
        if self._loop is not None:
            post(self._loop, self._embeddings.trainer_gone, member.peer, "it left the job")

    def _on_member_joined(self, member: Member) -> None:
        self._clients.joined(member.peer)
        if member.role == "server" and self._loop is not None:
            post(self._loop, self._holders.server_joined)

    # --- what it shows -----------------------------------------------------------------------------------------

    def status(self) -> Iterator[ServedStatus | Budget]:
        """See ``telemetry.MetricSource``."""
        yield from self._leases.statuses()
        yield Budget(self._budget.total_bytes, self._budget.used_bytes)

    def metrics(self) -> Iterator[Metric]:
        """See ``telemetry.MetricSource``."""
        for served in self._leases.statuses():
            labels = {"loader": f"{served.client}, {served.number}"}
            yield from made_metrics(served.made, labels)
            yield Metric("ready_batches", "Finished batches that wait for their client.", served.ready, labels)
            yield Metric(
                "loader_memory_bytes", "What a loader has of the memory for batches.", served.room_bytes, labels
            )
            yield Metric("credit_bytes", "Of batches that may be with a client unread.", served.credit_bytes, labels)
            yield Metric("unread_bytes", "Of batches that are with a client unread.", served.unread_bytes, labels)
        yield from self._service.metrics()
        yield Metric("batch_memory_bytes", "Memory for batches.", self._budget.total_bytes)
        yield Metric("batch_memory_used_bytes", "What of it loaders have.", self._budget.used_bytes)
        yield from self._row_cache.stats().metrics({})

    # --- producers ---------------------------------------------------------------------------------------------

    @remote
    async def open_producer(
        self,
        sampler_input: NodeSamplerInput | EdgeSamplerInput | RemoteSamplerInput,
        sampling_config: SamplingConfig,
        request: ProducerRequest,
    ) -> ProducerInfo:
        """Starts sampling workers for the calling client; they live until it closes them or is gone.

        Raises:
            InvalidArgumentError: the config does not fit the data set.
            UnknownIdError: an input node is outside the graph.
            ResourceInsufficientError: too little of the memory budget is left.
            SamplingWorkerError: a worker failed on its way up.
        """
        if not isinstance(sampler_input, (NodeSamplerInput, EdgeSamplerInput, RemoteSamplerInput)):
            raise InvalidArgumentError(f"input_nodes: expected sampler input, got {type(sampler_input).__name__}")
        await self._ready.wait()  # a client may be faster than the answer that lets us join
        async with self._leases.opening(current_peer(), request.key):
            return await self._open(sampler_input, sampling_config, request)

    async def _open(
        self,
        sampler_input: NodeSamplerInput | EdgeSamplerInput | RemoteSamplerInput,
        sampling_config: SamplingConfig,
        request: ProducerRequest,
    ) -> ProducerInfo:
        named = resolve_here(sampler_input, self.dataset)
        producer_id, number = self._leases.new_id()
        context = get_context()
        name = f"{context.worker_name if context else 'server'}, producer {number}"
        holders = await self._holders.find()
        loop, timeout_s = asyncio.get_running_loop(), request.request_timeout_s
        seeds = await loop.run_in_executor(None, resolve_among, named, self.dataset, holders, timeout_s)
        # long inputs take long
        near = await loop.run_in_executor(None, order_of_seeds, sampling_config, seeds, self.dataset)
        hashed = await loop.run_in_executor(None, input_settings, seeds, near)
        with contextlib.ExitStack() as undo:
            room = self._budget.take(2 * request.buffer_bytes, request.num_workers)  # a region, and as much of a ring
            undo.callback(room.give_back)
            request = replace(request, buffer_bytes=room.nbytes // 2)
            if (row_counts := self._row_cache.new_counts(request.num_workers)) is not None:
                undo.callback(row_counts.close)
            features = None
            if self._feature_rooms is not None:
                features = self._feature_rooms.take()
                given_back = undo.enter_context(contextlib.ExitStack())
                given_back.callback(self._feature_rooms.give_back, features)
            producer = SamplingProducer(
                name, self.dataset, self._handle, seeds, sampling_config, request, holders, row_counts, near, features
            )
            if features is not None:
                producer.on_close(given_back.pop_all().close)
            await producer.use_copies(self._row_cache.handles)
            await self._start(producer, holders)
            self._leases.add(producer_id, producer, current_peer(), request.key, room)
            undo.pop_all()
        held, schedule = self.dataset, producer.schedule
        owners: tuple[int, ...] = ()
        if near is not None:
            node_type, nodes = place_nodes(seeds)
            owners = await loop.run_in_executor(None, lambda: schedule.owners(held.node_books()[node_type][nodes]))
        if sampling_config.collect_features:
            self._announce(producer, seeds, owners, hashed)
        await producer.use_copies(self._row_cache.handles)  # there may be others meanwhile
        return ProducerInfo(
            producer_id,
            schedule.num_batches,
            held.schema,
            hashed,
            held.constants,
            owners,
            producer.together,
            answers_queries=tracer() is None,  # a trace has spans of what is asked of servers
        )

    def _announce(
        self,
        producer: SamplingProducer,
        seeds: NodeSamplerInput | EdgeSamplerInput,
        owners: tuple[int, ...],
        hashed: Mapping[str, Any],
    ) -> None:
        """Tells the cache of rows what batches are made here: of near seeds, those of this partition's stretches."""
        plan, schedule, here = producer.plan, producer.schedule, self.dataset.partition_idx
        size = schedule.batch_size

        def announcement() -> Announcement:
            made = seeds[schedule.inputs_of(owners, here)] if owners else seeds
            return Announcement.of_loader(plan.schema, made, size, plan.expected_fanouts)

        self._row_cache.announce(producer, (hashed["inputs"], plan.expected_fanouts, size, owners), announcement)

    async def _start(self, producer: SamplingProducer, holders: PartitionHolders) -> None:
        """Starts a producer, which knows these holders; undone if it fails."""
        try:
            await producer.start()
            while holders is not (latest := await self._holders.find()):  # a server was lost meanwhile
                holders = latest
                await producer.move_holders(holders)
            if self._loop is None:
                raise PeerLostError(self._name, "it was shut down")
        except BaseException:
            await self._leases.discard(producer)
            raise

    def _producer(self, producer_id: int) -> SamplingProducer:
        """The calling client's producer of that id."""
        if self._loop is None:
            raise PeerLostError(self._name, "it was shut down")
        return self._leases.producer(producer_id, current_peer())

    @remote
    async def holds_producer(self, producer_id: int) -> bool:
        """Whether the calling client still has that producer, when it comes back after its connection was lost."""
        return self._leases.holds(producer_id, current_peer())

    @remote
    async def get_producer_stats(self, producer_id: int) -> MadeStats:
        """What a producer of the calling client has made until now."""
        return self._producer(producer_id).made

    @remote
    async def create_sampling_producer(
        self,
        sampler_input: NodeSamplerInput | EdgeSamplerInput | RemoteSamplerInput,
        sampling_config: SamplingConfig,
        worker_options: RemoteDistSamplingWorkerOptions,
    ) -> int:
        """Starts a producer; returns its id."""
        return (await self.open_producer(sampler_input, sampling_config, worker_options.request)).producer_id

    @remote
    async def withdraw_producer(self, key: int) -> None:
        """Ends what the calling client has opened, or is opening, by a key of its own: see ``ProducerRequest``."""
        await self._leases.withdraw(current_peer(), key)

    @remote
    async def destroy_sampling_producer(self, producer_id: int) -> None:
        """Ends a producer of the calling client; without effect where there is none."""
        await self._leases.close(producer_id, current_peer())

    @remote
    async def start_new_epoch_sampling(
        self,
        producer_id: int,
        epoch: int,
        run: int | None = None,
        share: BatchShare | None = None,
        credit_bytes: int | None = None,
    ) -> None:
        """Begins to make batches of an epoch; what is left of an older run is dropped.

        Args:
            producer_id: of the producer that makes them.
            epoch: whose draws.
            run: must grow; ``epoch + 1`` unless given.
            share: which batches, and how many of them travel together; all of them, one by one, unless given.
            credit_bytes: most bytes of batches that the client takes ahead of what it reads, see
                ``BatchShelf.begin_run``.
        """
        await self._producer(producer_id).start_run(
            epoch + 1 if run is None else run, epoch, share, credit_bytes=credit_bytes
        )

    @remote
    async def grant_batches(self, producer_id: int, run: int, oldest: int) -> None:
        """The client has read all batches of the run before ``oldest``; ``fetch_batch`` says so as well."""
        self._producer(producer_id).grant(run, oldest)

    @remote
    async def fetch_batch(self, producer_id: int, run: int, index: int, oldest: int | None = None) -> ChannelItem:
        """One batch by its index, with others of its group or not, or what became of it; see ``BatchShelf.fetch``.

        Where both engines are native, clients ask the shelf itself, see ``ProducerLeases.answerer``.
        """
        begun = perf_counter_ns()
        producer = self._producer(producer_id)
        names = [] if tracer() is None else producer.trace_names(index)
        batch = await producer.fetch(run, index, oldest)
        if (traced := tracer()) is not None:
            for name in names:
                traced.span("fetch_batch", current_peer().role, begun, name)
        return batch  # type: ignore[return-value]  # encoded already: sent as it is

    @remote
    async def fetch_one_sampled_message(self, producer_id: int) -> tuple[SampledBatch | None, bool]:
        """(the next batch of the epoch, False), or (None, True) when all have been handed out; see ``fetch_next``."""
        batch = await self._producer(producer_id).fetch_next()
        return batch, batch is None

    # --- the partition -----------------------------------------------------------------------------------------

    @remote
    def get_dataset_meta(self) -> tuple[int, int, list[NodeType], list[EdgeType]]:
        """(number of partitions, index of this one, node types, edge types)."""
        dataset = self.dataset
        return dataset.num_partitions, dataset.partition_idx, dataset.get_node_types(), dataset.get_edge_types()

    @remote
    def get_outline(self) -> DatasetOutline:
        """The data set without its rows: types, counts, partition books, and the shapes of what can be looked up."""
        return outline_of(self.dataset)

    @remote
    def get_node_partition_id(self, node_type: NodeType | None, index: torch.Tensor) -> torch.Tensor:
        """Owner of each node, int64 ``[n]``."""
        book = self.dataset.node_books().get(node_type)
        if book is None:
            raise InvalidArgumentError(f"node_type: unknown node type {node_type!r}")
        owners: torch.Tensor = book[check_index_tensor(index, "index")]
        return owners

    @remote
    def get_node_feature(self, node_type: NodeType | None, index: torch.Tensor) -> torch.Tensor:
        """Feature rows of nodes of this partition."""
        feature = self.dataset.get_node_feature(node_type)
        if feature is None:
            raise InvalidArgumentError(f"node_type: type {node_type!r} has no features")
        return feature[index]

    @remote
    def get_node_label(self, node_type: NodeType | None, index: torch.Tensor) -> torch.Tensor:
        """Labels of nodes of this partition."""
        labels = self.dataset.get_node_label(node_type)
        if labels is None:
            raise InvalidArgumentError(f"node_type: type {node_type!r} has no labels")
        return self.dataset.labels_of(check_index_tensor(index, "index"), node_type)

    @remote
    def get_row_cache_stats(self) -> RowCacheStats:
        """What copies of other servers' rows are here, and how often they were used."""
        return self._row_cache.stats()

    @remote
    def get_tensor_size(self, node_type: NodeType | None) -> list[int]:
        """Shape of this partition's feature tensor."""
        feature = self.dataset.get_node_feature(node_type)
        if feature is None:
            raise InvalidArgumentError(f"node_type: type {node_type!r} has no features")
        return list(feature.shape)

    @remote
    def get_edge_index(self, edge_type: EdgeType | None, layout: str) -> torch.Tensor:
        """This partition's edges, int64 ``[2, E]``, global ids; ``layout`` must be ``"coo"``."""
        if layout.lower() != "coo":
            raise InvalidArgumentError(f"layout: expected 'coo', got {shown(layout)}")
        edge_type_index(self.dataset.schema, edge_type, "edge_type")
        _, source, target = self.dataset.edges(edge_type)
        return torch.stack([source, target])

    @remote
    def get_edge_size(self, edge_type: EdgeType | None, layout: str) -> int:
        """Edges of this partition."""
        edge_type_index(self.dataset.schema, edge_type, "edge_type")
        graph: Graph = self.dataset.graphs()[edge_type]
        return graph.edge_count

    @remote
    def find_input(self, sampler_input: RemoteSamplerInput) -> NodeSamplerInput | EdgeSamplerInput:
        """The seeds that an input names here, one of a list with one for each server: see ``own_input``."""
        if not isinstance(sampler_input, RemoteSamplerInput):
            raise InvalidArgumentError(
                f"sampler_input: expected one that names seeds, got {type(sampler_input).__name__}"
            )
        return own_input(sampler_input, self.dataset)


_server: DistServer | None = None


def get_server() -> DistServer:
    """This process's server; ``NotInitializedError`` before ``init_server``."""
    if _server is None:
        raise NotInitializedError("there is no server in this process: call init_server first")
    return _server


def init_server(
    num_servers: int,
    num_clients: int = 0,
    server_rank: int = UNSET,
    dataset: DistDataset = UNSET,
    master_addr: str = UNSET,
    master_port: int = UNSET,
    num_rpc_threads: int = 16,
    request_timeout: int = 180,
    server_group_name: str | None = None,
    is_dynamic: bool = False,
    *,
    connect_timeout_s: float = 30.0,
    tls: TlsSettings | None = None,
    memory_budget: int | str | None = None,
    lease_timeout: float | None = None,
    row_cache: float | str | None = None,
    row_cache_by: str = "loader",
    feature_memory: int | str | None = None,
) -> None:
    """Makes this process a server and begins to serve. Nobody is waited for but the registry.

    Server 0 hosts the registry at ``master_addr:master_port``, unless the launcher does. Clients may come and go at any
    time.

    Args:
        num_servers: servers in the job.
        num_clients: clients after whose end ``wait_and_shutdown_server`` returns; 0 leaves their number open. Those of
            other jobs are not counted (see ``client_group_name`` of ``init_client``).
        server_rank: this one's rank, from 0.
        dataset: the partition to serve.
        master_addr: host of the registry.
        master_port: its port.
        num_rpc_threads: threads that answer requests.
        request_timeout: default deadline of a request, in seconds.
        server_group_name: prefix of the servers' names.
        is_dynamic: clients are not counted in advance.
        connect_timeout_s: how long to wait for the registry.
        tls: certificates for connections between hosts; those of ``GLD_TLS_…`` if None.
        memory_budget: most memory for what clients wait for (batches, answers, messages under way), in bytes or as text
            such as ``"8GB"``. None: ``GLD_MEMORY_BUDGET``, else half of the least of the host's memory and its
            control groups' limits. Processes, and the partition itself, are not counted.
        lease_timeout: how long a client whose connection was lost keeps what it holds, in seconds. None:
            ``GLD_LEASE_TIMEOUT``, else 3.
        row_cache: how many rows of other servers' partitions to keep copies of for this host's sampling workers: a
            share of all rows of the data set (``0.1``), or bytes, or text such as ``"4GB"``; 0 keeps none. They are
            part of ``memory_budget``. None: ``GLD_ROW_CACHE``, else none. Batches do not depend on it, nor wait for it.
        row_cache_by: which rows: ``"loader"``, those that are likeliest in the batches of the first loader, by its
            seeds and fan-outs, or ``"degree"``, those that most nodes have edges to, which are fetched at the start.
        feature_memory: most memory for node and edge features of this server and its sampling workers, in bytes or as
            text such as ``"8GB"``. Features that are larger are read from the partition's files, past the page cache.
            The server keeps a quarter to answer others, and each loader gets half of what is free when it is opened.
            None: ``GLD_FEATURE_MEMORY``, else files are mapped.

    Raises:
        InvalidArgumentError: an argument is wrong or missing, or this process is a server or a client already.
        DeadlineExceededError: there is no registry at that address.
        RegistryError: another server has this rank, or the registry cannot listen at that address.
    """
    global _server
    check_given(
        "init_server", server_rank=server_rank, dataset=dataset, master_addr=master_addr, master_port=master_port
    )
    rpc.check_not_initialized("init_server")
    launched = LaunchContext.of_server(server_rank)
    return_large_blocks()  # what a visitor brought goes with it
    expected = 0 if is_dynamic else num_clients
    server = DistServer(
        dataset,
        num_clients=expected,
        memory_budget=memory_budget,
        lease_timeout=lease_timeout,
        is_supervised=launched is not None,
        row_cache=row_cache,
        row_cache_by=row_cache_by,
        feature_memory=feature_memory,
    )
    _set_server_context(num_servers, server_rank, server_group_name, expected)
    with undone_on_failure(f"{master_addr}:{master_port}: server {server_rank}"):
        rpc.init_rpc(
            master_addr,
            master_port,
            num_rpc_threads,
            request_timeout,
            is_dynamic or num_clients == 0,
            master_fd=launched.master_fd if launched else -1,
            host_registry=server_rank == 0 and not (launched and launched.launcher_has_registry),
            settings=RpcSettings(connect_timeout_s=connect_timeout_s, tls=tls, arena_bytes=server.memory.arena),
            functions=server.functions,
            answerers=server.answerers,
            on_open=server.attach,
        )
    _server = server
    server.set_ready()
    log_start(rpc.get_endpoint(), num_servers, dataset, server.memory)
    if launched is not None and (pulse := pulse_fd()) >= 0:
        start_pulse(pulse)


def wait_and_shutdown_server() -> None:
    """Serves until every client is done (or ``DistServer.exit`` was called), then ends everything."""
    server = get_server()
    try:
        with permanent_heap():
            server.wait_for_exit()
    finally:
        shutdown_server()


def shutdown_server() -> None:
    """Ends the server of this process at once. Idempotent."""
    global _server
    server, _server = _server, None
    if server is None:
        return
    try:
        server.shutdown()
    finally:
        with contextlib.suppress(RpcError):  # the registry may be gone already: there is nobody to say goodbye to
            rpc.shutdown_rpc()
        _reset_context()
