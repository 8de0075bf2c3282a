"""Groups of workers: the same class in many processes, called together."""

from __future__ import annotations

import asyncio
import concurrent.futures
import secrets
import time
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from ...errors import (
    CallArgumentError,
    GraphLearnError,
    InvalidArgumentError,
    UnknownIdError,
    WorkerFailureError,
    WorkerLateError,
)
from ...utils.system.lifetime import Home
from ..actors.base import START_TIMEOUT_S, GroupWorkerHandle, Ref, ResourceUsage
from ..data.named_sharding import NamedSharding
from ..machines.virtual_cluster import RayVirtualCluster
from .balance import Balancer, Load
from .call_plan import (
    ShardedAxes,
    WorkerCall,
    bind_arguments,
    eligible_workers,
    plan_different,
    plan_same,
    plan_sharded,
)
from .group_calls import Calls, collect
from .group_settings import GroupSettings
from .group_start import plan_processes, source_name, worker_source
from .health import StuckWorker, WorkerState, WorkerStatus
from .supervisor import Supervisor, Watch
from .worker_builder import RayWorkerBuilder, get_nsight_config_if_pattern_matches, recursive_merge_options
from .worker_layout import TiedGroups, WorkerMetadata, plan_groups, plan_workers
from .worker_slot import WorkerSlot


@dataclass
class MultiWorkerFuture:
    """References to the results of several workers. Can be awaited, for what ``get_results`` gives.

    Attributes:
        futures: one for each worker called, in the order of the calls; streams for generators.
        return_from_workers: ranks whose results are wanted, in this order; None means all.
        called_workers: rank of each future; None where future i is that of rank i.
        group: the group that was called; needed only where the future is awaited.
    """

    futures: list[Ref]
    return_from_workers: list[int] | None = None
    called_workers: list[int] | None = None
    group: RayWorkerGroup | None = field(default=None, repr=False, compare=False)

    def get_results(
        self,
        worker_group: RayWorkerGroup,
        return_generators_as_proxies: bool = False,
        timeout_s: float | None = None,
    ) -> list[Any]:
        """The results, or whatever the first worker that failed raised.

        Where methods are generators, the items of all wanted workers, one worker after the other.

        Args:
            worker_group: the group that was called.
            return_generators_as_proxies: hand out the futures themselves, wanted ones only, and fetch nothing.
            timeout_s: for all of them; None waits as long as the workers live.

        Raises:
            IndexError: without ``called_workers``, a wanted rank has no future.
            DeadlineExceededError: they were not there in time.
        """
        if return_generators_as_proxies:
            return self._wanted(strict=False) if self.return_from_workers is not None else self.futures
        engine = worker_group.cluster.backend
        refs: list[Ref] = []
        for future in self._wanted(strict=True):
            refs.extend(future if engine.is_stream(future) else [future])
        return engine.get(refs, timeout_s)

    def _wanted(self, *, strict: bool) -> list[Ref]:
        """Futures of the wanted workers; ``strict`` refuses ranks without one where futures go by rank."""
        if self.return_from_workers is None:
            return self.futures
        if self.called_workers is None:
            in_range = [rank for rank in self.return_from_workers if strict or rank < len(self.futures)]
            return [self.futures[rank] for rank in in_range]
        position = {rank: place for place, rank in enumerate(self.called_workers) if place < len(self.futures)}
        return [self.futures[position[rank]] for rank in self.return_from_workers if rank in position]

    def __await__(self) -> Generator[Any, None, Any]:
        if self.group is None:
            raise TypeError("a MultiWorkerFuture can be awaited where a group made it; else use get_results")
        waiting = asyncio.get_running_loop().run_in_executor(None, self.get_results, self.group)
        return (yield from waiting.__await__())


_PING_TIMEOUT_S = 5.0
_KILL_TIMEOUT_S = 10.0  # who is late is killed, which is what then settles it


class RayWorkerGroup:
    """Workers of one class, one in each bundle, or several tied into a data-parallel shard.

    Made from a ``RayWorkerBuilder``, calls give references at once, data goes by name only, and what a worker raises
    comes out of ``get_results``. Made from a class or its dotted name, calls wait for results, data may go by position,
    and failures are one ``WorkerFailureError``; ``async_communication`` decides otherwise for either.

    Args:
        cluster: where it runs; ``virtual_cluster`` is another name for it.
        remote_worker_builder: a builder, a class, or a class's dotted name; ``worker_class`` is another name for it.
        workers_per_node: workers on each placement group, or by placement group; None means one for each bundle.
        name_prefix: of the workers' names; two groups that live at the same time need different ones. Empty for a
            unique one that begins with the class's name.
        bundle_indices_list: tied groups, ``(placement group, bundles)`` each; overrides ``workers_per_node``.
        sharding_annotations: the workers on a grid with named axes.
        env_vars: variables of the workers, over the driver's own; not changed.
        virtual_cluster: see ``cluster``.
        worker_class: see ``remote_worker_builder``.
        worker_args: for the constructor of a class.
        worker_kwargs: for the constructor of a class.
        restart_on_failure: start another process, with the same rank, name and environment, where one dies.
        max_restarts: of each worker, within any hour.
        stuck_timeout_s: kill a worker that answered nothing for so long; None never.
        memory_limit: bound of each worker's private memory, such as ``"8GB"``; allocations beyond it fail.
        enable_load_balancing: ``run_single_worker_single_data`` without a worker chooses one.
        load_balancing_strategy: one of ``balance.STRATEGIES``, see ``balance.Balancer``.
        local_workers: for ``locality``: from a call's data, by name, to the ranks that hold what it needs, such as
            ``balance.SeedOwners``.
        async_communication: calls give references (True) or results (False).
        enable_gradient_compression: ``collectives.wrap_ddp`` compresses gradients in the workers.
        gradient_compression: how, see ``compression``.
        start_timeout_s: for all workers to be constructed, and for each one that is restarted; who takes longer is
            killed (a ``WorkerLateError``).
        call_timeout_s: for calls that wait; None waits as long as the workers live.

    Raises:
        InvalidArgumentError: an argument is wrong.
        ResourceInsufficientError: the cluster has too little, or as many groups as may share it.
        WorkerNameTakenError: a group of that prefix lives.
        WorkerFailureError: a worker could not be constructed; none is left.
    """

    def __init__(
        self,
        cluster: RayVirtualCluster | None = None,
        remote_worker_builder: RayWorkerBuilder | type[Any] | str | None = None,
        workers_per_node: int | Sequence[int] | None = None,
        name_prefix: str = "",
        bundle_indices_list: TiedGroups | None = None,
        sharding_annotations: NamedSharding | None = None,
        env_vars: Mapping[str, str] | None = None,
        *,
        virtual_cluster: RayVirtualCluster | None = None,
        worker_class: type[Any] | str | None = None,
        worker_args: Sequence[Any] = (),
        worker_kwargs: Mapping[str, Any] | None = None,
        restart_on_failure: bool = False,
        max_restarts: int = 3,
        stuck_timeout_s: float | None = None,
        memory_limit: int | str | None = None,
        enable_load_balancing: bool = False,
        load_balancing_strategy: str = "round_robin",
        local_workers: Callable[[Mapping[str, Any]], Collection[int]] | None = None,
        async_communication: bool | None = None,
        enable_gradient_compression: bool = False,
        gradient_compression: str = "fp16",
        start_timeout_s: float = START_TIMEOUT_S,
        call_timeout_s: float | None = None,
    ) -> None:
        self.settings = GroupSettings(
            restart_on_failure,
            max_restarts,
            stuck_timeout_s,
            memory_limit,
            enable_load_balancing,
            load_balancing_strategy,
            local_workers,
            async_communication,
            enable_gradient_compression,
            gradient_compression,
            start_timeout_s,
            call_timeout_s,
        )
        self.cluster: RayVirtualCluster = _one_of("cluster", cluster, "virtual_cluster", virtual_cluster)
        worker = _one_of("remote_worker_builder", remote_worker_builder, "worker_class", worker_class)
        source = worker_source(worker, worker_args, worker_kwargs or {})
        self._home = Home("the group of workers")
        # Unique: others may run the same class on the same Ray.
        self.name_prefix = name_prefix or f"{source_name(source)}-{secrets.token_hex(4)}"
        bundles = self.cluster.bundles_in_order()
        tied = plan_groups(bundles, workers_per_node) if bundle_indices_list is None else bundle_indices_list
        self._metadata = plan_workers([len(own) for own in bundles], tied, self.name_prefix)
        self.world_size = len(self._metadata)
        self.dp_leader_worker_indices = [w["global_rank"] for w in self._metadata if w["local_rank"] == 0]
        self.sharding_annotations = sharding_annotations
        self._layout = sharding_annotations or NamedSharding(list(range(self.world_size)), ["worker"])
        if sorted(self._layout.layout.flatten().tolist()) != list(range(self.world_size)):
            raise InvalidArgumentError(
                f"sharding_annotations: expected each of {self.world_size} workers, got {self._layout.layout.tolist()}"
            )
        is_async = isinstance(worker, RayWorkerBuilder) if async_communication is None else async_communication
        self._takes_positional = not isinstance(worker, RayWorkerBuilder)
        self._is_async = is_async
        self._balancer = Balancer(load_balancing_strategy)
        self._local_workers = self.settings.local_workers
        self._slots: list[WorkerSlot] = []
        self._supervisor: Supervisor | None = None
        self.cluster.attach(self)
        specs, (self.master_address, self.master_port) = plan_processes(
            self.cluster, source, self._metadata, env_vars or {}, self.settings
        )
        self._start(specs)

    def _start(self, specs: Sequence[Any]) -> None:
        settings = self.settings
        watch = Watch(
            settings.restart_on_failure,
            settings.stuck_timeout_s,
            self.cluster.monitor_memory,
            settings.memory_limit_bytes,
        )
        self._supervisor = Supervisor(watch)
        backend, max_restarts = self.cluster.backend, self.settings.max_restarts
        try:
            for spec, metadata in zip(specs, self._metadata, strict=True):
                self._slots.append(WorkerSlot(spec, metadata, backend, max_restarts, self._supervisor.on_death))
            self._wait_started()
        except BaseException:
            self.shutdown(force=True)
            raise
        self._supervisor.start(self._slots)

    def _wait_started(self) -> None:
        """Waits until all are constructed, or one is not."""
        ready = [slot.actor.ready for slot in self._slots]
        done, _ = concurrent.futures.wait(ready, return_when=concurrent.futures.FIRST_EXCEPTION)
        if any(isinstance(future.exception(), WorkerLateError) for future in done):
            concurrent.futures.wait(ready)  # all have the same deadline: who else is late is named too
        errors: dict[int, BaseException] = {}
        for slot, future in zip(self._slots, ready, strict=True):
            if future.done() and (error := future.exception()) is not None:
                errors[slot.rank] = error
        if errors:
            where = {rank: self._slots[rank].where for rank in errors}
            raise WorkerFailureError("__init__", errors, {}, False, where)

    # --- what it consists of ------------------------------------------------------------------------------------

    @property
    def workers(self) -> list[GroupWorkerHandle]:
        """The workers by rank; empty after ``shutdown``. Handles stay good over restarts."""
        return [slot.handle for slot in self._slots]

    @property
    def worker_metadata(self) -> list[WorkerMetadata]:
        """Place, name and rank of each worker; empty after ``shutdown``."""
        return list(self._metadata)

    @property
    def dp_size(self) -> int:
        """Number of data-parallel shards."""
        return len(self.dp_leader_worker_indices)

    def get_dp_leader_worker_idx(self, dp_shard_idx: int) -> int:
        """Rank of the first worker of a shard.

        Raises:
            UnknownIdError: there is no such shard (an ``IndexError``).
        """
        if not 0 <= dp_shard_idx < self.dp_size:
            raise UnknownIdError(f"dp_shard_idx: expected 0 to {self.dp_size - 1}, got {dp_shard_idx}")
        return self.dp_leader_worker_indices[dp_shard_idx]

    # --- calls --------------------------------------------------------------------------------------------------

    def run_single_worker_single_data(
        self, method_name: str, worker_idx: int | None = None, *args: Any, **kwargs: Any
    ) -> Any:
        """Calls one worker.

        Args:
            method_name: of the workers' class.
            worker_idx: its rank; with ``enable_load_balancing`` None chooses one that is ready.
            *args: data by position, where the group takes it.
            **kwargs: data by name.

        Returns:
            A reference or a stream, or the result.

        Raises:
            CallArgumentError: data by position that the group does not take (an ``AssertionError``).
            AttributeError: there is no such method.
            WorkerFailureError: where the call waits, and failed.
        """
        named = self._bind(method_name, args, kwargs)
        if worker_idx is None:
            if not self.settings.enable_load_balancing:
                raise InvalidArgumentError("worker_idx: expected a rank without enable_load_balancing, got None")
            local = self._local_workers(named) if self._local_workers is not None else ()
            worker_idx = self._balancer.pick(self._ready_loads(), local)
        if not 0 <= worker_idx < len(self._slots):
            raise UnknownIdError(f"worker_idx: expected 0 to {len(self._slots) - 1}, got {worker_idx}")
        [answer] = self._answers(self._call(method_name, [WorkerCall(worker_idx, named)]))
        return answer

    def run_all_workers_single_data(
        self, method_name: str, *args: Any, run_rank_0_only_axes: Sequence[str] | None = None, **kwargs: Any
    ) -> list[Any]:
        """Calls all workers with the same data, or those at 0 on some axes; see ``run_single_worker_single_data``."""
        named = self._bind(method_name, args, kwargs)
        workers = eligible_workers(self._layout, len(self._slots), run_rank_0_only_axes)
        return self._answers(self._call(method_name, plan_same(workers, named)))

    def run_all_workers_multiple_data(
        self,
        method_name: str,
        *args: Any,
        run_rank_0_only_axes: Sequence[str] | None = None,
        common_kwargs: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> list[Any]:
        """Calls workers with an item of each list: item k for the k-th of them.

        Raises:
            CallArgumentError: no list, or one with another number of items than there are workers to be called.
        """
        named = self._bind(method_name, args, kwargs)
        workers = eligible_workers(self._layout, len(self._slots), run_rank_0_only_axes)
        return self._answers(self._call(method_name, plan_different(workers, common_kwargs or {}, named)))

    def run_all_workers_sharded_data(
        self,
        method_name: str,
        *args: Any,
        in_sharded_axes: Sequence[str] | None = None,
        replicate_on_axes: Sequence[str] | None = None,
        output_is_replicated: Sequence[str] | None = None,
        make_dummy_calls_to_free_axes: bool = False,
        common_kwargs: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> Any:
        """Calls workers with the part of the data that belongs to their place on the grid.

        Args:
            method_name: of the workers' class.
            *args: data by position, where the group takes it.
            in_sharded_axes: data is indexed by the coordinates on these, in this order.
            replicate_on_axes: every coordinate gets the same data. On all other axes only coordinate 0 is called.
            output_is_replicated: only coordinate 0 of these returns a result.
            make_dummy_calls_to_free_axes: call the others too, with None for their data.
            common_kwargs: data that is not cut.
            **kwargs: data that is.

        Returns:
            A ``MultiWorkerFuture``, or the results.

        Raises:
            InvalidArgumentError: the group has no ``sharding_annotations``.
            CallArgumentError: an axis is wrong, or data has not one item for each coordinate on a sharded one.
        """
        if self.sharding_annotations is None:
            raise InvalidArgumentError("sharding_annotations: expected a NamedSharding for sharded data, got None")
        axes = ShardedAxes(
            tuple(in_sharded_axes or ()),
            tuple(replicate_on_axes or ()),
            tuple(output_is_replicated or ()),
            make_dummy_calls_to_free_axes,
        )
        named = self._bind(method_name, args, kwargs)
        plan = plan_sharded(self.sharding_annotations, len(self._slots), axes, common_kwargs or {}, named)
        calls = self._call(method_name, plan.calls)
        if self._is_async:
            return MultiWorkerFuture(calls.refs, plan.return_from, [call.worker for call in plan.calls], self)
        results = dict(zip((call.worker for call in plan.calls), self._answers(calls), strict=True))
        return [results[rank] for rank in plan.return_from]

    def get_all_worker_results(
        self, future_bundle: MultiWorkerFuture, return_generators_as_proxies: bool = False
    ) -> list[Any]:
        """See ``MultiWorkerFuture.get_results``."""
        return future_bundle.get_results(self, return_generators_as_proxies, self.settings.call_timeout_s)

    def _bind(self, method: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        if not self._slots:
            raise InvalidArgumentError("workers: expected a group that is not shut down")
        profile = self._slots[0].profile(method)
        if args and not self._takes_positional:
            raise CallArgumentError(f"{method}: expected data by name only, got {len(args)} by position")
        return bind_arguments(method, profile.parameters, args, kwargs)

    def _call(self, method: str, calls: Sequence[WorkerCall]) -> Calls:
        self._home.check_own()
        return Calls.start(method, self._slots, calls)

    def _answers(self, calls: Calls) -> list[Ref]:
        """References, or the results where the group waits."""
        if self._is_async:
            return calls.refs
        return collect(calls, self.cluster.backend, self.settings)

    def _ready_loads(self) -> dict[int, Load]:
        return {slot.rank: slot.load for slot in self._slots if slot.state is WorkerState.READY}

    # --- health -------------------------------------------------------------------------------------------------

    def get_worker_status(self, timeout_s: float = _PING_TIMEOUT_S) -> list[WorkerStatus]:
        """The state of every worker, after asking those that live; one that does not answer in time is a suspect."""
        self._ping_all(timeout_s)
        return [slot.status() for slot in self._slots]

    def get_resource_usage(self, timeout_s: float = 10.0) -> dict[int, ResourceUsage]:
        """What each worker's process uses, by rank; workers that do not answer in time are missing."""
        alive = [slot for slot in self._slots if slot.state in (WorkerState.READY, WorkerState.SUSPECT)]
        answers = {slot.rank: slot.actor.control("usage").future() for slot in alive}
        concurrent.futures.wait(answers.values(), timeout_s)
        return {
            rank: answer.result() for rank, answer in answers.items() if answer.done() and answer.exception() is None
        }

    def detect_stuck_workers(
        self, heartbeat_timeout: float = 10.0, call_timeout: float | None = None
    ) -> dict[int, StuckWorker]:
        """Workers that make no progress, by rank; dead ones are not among them.

        Args:
            heartbeat_timeout: how long a worker's process may take to answer, in seconds. Processes answer while a
                method runs, so that one that does not is stopped, starved, or caught in native code.
            call_timeout: how long a method may run without calling ``heartbeat()``; None for ever.
        """
        answered = self._ping_all(heartbeat_timeout)
        stuck: dict[int, StuckWorker] = {}
        for slot in self._slots:
            call = slot.running_call
            if slot.state is WorkerState.SUSPECT:
                method = call.method if call else ""
                stuck[slot.rank] = StuckWorker("no heartbeat", method, slot.status().heartbeat_age_s, "")
            elif slot.rank in answered and call and call_timeout is not None and call.silent_s > call_timeout:
                [stack] = self.cluster.backend.get([slot.actor.control("stacks")], heartbeat_timeout)
                stuck[slot.rank] = StuckWorker("long call", call.method, call.silent_s, stack)
        return stuck

    def _ping_all(self, timeout_s: float) -> set[int]:
        """Asks all workers what they do; the ranks that answered in time."""
        for slot in self._slots:
            slot.ping()
        deadline = time.monotonic() + timeout_s
        return {slot.rank for slot in self._slots if slot.wait_answer(max(0.0, deadline - time.monotonic()))}

    def restart_failed_workers(self) -> list[int]:
        """Starts another process for each worker that is dead, and waits for them; returns their ranks.

        Raises:
            WorkerFailureError: one has used up its restarts of the last hour, or did not start.
        """
        self._ping_all(_PING_TIMEOUT_S)  # a caller may have heard of a death before us
        restarted = [slot for slot in self._slots if slot.restart()]
        for slot in restarted:
            slot.wait_settled(self.settings.start_timeout_s + _KILL_TIMEOUT_S)
        statuses = [slot.status() for slot in self._slots]
        lost = [status for status in statuses if status.state in (WorkerState.DEAD, WorkerState.RETIRED)]
        if lost:
            errors: dict[int, BaseException] = {
                status.rank: GraphLearnError(
                    f"{status.state.value} after {status.restarts} restarts: {status.last_error}"
                )
                for status in lost
            }
            where = {status.rank: self._slots[status.rank].where for status in lost}
            raise WorkerFailureError("restart_failed_workers", errors, {}, False, where)
        return [slot.rank for slot in restarted]

    # --- end ----------------------------------------------------------------------------------------------------

    def shutdown(self, cleanup_method: str | None = None, timeout: float | None = 30.0, force: bool = False) -> bool:
        """Ends all workers; their names are free afterwards. Idempotent, and raises nothing that a worker raised.

        Without effect in a fork of the process that made the group.

        Args:
            cleanup_method: called on all workers first, unless ``force``.
            timeout: for that, in seconds; None waits as long as they live.
            force: end them at once.

        Returns:
            Whether the cleanup, if one was asked for, succeeded on all.
        """
        if not self._home.is_own:
            return True
        slots, self._slots, self._metadata = self._slots, [], []
        if self._supervisor is not None:
            self._supervisor.stop()
            self._supervisor = None
        success = True
        if cleanup_method is not None and not force:
            success = _clean_up(slots, cleanup_method, timeout)
        for slot in slots:
            slot.close()
        return success

    def __enter__(self) -> RayWorkerGroup:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.shutdown()


def _clean_up(slots: Sequence[WorkerSlot], method: str, timeout_s: float | None) -> bool:
    alive = [slot for slot in slots if slot.state in (WorkerState.READY, WorkerState.SUSPECT)]
    try:
        futures = [slot.call(method, {}).future() for slot in alive]
    except AttributeError:  # they have no such method
        return False
    done, _ = concurrent.futures.wait(futures, timeout_s)
    return len(done) == len(slots) and all(future.exception() is None for future in done)


def _one_of(name: str, value: Any, other_name: str, other: Any) -> Any:
    if (value is None) == (other is None):
        raise InvalidArgumentError(f"{name}: expected it or {other_name}, one of the two")
    return other if value is None else value


__all__ = [
    "MultiWorkerFuture",
    "RayWorkerBuilder",
    "RayWorkerGroup",
    "WorkerFailureError",
    "get_nsight_config_if_pattern_matches",
    "recursive_merge_options",
]
