"""The producer of the remote mode: sampling workers on servers."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from ..._C import fetch_query
from ...errors import GraphLearnError, InvalidArgumentError, PeerLostError, ProducerGoneError
from ...rpc import Endpoint
from ...rpc.calls.remote import LONGEST_S, Remote
from ...sampler.base import (
    EdgeSamplerInput,
    NodeSamplerInput,
    RemoteNodeSplitSamplerInput,
    RemoteSamplerInput,
    SamplerInput,
    SamplingConfig,
)
from ...sampler.epochs.fingerprint import Settings
from ...sampler.epochs.schedule import BatchIndices, BatchShare
from ...sampler.inputs import concatenate_inputs
from ...telemetry import BatchSums, MadeStats
from .. import rpc
from ..dist_client import client_context
from ..dist_context import assign_server_by_order
from ..dist_options import ProducerInfo, RemoteDistSamplingWorkerOptions
from ..dist_server import DistServer
from ..server.producer_leases import BATCHES
from ..session.launcher_messages import result_or_alarm
from .batch_makers import BatchMakers
from .batch_producer import BatchProducer, BatchRequest, Pending
from .pending_batch import Core
from .server_recovery import ServerRecovery

T = TypeVar("T")


@dataclass
class _Server:
    """One of the servers that make a loader's batches.

    Attributes:
        rank: its rank.
        remote: the server, whose loss is told at once.
        making: the same, without deadlines: a batch may be asked for long before its reader wants it.
        info: the producer that it has for the loader; None while it has none.
        run: the number by which that knows the run; a run that begins again there has another one.
        unread: position of the batch that is read next, of those that it makes.
        told: the same, as it was told last.
        core: how its core is asked for batches; None where its interpreter is, as an engine is in Python.
    """

    rank: int
    remote: Remote[DistServer]
    making: Remote[DistServer]
    info: ProducerInfo | None = None
    run: int = 0
    unread: int = 0
    told: int = 0
    core: Core | None = None

    @property
    def producer_id(self) -> int:
        """That of its producer; 0, which is none's, while it has none."""
        return 0 if self.info is None else self.info.producer_id


class RemoteProducer(BatchProducer):
    """One producer on each of some servers; batch ``j`` of this loader comes from the ``j``-th of them in turn.

    Batches of near seeds (``config.locality``) come from a server that owns the most of their seeds, see
    ``BatchMakers``; unless the options name servers, any may be used then, and has a producer when it is needed first.

    At most ``prefetch_size`` requests per server are under way, so a trainer that does not read holds nothing up but
    its own producers; and with every request goes which batch is read next, so that a server sends no more than its
    credit ahead.

    Args:
        sampler_input: the loader's input, or where the servers find it; or a list with one for each server, which
            finds its own: the loader's input is all of them, in this order. So is that of a split whose servers the
            options name. Where they name none, of a list for all servers those count that are this client's. This
            process keeps the list: a server that comes back is told the seeds that it had.
        config: how to sample.
        options: which servers, how many workers.

    Raises:
        NotInitializedError: this process is no client.
        InvalidArgumentError: there is no such server, or the config does not fit the data set.
        UnknownIdError: an input node is outside the graph.
        SamplingWorkerError: a worker failed on its way up.
        PeerLostError: a server is gone.
    """

    _group_of: Callable[[int], Sequence[int]]  # that of the run's makers

    def __init__(
        self,
        sampler_input: SamplerInput | list[SamplerInput],
        config: SamplingConfig,
        options: RemoteDistSamplingWorkerOptions,
    ) -> None:
        ranks, alarm = _server_ranks(options, use_all=config.locality is not None), rpc.get_alarm()
        super().__init__(options.prefetch_size * len(ranks), options.rpc_timeout, alarm)
        if isinstance(sampler_input, list):
            if options.server_rank is None and len(sampler_input) == client_context().num_servers():
                sampler_input = [sampler_input[rank] for rank in ranks]
            sampler_input = _concatenate(sampler_input, ranks, options.rpc_timeout)
        elif isinstance(sampler_input, RemoteNodeSplitSamplerInput) and options.server_rank is not None:
            sampler_input = _own_parts(sampler_input, ranks, options.rpc_timeout)
        # A connection that breaks may take the answer along. By its key a producer is asked for again, and closed.
        self._wanted = sampler_input, config, replace(options.request, key=1 + secrets.randbits(62))
        self._options = options
        self._server_ranks = ranks
        self._endpoint = rpc.get_endpoint()
        self._closing_calls = rpc.get_closing_calls()
        self._recovery = ServerRecovery(options.reconnect_timeout, alarm, self._is_over)
        self._withdrawn = False
        self._servers = [
            _Server(
                rank, _server_at(rank, self._timeout_s, fail_fast=True), _server_at(rank, LONGEST_S, fail_fast=True)
            )
            for rank in ranks
        ]
        self._is_near = config.locality is not None and len(ranks) > 1
        first = self._servers
        if self._is_near:
            first = [next((server for server in self._servers if server.rank in assign_server_by_order()), first[0])]
        try:
            self._info = self._open_producers(first)
            self._partitions = self._find_partitions() if self._is_near else [0] * len(ranks)
        except BaseException:  # a Ctrl-C too
            self._release()
            raise
        self._makers = BatchMakers(self._indices, self._partitions)
        self.schema, self.constants = self._info.schema, self._info.constants
        self.num_batches = self._info.num_batches

    @property
    def input_settings(self) -> Settings:
        return self._info.input_settings

    @property
    def where(self) -> str:
        ranks = [str(server.rank) for server in self._servers if server.info is not None]
        return f"server{'s' if len(ranks) > 1 else ''} {', '.join(ranks)}"

    def made(self) -> MadeStats:
        asked = {
            server.rank: server.remote.ask(DistServer.get_producer_stats, server.producer_id)
            for server in self._servers
            if server.info is not None
        }
        found = {rank: self._result(future) for rank, future in asked.items()}
        options = {
            "workers": "num_workers= of the worker options, or more servers",
            "ahead": "prefetch_size= of the worker options, or buffer_size=",
            "credit": "prefetch_bytes= of the worker options",
            "peers": "worker_concurrency= of the worker options, init_server(row_cache=), or locality= of the loader",
        }
        return MadeStats(
            self.where,
            sum((stats.sums for stats in found.values()), BatchSums()),
            sum(stats.num_workers for stats in found.values()),
            sum(stats.restarts for stats in found.values()),
            options,
        )

    @property
    def trace_key(self) -> int:
        _, _, request = self._wanted
        return request.key

    @property
    def made_here(self) -> None:
        """Servers show what they make themselves."""
        return None

    # --- batches -------------------------------------------------------------------------------------------------

    def _begin(self, run: int, epoch: int, indices: BatchIndices) -> None:
        self._epoch = epoch
        group = self._options.group_of(self._info.together, len(indices), len(self._servers))
        self._makers = BatchMakers(indices, self._partitions, self._info.owners, group)
        self._group_of = self._makers.group_of
        places = self._makers.busy if self._is_near else range(len(self._servers))
        servers, shares = [self._servers[place] for place in places], list(map(self._makers.share_of, places))
        self._open_producers([server for server in servers if server.info is None])
        self._limit = self._options.requests_ahead(group) * len(servers)
        for place, server in enumerate(self._servers):
            server.unread = self._makers.next_of(place, 0)
        for server in servers:
            server.run = max(run, server.run + 1)
        begun = [self._begin_at(server, share) for server, share in zip(servers, shares, strict=True)]
        for server, share, future in zip(servers, shares, begun, strict=True):
            try:
                self._result(future)
                self._find_core(server)
            except (PeerLostError, ProducerGoneError) as lost:
                self._begin_again(server, share, lost, lambda: None)

    def _begin_at(self, server: _Server, share: BatchShare) -> Future[Any]:
        """Tells a server which batches of the run it shall make."""
        what = server.producer_id, self._epoch, server.run, share, self._options.credit_bytes
        return _server_at(server.rank, self._timeout_s).ask(DistServer.start_new_epoch_sampling, *what)

    def _find_core(self, server: _Server) -> None:
        server.core, engine = None, self._endpoint.native_engine
        if server.info is not None and server.info.answers_queries and engine is not None:
            reached = self._result(self._endpoint.connect(("server", server.rank), self._timeout_s))
            if reached.stream is not None:
                server.core = Core(engine, *reached)

    def _ask(self, request: BatchRequest) -> Pending:
        server = self._server_of(request.position)
        server.told = server.unread
        if server.core is not None:
            query = fetch_query(server.producer_id, server.run, request.index, self._indices[server.told])
            return server.core.ask(BATCHES, query, LONGEST_S)
        return server.making.ask(
            DistServer.fetch_batch, server.producer_id, server.run, request.index, self._indices[server.told]
        )

    def _note_read(self, position: int) -> None:
        place = self._makers.maker_of(position)
        self._servers[place].unread = self._makers.next_of(place, position + 1)

    def _grant(self, position: int) -> None:
        server = self._server_of(position)
        if server.unread < self._num_wanted and server.unread != server.told:
            server.told = server.unread
            # where it fails, so do those under way
            server.remote.ask(DistServer.grant_batches, server.producer_id, server.run, self._indices[server.told])

    def _server_of(self, position: int) -> _Server:
        return self._servers[self._makers.maker_of(position)]

    def _place_of(self, request: BatchRequest) -> str:
        return f"server {self._server_of(request.position).rank}"

    # --- a server that was lost ----------------------------------------------------------------------------------

    def _recover(self, request: BatchRequest, lost: PeerLostError | ProducerGoneError) -> Any:
        lacking = self._makers.share_of(self._makers.maker_of(request.position), request.position)
        return self._begin_again(
            self._server_of(request.position),
            lacking,
            lost,
            lambda: self._wait_for(request, self._ask_again(request)),
        )

    def _begin_again(self, server: _Server, share: BatchShare, lost: GraphLearnError, go_on: Callable[[], T]) -> T:
        """A server that was lost makes these batches of the run, in its producer of before or in another one."""

        def begin(info: ProducerInfo) -> T:
            server.info, server.run = info, server.run + 1
            self._result(self._begin_at(server, share))
            self._find_core(server)
            return go_on()

        peer = self._endpoint.describe("server", server.rank)
        return self._recovery.recover(peer, lost, lambda limit_s: self._find(server.rank, server.info, limit_s), begin)

    def _find(self, rank: int, held: ProducerInfo | None, limit_s: float) -> ProducerInfo:
        """The producer on a server that was lost, if that still has it when it is back, else another one."""
        server = _server_at(rank, limit_s, self._endpoint)
        asked = server.ask(DistServer.holds_producer, 0 if held is None else held.producer_id)
        if self._result(asked) and held is not None:  # only the connection had been lost
            return held
        info: ProducerInfo = self._result(self._open(rank))
        if held is not None and info.input_settings != held.input_settings:
            peer = self._endpoint.describe("server", rank)
            raise InvalidArgumentError(f"input_nodes: {peer} came back with other seeds than it had")
        return info

    def _is_over(self) -> bool:
        """Whether nothing may be asked of servers any more: the session is over, or another thread has closed this."""
        return self._closed or not rpc.rpc_is_initialized() or rpc.get_endpoint() is not self._endpoint

    def _result(self, future: Future[Any]) -> Any:
        return result_or_alarm(future, self._alarm)

    # --- opening and closing -------------------------------------------------------------------------------------

    def _open(self, rank: int) -> Future[Any]:
        limit_s = self._options.rpc_timeout + self._options.start_timeout
        return _server_at(rank, limit_s, self._endpoint).ask(DistServer.open_producer, *self._wanted)

    def _open_producers(self, servers: Sequence[_Server]) -> ProducerInfo:
        """One producer on each of these servers, all at once; what is known of any producer of the loader's."""
        futures = [self._open(server.rank) for server in servers]
        for server, future in zip(servers, futures, strict=True):
            server.info = self._opened(server.rank, future)
        infos = {server.rank: server.info for server in self._servers if server.info is not None}
        first = next(iter(infos.values()))
        if any(info.input_settings != first.input_settings for info in infos.values()):
            found = {rank: "{num_inputs} ({inputs})".format(**info.input_settings) for rank, info in infos.items()}
            raise InvalidArgumentError(
                f"input_nodes: expected servers to find the same seeds, got counts and hashes {found} by server; "
                "seeds of each server's own are given as a list, one for each server"
            )
        return first

    def _find_partitions(self) -> list[int]:
        """The partition that each server holds."""

        def ask(rank: int, limit_s: float) -> Future[Any]:
            return _server_at(rank, limit_s, self._endpoint).ask(DistServer.get_dataset_meta)

        def ask_again(rank: int, lost: PeerLostError) -> Any:
            peer = self._endpoint.describe("server", rank)
            take_up: Callable[[float], Any] = lambda limit_s: self._result(ask(rank, limit_s))  # noqa: E731
            return self._recovery.recover(peer, lost, take_up, lambda meta: meta, is_counted=False)

        asked = [ask(rank, self._timeout_s) for rank in self._server_ranks]
        found = []
        for rank, future in zip(self._server_ranks, asked, strict=True):
            try:
                _, partition, *_ = self._result(future)
            except PeerLostError as lost:
                _, partition, *_ = ask_again(rank, lost)
            found.append(partition)
        return found

    def _opened(self, rank: int, future: Future[Any]) -> ProducerInfo:
        try:
            info: ProducerInfo = self._result(future)
            return info
        except PeerLostError as lost:  # it held nothing yet: no loss of the loader's
            peer = self._endpoint.describe("server", rank)
            return self._recovery.recover(
                peer, lost, lambda limit_s: self._find(rank, None, limit_s), lambda info: info, is_counted=False
            )

    def _release(self) -> None:
        """Whatever servers have opened for this loader, and whether or not it has heard of that, they close."""
        if not self._withdrawn:
            self._withdrawn = True
            _, _, request = self._wanted
            self._closing_calls.send(
                DistServer.withdraw_producer, {rank: (request.key,) for rank in self._server_ranks}
            )


def _concatenate(
    inputs: Sequence[SamplerInput], server_ranks: Sequence[int], timeout_s: float
) -> NodeSamplerInput | EdgeSamplerInput:
    """One input of a list with one for each server; each server says what its own one names."""
    if len(inputs) != len(server_ranks):
        raise InvalidArgumentError(
            f"input_nodes: expected one input for each of the servers {list(server_ranks)}, got {len(inputs)} inputs"
        )
    alarm = rpc.get_alarm()
    asked = {
        place: _server_at(server_ranks[place], timeout_s).ask(DistServer.find_input, one)
        for place, one in enumerate(inputs)
        if isinstance(one, RemoteSamplerInput)
    }
    return concatenate_inputs(
        [
            result_or_alarm(asked[i], alarm) if isinstance(one, RemoteSamplerInput) else one
            for i, one in enumerate(inputs)
        ]
    )


def _own_parts(
    split: RemoteNodeSplitSamplerInput, server_ranks: Sequence[int], timeout_s: float
) -> NodeSamplerInput | EdgeSamplerInput:
    """The nodes of a split that these servers own, in their order; a partition that several hold counts once."""
    alarm = rpc.get_alarm()
    asked = [_server_at(rank, timeout_s).ask(DistServer.get_dataset_meta) for rank in server_ranks]
    first: dict[int, int] = {}
    for rank, answer in zip(server_ranks, asked, strict=True):
        _, partition, *_ = result_or_alarm(answer, alarm)
        first.setdefault(partition, rank)
    return _concatenate([split] * len(first), list(first.values()), timeout_s)


def _server_at(
    rank: int, timeout_s: float, endpoint: Endpoint | None = None, *, fail_fast: bool = False
) -> Remote[DistServer]:
    """A server, over this process's endpoint unless another is given."""
    return Remote(endpoint or rpc.get_endpoint(), ("server", rank), timeout_s=timeout_s, fail_fast=fail_fast)


def _server_ranks(options: RemoteDistSamplingWorkerOptions, *, use_all: bool) -> list[int]:
    context = client_context()
    wanted = list(range(context.num_servers())) if use_all and options.server_rank is None else options.server_rank
    ranks = assign_server_by_order() if wanted is None else [wanted] if isinstance(wanted, int) else list(wanted)
    for rank in ranks:
        if not 0 <= rank < context.num_servers():
            raise InvalidArgumentError(f"server_rank: expected 0 to {context.num_servers() - 1}, got {rank}")
    if not ranks or len(set(ranks)) != len(ranks):
        raise InvalidArgumentError(f"server_rank: expected distinct ranks, got {ranks}")
    return ranks
