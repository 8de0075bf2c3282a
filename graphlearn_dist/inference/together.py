"""Several processes that infer together: who computes which partitions, and where the rows of a layer lie then."""

from __future__ import annotations

import contextlib
import functools
import itertools
import logging
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ..data.schema import NODE_FEATURE, store_name
from ..distributed import DistDataset, get_context, rpc
from ..distributed.sampling.shared_rows import SharedRows, rows_of_partition
from ..errors import InvalidArgumentError, NotInitializedError, PeerLostError, RpcError
from ..partition import PartitionBook, load_partition_layout
from ..rpc import Endpoint
from ..rpc.calls.remote import LONGEST_S, Remote, remote, remote_functions
from ..rpc.peers.identity import Member
from .rows import Rows

_log = logging.getLogger(__name__)
_AT_ONCE = 1 << 16
_numbers = itertools.count()  # of calls of `infer` in this process, which are the same ones in all of them


class _ToldError(PeerLostError):
    """Another process has said that its inference failed; it waits where all meet."""


class Alarm:
    """What one process of a group is told of the others. Thread-safe.

    Args:
        endpoint: of this process.
        number: of the inference.
    """

    def __init__(self, endpoint: Endpoint, number: int) -> None:
        self._endpoint = endpoint
        self._error: PeerLostError | None = None
        self._functions = remote_functions(self, _suffix(number))
        endpoint.register_all(self._functions)
        if endpoint not in _alarms:
            _alarms[endpoint] = weakref.WeakSet()
            endpoint.on_member_lost(functools.partial(_member_lost, _alarms[endpoint]))
        _alarms[endpoint].add(self)

    @remote
    def ring(self, name: str, said: str) -> None:
        """The inference of a process failed."""
        self._error = self._error or _ToldError(name, f"its inference failed: {said}")

    def lost(self, name: str, why: str) -> None:
        """A process is gone."""
        self._error = self._error or PeerLostError(name, why)

    def check(self) -> None:
        """Raises what was told."""
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        """Is told no more. Idempotent."""
        _alarms[self._endpoint].discard(self)
        for name in self._functions:
            self._endpoint.unregister(name)
        self._functions = {}


_alarms: weakref.WeakKeyDictionary[Endpoint, weakref.WeakSet[Alarm]] = weakref.WeakKeyDictionary()


def _member_lost(alarms: weakref.WeakSet[Alarm], member: Member, why: str) -> None:
    context = get_context()
    if context is not None and member.role == context.role_name:
        for alarm in [*alarms]:
            alarm.lost(member.name, why)


def _suffix(number: int) -> str:
    return f".inference{number}"


@dataclass(frozen=True)
class Group:
    """The processes that called ``infer`` together, as one of them sees it.

    Attributes:
        rank: of this process, from 0.
        names: of all, by rank.
        partitions: those whose nodes this process computes.
        owners: the name of the process that computes a partition, by partition.
        number: tells this inference from others of the same processes.
        alarm: is rung where another one fails or is gone.
    """

    rank: int
    names: tuple[str, ...]
    partitions: tuple[int, ...]
    owners: dict[int, str]
    number: int
    alarm: Alarm

    def check(self) -> None:
        """Raises ``PeerLostError`` where another process is gone, or where its inference failed."""
        self.alarm.check()

    @property
    def endpoint(self) -> Endpoint:
        """Of this process."""
        return rpc.get_endpoint()

    def meet(self, value: Any = None) -> dict[str, Any]:
        """Returns when all have come here: what each of them gave, by name.

        Raises:
            PeerLostError: one is gone, or its inference failed.
        """
        return _gather(value, LONGEST_S)

    @contextlib.contextmanager
    def telling(self) -> Iterator[None]:
        """Tells the others of an error: they would wait for what will never come.

        All meet once more, those who are told before their next block too, so that who meets next meets for the same.
        """
        try:
            yield
        except _ToldError:
            self.meet()  # raises what the other one says there
            raise
        except Exception as error:
            if isinstance(error, PeerLostError) and self._is_member(error.peer):
                raise  # they notice themselves
            said = f"{type(error).__name__}: {error}"
            _log.error("inference failed here; the others are told: %s", said)
            own = self.names[self.rank]
            for name in {*self.names} - {own}:
                others = Remote[Alarm](self.endpoint, name, suffix=_suffix(self.number), fail_fast=True)
                others.ask(Alarm.ring, own, said)
            with contextlib.suppress(RpcError):
                rpc.all_gather({"error": said}, LONGEST_S)
            raise
        finally:
            self.alarm.close()

    def _is_member(self, peer: str) -> bool:
        """Whether a peer, as errors name it, is one of the group: servers, of which rows are asked, are none."""
        return any(peer == name or peer.startswith(f"{name} (") for name in self.names)

    def check_same(self, name: str, value: Any) -> None:
        """InvalidArgumentError in all processes unless they gave the same."""
        found = self.meet(value)
        for other, theirs in found.items():
            if theirs != found[self.names[0]]:
                raise InvalidArgumentError(f"{name}: {other} has others than {self.names[0]}")

    def share(self, name: str, own: Sequence[DistDataset]) -> SharedRows:
        """Serves rows of this process's partitions; who meets the others then may ask them for theirs."""
        endpoint = self.endpoint
        full_name = f"inference{self.number}.{name}"
        return SharedRows(endpoint, full_name, own, self.owners, endpoint.settings.request_timeout_s)


def _gather(value: Any, timeout_s: float) -> dict[str, Any]:
    found = rpc.all_gather({"value": value}, timeout_s)
    for name, each in found.items():
        if "error" in each:
            raise PeerLostError(name, f"its inference failed: {each['error']}")
    return {name: each["value"] for name, each in found.items()}


def join_group(data: Any) -> tuple[DistDataset, Group]:
    """What this process reads, and the group: all workers, or all clients, of its job.

    Raises:
        NotInitializedError: the process is in no job.
        InvalidArgumentError: the processes do not compute each partition once.
    """
    context = get_context()
    if context is None or not rpc.rpc_is_initialized():
        raise NotInitializedError("together: expected a worker of a group or a client of servers: call init_rpc first")
    dataset, partitions = _own_part(data, context.rank, context.world_size)
    number = next(_numbers)
    alarm = Alarm(rpc.get_endpoint(), number)  # before others may ring it
    try:
        theirs = _gather((list(partitions), dataset.num_partitions), rpc.get_endpoint().settings.request_timeout_s)
        _check_each_once(theirs, dataset.num_partitions)
    except BaseException:
        alarm.close()
        raise
    owners = {partition: name for name, (computed, _) in theirs.items() for partition in computed}
    return dataset, Group(context.rank, tuple(theirs), partitions, owners, number, alarm)


def _check_each_once(theirs: Mapping[str, tuple[list[int], int]], num_partitions: int) -> None:
    """InvalidArgumentError unless processes, by name, compute each partition once, and each of them one or more."""
    computed = sorted(partition for each, _ in theirs.values() for partition in each)
    if computed != list(range(num_partitions)) or not all(each for each, _ in theirs.values()):
        raise InvalidArgumentError(
            f"together: expected each of {num_partitions} partitions in one process, and one or more in each, "
            f"got { ({name: each for name, (each, _) in theirs.items()}) }"
        )


def _own_part(data: Any, rank: int, count: int) -> tuple[DistDataset, tuple[int, ...]]:
    """A process's data set, and the partitions that it computes."""
    if isinstance(data, (str, Path)):
        num_parts = load_partition_layout(data, verify=False).num_parts
        if num_parts != count:
            raise InvalidArgumentError(f"together: expected as many processes as partitions, {num_parts}, got {count}")
        loaded = DistDataset()
        loaded.load(data, rank)
        return loaded, (rank,)
    if not isinstance(data, DistDataset):
        raise InvalidArgumentError(
            "data: expected a partition directory, one of its partitions or a ServedDataset with together=True, got "
            f"{type(data).__name__}"
        )
    if data.holds_rows:
        return data, (data.partition_idx,)
    return data, tuple(range(rank, data.num_partitions, count))


class LayerTogether:
    """A ``LayerResult`` that lies in the processes of a group: each has the rows of its partitions.

    Args:
        group: the processes.
        name: of the layer.
        books: who owns which node, by node type.
        widths: of the rows, by node type (its number), in all processes.
        own: by partition of this process and node type, what it has made, ``[nodes of the partition, width]``.
        dtype: of the rows.
    """

    def __init__(
        self,
        group: Group,
        name: str,
        books: Mapping[str | None, PartitionBook],
        widths: Mapping[int, int],
        own: Mapping[int, Mapping[int, torch.Tensor]],
        dtype: torch.dtype,
    ) -> None:
        types = list(books)
        parts = []
        for partition, made in own.items():
            nothing = {i: torch.empty(0, width, dtype=dtype) for i, width in widths.items()}
            rows = {types[i]: each for i, each in {**nothing, **made}.items()}
            parts.append(rows_of_partition(partition, books, rows))
        self._shared = group.share(name, parts)
        self._widths, self._dtype = widths, dtype
        self._counts = [book.num_ids for book in books.values()]

    def gather(self, wanted: Mapping[int, torch.Tensor]) -> dict[int, torch.Tensor]:
        """See ``LayerResult``; one request for each partition of another process that owns some of the ids."""
        return {i: rows.float() for i, rows in self.gather_stored(wanted).items()}

    def gather_stored(self, wanted: Mapping[int, torch.Tensor]) -> dict[int, torch.Tensor]:
        """The same as they are stored."""
        stores = {i: store_name(NODE_FEATURE, i) for i in wanted if i in self._widths}
        found = self._shared.look_up({store: wanted[i] for i, store in stores.items()})
        return {i: found[store] for i, store in stores.items()}

    def whole(self, node_type: int) -> None:
        """See ``LayerResult``: nowhere."""

    def rows(self) -> dict[int, Rows]:
        """See ``LayerResult``."""
        return {i: _RowsAsked(self, i, self._counts[i], width, self._dtype) for i, width in self._widths.items()}

    def close(self) -> None:
        """See ``LayerResult``."""
        self._shared.close()


@dataclass(frozen=True)
class _RowsAsked:
    """``Rows`` of a group, asked for some at once."""

    layer: LayerTogether
    node_type: int
    num_rows: int
    width: int
    dtype: torch.dtype

    def read(self, first: int, last: int) -> torch.Tensor:
        """See ``Rows``."""
        found = torch.empty(last - first, self.width, dtype=self.dtype)
        for begin in range(first, last, _AT_ONCE):
            ids = torch.arange(begin, min(begin + _AT_ONCE, last))
            found[begin - first : begin - first + len(ids)] = self.layer.gather_stored({self.node_type: ids})[
                self.node_type
            ]
        return found
