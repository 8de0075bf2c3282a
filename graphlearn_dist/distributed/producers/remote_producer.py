"""The producer of the remote mode: sampling workers on servers."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import replace
from typing import Any

from ...data.schema import GraphSchema
from ...errors import DeadlineExceededError, GraphLearnError, InvalidArgumentError, PeerLostError
from ...messages import EndOfEpoch, SampledBatch
from ...sampler.base import EdgeSamplerInput, NodeSamplerInput, RemoteSamplerInput, SamplerInput, SamplingConfig
from ...sampler.fingerprint import Settings
from ...sampler.inputs import concatenate_inputs
from ...sampler.schedule import BatchIndices
from ...utils.lifetime import Home
from .. import rpc
from ..dist_client import client_context
from ..dist_context import assign_server_by_order
from ..dist_options import ProducerInfo, RemoteDistSamplingWorkerOptions
from ..dist_server import DistServer
from ..session.launcher_messages import result_or_alarm
from .batch_producer import BatchProducer
from .remote_channel import RemoteReceivingChannel

_RETRY_S = 0.5


class RemoteProducer(BatchProducer):
    """One producer on each of some servers; batch ``j`` of this loader comes from the ``j``-th of them in turn.

    Args:
        sampler_input: the loader's input, or where the servers find it; or a list with one for each server, which
            finds its own: the loader's input is all of them, in this order.
        config: how to sample.
        options: which servers, how many workers.

    Raises:
        NotInitializedError: this process is no client.
        InvalidArgumentError: there is no such server, or the config does not fit the data set.
        UnknownIdError: an input node is outside the graph.
        SamplingWorkerError: a worker failed on its way up.
        PeerLostError: a server is gone.
    """

    def __init__(
        self,
        sampler_input: SamplerInput | list[SamplerInput],
        config: SamplingConfig,
        options: RemoteDistSamplingWorkerOptions,
    ) -> None:
        self._home = Home("the loader's producers on servers")
        self._options = options
        self._server_ranks = _server_ranks(options)
        if isinstance(sampler_input, list):
            sampler_input = _concatenate(sampler_input, self._server_ranks, options.rpc_timeout)
        # A connection that breaks may take the answer along. By its key a producer is asked for again, and closed.
        self._wanted = sampler_input, config, replace(options.request, key=1 + secrets.randbits(62))
        self._endpoint = rpc.get_endpoint()
        self._alarm = rpc.get_alarm()
        self._closing_calls = rpc.get_closing_calls()
        self._infos = self._open_producers()
        self._channel = RemoteReceivingChannel(
            self._server_ranks,
            [info.producer_id for info in self._infos],
            options.prefetch_size,
            options.rpc_timeout,
            credit_bytes=options.credit_bytes,
            reopen=self._reopen,
            alarm=self._alarm,
        )
        self._closed = False

    def _open(self, rank: int) -> Future[Any]:
        name = rpc.function_name(DistServer.open_producer)
        limit_s = self._options.rpc_timeout + self._options.start_timeout
        return self._endpoint.request(("server", rank), name, *self._wanted, timeout_s=limit_s)

    def _withdraw(self) -> None:
        """Whatever servers have opened for this loader, and whether or not it has heard of that, they close."""
        name, (_, _, request) = rpc.function_name(DistServer.withdraw_producer), self._wanted
        self._closing_calls.send(name, {rank: (request.key,) for rank in self._server_ranks})

    def _open_producers(self) -> list[ProducerInfo]:
        """One producer on each server, all at once; undone if one of them fails."""
        try:
            futures = [self._open(rank) for rank in self._server_ranks]
            infos = [self._opened(rank, future) for rank, future in zip(self._server_ranks, futures, strict=True)]
            if any(info.input_settings != infos[0].input_settings for info in infos):
                found = {
                    rank: "{num_inputs} ({inputs})".format(**info.input_settings)
                    for rank, info in zip(self._server_ranks, infos, strict=True)
                }
                raise InvalidArgumentError(
                    f"input_nodes: expected servers to find the same seeds, got counts and hashes {found} by server; "
                    "seeds of each server's own are given as a list, one for each server"
                )
        except BaseException:  # a Ctrl-C too
            self._withdraw()
            raise
        return infos

    def _opened(self, rank: int, future: Future[ProducerInfo]) -> ProducerInfo:
        try:
            info: ProducerInfo = result_or_alarm(future, self._alarm)
            return info
        except PeerLostError as lost:
            return self._open_again(rank, None, lost)

    def _reopen(self, place: int, lost: GraphLearnError) -> int:
        """The producer on a server that was lost, if that still has it when it is back, else another one; its id.

        Raises:
            PeerLostError: it did not come back in time, or the launcher has given one up.
            GraphLearnError: the session that the producer belonged to is over: what was lost.
        """
        if not rpc.rpc_is_initialized() or rpc.get_endpoint() is not self._endpoint:
            raise lost
        rank, held = self._server_ranks[place], self._infos[place]
        info = self._open_again(rank, held, lost)
        if info.input_settings != held.input_settings:
            raise InvalidArgumentError(
                f"input_nodes: {self._endpoint.describe('server', rank)} came back with other seeds than it had"
            ) from lost
        self._infos[place] = info
        return info.producer_id

    def _open_again(self, rank: int, held: ProducerInfo | None, lost: GraphLearnError) -> ProducerInfo:
        limit_s = self._options.reconnect_timeout
        give_up = time.monotonic() + limit_s
        holds, held_id = rpc.function_name(DistServer.holds_producer), 0 if held is None else held.producer_id
        while (remaining_s := give_up - time.monotonic()) > 0:
            try:
                asked = self._endpoint.request(("server", rank), holds, held_id, timeout_s=remaining_s)
                if result_or_alarm(asked, self._alarm) and held is not None:  # only the connection had been lost
                    return held
                info: ProducerInfo = result_or_alarm(self._open(rank), self._alarm)
            except (PeerLostError, DeadlineExceededError):
                if self._alarm.done():  # it is no use
                    raise
                wait((self._alarm,), min(_RETRY_S, max(0.0, give_up - time.monotonic())))
            else:
                return info
        if not isinstance(lost, PeerLostError):
            lost = PeerLostError(self._endpoint.describe("server", rank), str(lost))
        raise PeerLostError(lost.peer, f"{lost.why}; it was not back within reconnect_timeout={limit_s:g} s") from lost

    @property
    def schema(self) -> GraphSchema:
        return self._infos[0].schema

    @property
    def constants(self) -> Mapping[Any, Mapping[str, Any]]:
        return self._infos[0].constants

    @property
    def num_batches(self) -> int:
        return self._infos[0].num_batches

    @property
    def input_settings(self) -> Settings:
        return self._infos[0].input_settings

    def start(self, run: int, epoch: int, indices: BatchIndices) -> None:
        self._channel.start(run, epoch, indices)

    def recv(self) -> SampledBatch | EndOfEpoch:
        item: SampledBatch | EndOfEpoch = self._channel.recv()
        return item

    def is_ready(self) -> bool:
        return self._channel.is_ready()

    def close(self) -> None:
        if self._closed or not self._home.is_here:
            return
        self._closed = True
        self._channel.close()
        self._withdraw()


def _concatenate(
    inputs: Sequence[SamplerInput], server_ranks: Sequence[int], timeout_s: float
) -> NodeSamplerInput | EdgeSamplerInput:
    """One input of a list with one for each server; each server says what its own one names."""
    if len(inputs) != len(server_ranks):
        raise InvalidArgumentError(
            f"input_nodes: expected one input for each of the servers {list(server_ranks)}, got {len(inputs)} inputs"
        )
    endpoint, alarm, name = rpc.get_endpoint(), rpc.get_alarm(), rpc.function_name(DistServer.find_input)
    asked = {
        place: endpoint.request(("server", server_ranks[place]), name, one, timeout_s=timeout_s)
        for place, one in enumerate(inputs)
        if isinstance(one, RemoteSamplerInput)
    }
    return concatenate_inputs(
        [
            result_or_alarm(asked[i], alarm) if isinstance(one, RemoteSamplerInput) else one
            for i, one in enumerate(inputs)
        ]
    )


def _server_ranks(options: RemoteDistSamplingWorkerOptions) -> list[int]:
    context = client_context()
    wanted = options.server_rank
    ranks = assign_server_by_order() if wanted is None else [wanted] if isinstance(wanted, int) else list(wanted)
    for rank in ranks:
        if not 0 <= rank < context.num_servers():
            raise InvalidArgumentError(f"server_rank: expected 0 to {context.num_servers() - 1}, got {rank}")
    if not ranks or len(set(ranks)) != len(ranks):
        raise InvalidArgumentError(f"server_rank: expected distinct ranks, got {ranks}")
    return ranks
