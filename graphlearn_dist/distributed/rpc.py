"""The process's one endpoint, under the names of GraphLearn-for-PyTorch.

Everything concerns the own role group unless it says ``global``. Callees are addressed by an id that all members of a
group agree on, functions by the name they are registered under: only what was registered can be called.
"""

from __future__ import annotations

import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any

import torch

from .._C import Answerer
from ..config import RpcSettings, TlsSettings, job_token, metrics_address, port_range, trace_setting
from ..errors import InvalidArgumentError, NotInitializedError
from ..rpc import Endpoint
from ..rpc.calls.remote import is_remote, remote_functions, remote_name
from ..rpc.peers.identity import boot_id
from ..rpc.peers.links import default_listen_host
from ..telemetry.exporter import start_for_job
from ..telemetry.trace import start_tracing
from ..utils.system.ports import to_port
from .dist_context import DistContext, DistRole, get_context
from .event_loop import to_torch_future as to_torch_future
from .session.closing_calls import ClosingCalls
from .session.job_status import StatusService, set_trace_clock
from .session.launcher_messages import LauncherMessages
from .session.partition_router import RpcDataPartitionRouter as RpcDataPartitionRouter
from .session.worker_group import WorkerGroup


@dataclass
class _State:
    """What ``init_rpc`` sets up and ``shutdown_rpc`` takes down."""

    endpoint: Endpoint
    context: DistContext
    group: WorkerGroup | None
    master_addr: str
    launcher_messages: LauncherMessages
    closing_calls: ClosingCalls
    is_dynamic: bool
    num_callees: int = 0


_lock = threading.RLock()
_state: _State | None = None  # also that of the process which this one is a fork of
_inherited: list[_State] = []  # such, kept: nothing of them is to be freed here
_function_names: dict[Any, str] = {}  # functions that may be passed as `func`, and the names they are called by
_functions: dict[str, Callable[..., Any]] = {}  # functions to register with every endpoint of this process


# --- life ------------------------------------------------------------------------------------------------------


def init_rpc(
    master_addr: str,
    master_port: int,
    num_rpc_threads: int = 16,
    rpc_timeout: float = 180,
    is_dynamic: bool = False,
    *,
    token: bytes | None = None,
    listen_host: str | None = None,
    master_fd: int = -1,
    host_registry: bool | None = None,
    settings: RpcSettings = RpcSettings(),  # noqa: B008 it is frozen
    functions: Mapping[str, Callable[..., Any]] | None = None,
    answerers: Mapping[str, Answerer] | None = None,
    on_open: Callable[[Endpoint], None] | None = None,
    messages_fd: int = -1,
    tls: TlsSettings | None = None,
) -> None:
    """Open this process's endpoint and join the job. Calling it again is without effect.

    Server 0, or worker 0 in a group without servers, hosts the registry at ``master_addr:master_port``; all others
    wait for it. Nobody waits for anybody else.

    Args:
        master_addr: host of the registry.
        master_port: its port; 0 lets the hosting process choose one (see ``get_rpc_master_port``).
        num_rpc_threads: threads that answer requests.
        rpc_timeout: default deadline of a request, in seconds.
        is_dynamic: the number of clients is open.
        token: the job's shared secret, needed where ``master_addr`` is not this host; the one in the environment
            (``GLD_TOKEN``, ``GLD_TOKEN_FILE``) if None.
        listen_host: where to listen; this host alone by default, or all addresses when there is a token and the
            registry is elsewhere.
        master_fd: a bound socket for the registry, inherited from a launcher, or -1.
        host_registry: whether this process hosts the registry; as above if None.
        settings: overrides of times and sizes; the two above take precedence.
        functions: what others may call by name; a request may come as soon as the endpoint is open.
        answerers: what answers their queries without the interpreter, by service, likewise.
        on_open: called with the endpoint before it joins: as soon as it has joined, requests may come.
        messages_fd: a pipe on which the launcher says what it has given up, or -1.
        tls: certificates for connections between hosts; those of ``GLD_TLS_…`` if None.

    Raises:
        NotInitializedError: the process has no context yet.
        DeadlineExceededError: there is no registry.
        RegistryError: the rank is taken, or the world sizes differ.
    """
    global _state
    context = get_context()
    if context is None:
        raise NotInitializedError("init_rpc: call init_worker_group, init_server or init_client first")
    with _lock:
        if rpc_is_initialized():
            return
        tls = tls or settings.tls or TlsSettings.from_environ()
        settings = replace(settings, num_threads=num_rpc_threads, request_timeout_s=float(rpc_timeout), tls=tls)
        endpoint = _make_endpoint(context, settings, job_token() if token is None else token, master_addr, listen_host)
        endpoint.register_all(functions or {})
        endpoint.register_all(remote_functions(StatusService()))
        for service, answerer in (answerers or {}).items():
            endpoint.answer_queries(service, answerer)
        try:
            endpoint.open()
            group = WorkerGroup(endpoint, context) if context.is_worker() else None
            if on_open is not None:
                on_open(endpoint)
            endpoint.join(
                master_addr,
                to_port("master_port", master_port),
                host_registry=_hosts_registry(context) if host_registry is None else host_registry,
                master_fd=master_fd,
                world_size=None if _is_open(context, is_dynamic) else context.world_size,
            )
        except BaseException:
            endpoint.close()
            raise
        try:
            name = f"{context.role_name} {context.rank}"
            start_for_job(metrics_address(), name, endpoint.find_fault)
            start_tracing(trace_setting(), name, boot_id())
            set_trace_clock(endpoint, master_addr, endpoint.master_port)
        except BaseException:
            endpoint.close()
            raise
        launcher_messages = LauncherMessages(messages_fd, endpoint)
        if _state is not None:
            _inherited.append(_state)
        _state = _State(endpoint, context, group, master_addr, launcher_messages, ClosingCalls(endpoint), is_dynamic)


def _make_endpoint(
    context: DistContext, settings: RpcSettings, token: bytes | None, master_addr: str, listen_host: str | None
) -> Endpoint:
    """This process's endpoint, with all registered functions; not open yet."""
    ports = port_range()
    silent = context.is_client() and settings.tls is not None and settings.tls.certificate is None
    endpoint = Endpoint(
        context.role_name,
        context.rank,
        name=context.worker_name,
        settings=settings,
        token=token,
        listen_host=listen_host or default_listen_host(master_addr, silent=silent),
        listen_port=range(ports[0], ports[1] + 1) if ports is not None else 0,
    )
    endpoint.register_all(_functions)
    return endpoint


def _is_open(context: DistContext, is_dynamic: bool) -> bool:
    """Whether nobody says how many processes have this one's role."""
    return is_dynamic and context.is_client() and not context.is_visiting


def _hosts_registry(context: DistContext) -> bool:
    return context.rank == 0 and not context.is_client()


def _role_name(role: DistRole) -> str:
    return role.name.lower()


def shutdown_rpc(graceful: bool = True, *, timeout: float | None = None) -> None:
    """Leave the job and close the endpoint. Without effect where there is none, and in a fork of its process.

    A worker serves its partition until then: its neighbors may still be sampling when it is through with its own
    epochs. So a worker that leaves gracefully first waits until all others want to leave too; one that is lost is not
    waited for. While an exception is on its way nobody is waited for either: the others may be waiting for what this
    worker will never do. Servers and clients do not wait.

    Args:
        graceful: wait so, and leave the registry, so that nobody counts this process as lost.
        timeout: seconds that a worker waits at most; None waits as long as the others live.
    """
    global _state
    if not rpc_is_initialized():
        return
    failing = sys.exc_info()[0] is not None
    state = _state
    if graceful and not failing and state is not None and state.group is not None:
        state.group.wait_for_others(timeout)
    with _lock:
        state, _state = _state, None
    if state is None:
        return
    try:
        if graceful:
            state.endpoint.leave(state.closing_calls.patience_s)
    finally:
        state.endpoint.loop.call_soon_threadsafe(state.launcher_messages.close)
        state.endpoint.close()


def check_not_initialized(function: str) -> None:
    """Refuses a second role for this process: everything in it would go on asking the first one's job."""
    if _state is not None and _state.endpoint.home.is_own:
        raise InvalidArgumentError(
            f"{function}: this process is a {_role_name(_state.context.role)} already; shut that down first"
        )


def rpc_is_initialized() -> bool:
    """Whether ``init_rpc`` was called in this process, and ``shutdown_rpc`` was not."""
    return _state is not None and _state.endpoint.home.is_here


def is_dynamic() -> bool:
    """Whether ``init_rpc`` was told that the number of clients is open; ``NotInitializedError`` before it."""
    return _require().is_dynamic


def check_process() -> None:
    """Raises ``ForkedProcessError`` where this process is a fork of one that has an endpoint, and has none itself."""
    if _state is not None:
        _state.endpoint.home.check()


def get_endpoint() -> Endpoint:
    """The process's endpoint; ``NotInitializedError`` before ``init_rpc``."""
    return _require().endpoint


def get_alarm() -> Future[None]:
    """Fails when the job cannot go on, with the reason; ``NotInitializedError`` before ``init_rpc``."""
    return _require().launcher_messages.alarm


def get_closing_calls() -> ClosingCalls:
    """Tells servers what is not needed any more; ``NotInitializedError`` before ``init_rpc``."""
    return _require().closing_calls


def get_worker_group() -> WorkerGroup:
    """This worker's part in its group.

    Raises:
        NotInitializedError: the RPC is not initialized, or this process is no worker.
    """
    group = _require().group
    if group is None:
        raise NotInitializedError("this process is no worker: call init_worker_group and init_rpc first")
    return group


def _require() -> _State:
    check_process()
    if _state is None:
        raise NotInitializedError("the RPC is not initialized: call init_rpc (or init_server, init_client) first")
    return _state


def get_rpc_master_addr() -> str | None:
    """Host of the registry, or None before ``init_rpc``."""
    return _state.master_addr if _state is not None else None


def get_rpc_master_port() -> int | None:
    """Port of the registry, or None before ``init_rpc``."""
    return _state.endpoint.master_port if _state is not None else None


# --- who is there ----------------------------------------------------------------------------------------------


def get_rpc_current_group_worker_names() -> list[str]:
    """Names of all members of the own role group, by rank."""
    context = _require().context
    return [f"{context.group_name}_{rank}" for rank in range(context.world_size)]


def get_rpc_worker_names() -> dict[DistRole, list[str]]:
    """Names of the members there are now, by role and rank."""
    names: dict[DistRole, list[str]] = {}
    for member in get_endpoint().members():
        role = next((role for role in DistRole if _role_name(role) == member.role.partition(":")[0]), None)
        if role is not None:
            names.setdefault(role, []).append(member.name)
    return names


# --- collectives -----------------------------------------------------------------------------------------------


def all_gather(obj: Any, timeout: float | None = None) -> dict[str, Any]:
    """Everybody's ``obj`` in the own role group, by worker name.

    Args:
        obj: anything that can travel (see ``graphlearn_dist.rpc.encode``).
        timeout: seconds; the default deadline of requests if None.

    Raises:
        DeadlineExceededError: names the members that did not come.
        PeerLostError: a member died before it came.
    """
    state = _require()
    return state.endpoint.all_gather(obj, timeout, group=_own_group(state))


def barrier(timeout: float | None = None) -> None:
    """Return when every member of the own role group has come; raises as ``all_gather`` does."""
    all_gather(None, timeout)


def global_all_gather(obj: Any, timeout: float | None = None) -> dict[str, Any]:
    """Everybody's ``obj`` among servers and clients (or workers), by worker name; raises as ``all_gather`` does."""
    state = _require()
    return state.endpoint.all_gather(obj, timeout, group=_global_group(state))


def global_barrier(timeout: float | None = None) -> None:
    """Return when every process of the job has come; raises as ``all_gather`` does."""
    global_all_gather(None, timeout)


def _own_group(state: _State) -> dict[str, int]:
    return {state.context.role_name: state.context.world_size}


def _global_group(state: _State) -> dict[str, int]:
    context = state.context
    if context.is_worker():
        return _own_group(state)
    if state.is_dynamic:
        raise InvalidArgumentError("is_dynamic: the number of clients is open, so nothing can wait for all of them")
    sizes = {DistRole.SERVER: context.num_servers(), DistRole.CLIENT: context.num_clients()}
    return {_role_name(role): size for role, size in sizes.items() if size > 0}


# --- data partitions -------------------------------------------------------------------------------------------


def rpc_sync_data_partitions(num_data_partitions: int, current_partition_idx: int) -> list[list[str]]:
    """Tell the role group which partition this process holds; collective.

    Returns:
        Names of the workers that hold each partition.

    Raises:
        InvalidArgumentError: the index is outside, or members disagree about the number of partitions.
    """
    if not 0 <= current_partition_idx < num_data_partitions:
        raise InvalidArgumentError(
            f"current_partition_idx: expected 0 to {num_data_partitions - 1}, got {current_partition_idx}"
        )
    table: list[list[str]] = [[] for _ in range(num_data_partitions)]
    for name, (count, index) in all_gather((num_data_partitions, current_partition_idx)).items():
        if count != num_data_partitions:
            raise InvalidArgumentError(f"num_data_partitions: {name} says {count}, this process {num_data_partitions}")
        table[index].append(name)
    return table


# --- callees of the own group ----------------------------------------------------------------------------------


class RpcCalleeBase(ABC):
    """Something the other members of the role group can call."""

    @abstractmethod
    def call(self, *args: Any, **kwargs: Any) -> Any:
        """Answer a request; may be a coroutine function. Arguments and result must be able to travel."""


def rpc_register(callee: RpcCalleeBase) -> int:
    """Make ``callee`` callable by the role group; collective, and the same id comes out everywhere.

    Raises:
        InvalidArgumentError: the members register in different orders.
    """
    state = _require()
    with _lock:
        callee_id = state.num_callees
        state.num_callees += 1
    state.endpoint.register(_callee_name(callee_id), callee.call)
    mine = (callee_id, type(callee).__qualname__)
    for name, theirs in all_gather(mine).items():
        if theirs != mine:
            raise InvalidArgumentError(f"callee: {name} registers {theirs} where this process registers {mine}")
    return callee_id


def _callee_name(callee_id: int) -> str:
    return f"callee.{callee_id}"


def rpc_request_async(
    worker_name: str,
    callee_id: int,
    args: Iterable[Any] | None = None,
    kwargs: dict[str, Any] | None = None,
    *,
    fail_fast: bool = False,
) -> torch.futures.Future[Any]:
    """Call a callee of a member of the role group; the result comes in a torch future.

    ``fail_fast``: fail at once where the member cannot be reached, instead of trying until the deadline.
    """
    name, options = _callee_name(callee_id), kwargs or {}
    return to_torch_future(get_endpoint().request(worker_name, name, *(args or ()), fail_fast=fail_fast, **options))


def rpc_request(
    worker_name: str, callee_id: int, args: Iterable[Any] | None = None, kwargs: dict[str, Any] | None = None
) -> Any:
    """Call a callee of a member of the role group, and wait for the result."""
    return get_endpoint().call(worker_name, _callee_name(callee_id), *(args or ()), **(kwargs or {}))


# --- functions of any member -----------------------------------------------------------------------------------


def register_function(func: Callable[..., Any], name: str | None = None, *, target: Any = None) -> str:
    """Let other members call ``func``, and let this process pass ``func`` to ``rpc_global_request``.

    A server exports functions so, before or after ``init_server``: clients may then ``request_server(rank, func)``.
    Nothing else can be called from another process.

    Args:
        func: a function or method. On the calling side it only stands for its name.
        name: its name on the wire; ``module.qualname`` by default.
        target: what is called, where that is not ``func`` itself (such as the bound method of a server object).

    Returns:
        The name.
    """
    wire_name = name or f"{func.__module__}.{func.__qualname__}"
    with _lock:
        _function_names[func] = wire_name
        _functions[wire_name] = target if target is not None else func
        if _state is not None and rpc_is_initialized():
            _state.endpoint.register(wire_name, _functions[wire_name])
    return wire_name


def function_name(func: Callable[..., Any] | str) -> str:
    """The name a function is registered under; a string is a name already.

    A plain function that was not registered here goes by the name that ``register_function`` would give it, for whoever
    is asked to know or refuse.

    Raises:
        InvalidArgumentError: it was never registered, and is no function of a module.
    """
    if isinstance(func, str):
        return func
    name = _function_names.get(func)
    if name is not None:
        return name
    if is_remote(func):
        return remote_name(func)
    own_name = getattr(func, "__qualname__", "")
    if not own_name.isidentifier() or isinstance(func, type):  # a method, a lambda, a class
        raise InvalidArgumentError(
            f"func: {own_name or func!r} is not registered; only functions passed to register_function (and the "
            "methods of DistServer) can be called remotely"
        )
    return f"{func.__module__}.{own_name}"


def rpc_global_request_async(
    target_role: DistRole,
    role_rank: int,
    func: Callable[..., Any] | str,
    args: Iterable[Any] | None = None,
    kwargs: dict[str, Any] | None = None,
) -> torch.futures.Future[Any]:
    """Call a registered function of the member with that role and rank; the result comes in a torch future."""
    return to_torch_future(_global_request(target_role, role_rank, func, args, kwargs))


def rpc_global_request(
    target_role: DistRole,
    role_rank: int,
    func: Callable[..., Any] | str,
    args: Iterable[Any] | None = None,
    kwargs: dict[str, Any] | None = None,
) -> Any:
    """Call a registered function of the member with that role and rank, and wait for the result."""
    return get_endpoint().call(_place(target_role, role_rank), function_name(func), *(args or ()), **(kwargs or {}))


def rpc_global_request_by_rank(
    global_rank: int,
    func: Callable[..., Any] | str,
    args: Iterable[Any] | None = None,
    kwargs: dict[str, Any] | None = None,
) -> Any:
    """Call a registered function of the member with that global rank (servers first), and wait for the result."""
    context = _require().context
    if context.is_worker():
        return rpc_global_request(DistRole.WORKER, global_rank, func, args, kwargs)
    num_servers = context.num_servers()
    if global_rank < num_servers:
        return rpc_global_request(DistRole.SERVER, global_rank, func, args, kwargs)
    return rpc_global_request(DistRole.CLIENT, global_rank - num_servers, func, args, kwargs)


def _global_request(
    role: DistRole,
    rank: int,
    func: Callable[..., Any] | str,
    args: Iterable[Any] | None,
    kwargs: dict[str, Any] | None,
) -> Future[Any]:
    return get_endpoint().request(_place(role, rank), function_name(func), *(args or ()), **(kwargs or {}))


def _place(role: DistRole, rank: int) -> tuple[str, int]:
    """Whom a request is for; to a client, other clients are those of its own job."""
    context = _require().context
    return (context.role_name if context.role is role else _role_name(role)), rank
