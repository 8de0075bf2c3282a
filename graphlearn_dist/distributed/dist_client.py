"""A client: a trainer that has its batches made by servers."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
from torch.distributed import TCPStore  # type: ignore[attr-defined]  # made at import, where torch has gloo

from ..config import RpcSettings, TlsSettings, job_token, launcher_messages_fd
from ..errors import InvalidArgumentError, NotInitializedError, RpcError
from ..rpc import PeerAddress
from ..rpc.calls.remote import remote_functions
from . import rpc
from .dist_context import DistContext, _reset_context, _set_client_context, get_context
from .dist_server import DistServer


def init_client(
    num_servers: int,
    num_clients: int,
    client_rank: int,
    master_addr: str,
    master_port: int,
    num_rpc_threads: int = 4,
    client_group_name: str | None = None,
    is_dynamic: bool = False,
    *,
    connect_timeout_s: float = 30.0,
    tls: TlsSettings | None = None,
) -> None:
    """Makes this process a client and waits until all servers are there.

    Args:
        num_servers: servers in the job.
        num_clients: clients in the job; those of its group, where it is one of several jobs on the same servers.
        client_rank: this one's rank, from 0.
        master_addr: host of the registry.
        master_port: its port.
        num_rpc_threads: threads that answer requests (of the registry, say).
        client_group_name: prefix of the clients' names. With ``is_dynamic`` they are a job of their own on these
            servers: ranks, collectives and ``num_clients`` are the group's.
        is_dynamic: the servers' number of clients is open, or counts others.
        connect_timeout_s: how long to wait for the registry, and then for the servers.
        tls: certificates for connections between hosts; those of ``GLD_TLS_…`` if None.

    Raises:
        InvalidArgumentError: this process is a client or a server already.
        DeadlineExceededError: there is no registry, or servers are missing; the message says which.
        RegistryError: another client has this rank.
    """
    rpc.check_not_initialized("init_client")
    settings = RpcSettings(connect_timeout_s=connect_timeout_s, tls=tls)
    _set_client_context(num_servers, num_clients, client_rank, client_group_name, is_dynamic=is_dynamic)
    try:
        rpc.init_rpc(
            master_addr,
            master_port,
            num_rpc_threads,
            is_dynamic=is_dynamic,
            token=job_token(),
            settings=settings,
            functions=dict.fromkeys(remote_functions(DistServer), _not_a_server),
            messages_fd=launcher_messages_fd(),
        )
        endpoint = rpc.get_endpoint()
        endpoint.wait_for_members("server", num_servers, connect_timeout_s, patient=True)
    except BaseException:
        rpc.shutdown_rpc()
        _reset_context()
        raise


def _not_a_server(*args: Any, **kwargs: Any) -> None:
    raise NotInitializedError("this process is a client, not a server")


def client_context() -> DistContext:
    """The context of this client.

    Raises:
        NotInitializedError: the process is not a client.
        ForkedProcessError: it is a fork of one.
    """
    rpc.check_process()
    context = get_context()
    if context is None or not context.is_client() or not rpc.rpc_is_initialized():
        raise NotInitializedError("this process is not a client: call init_client first")
    return context


def shutdown_client() -> None:
    """Tells the servers that it is done, and leaves. Without effect where there is no client, and in a fork of one."""
    leave_servers()


def leave_servers(*, ends_servers: bool = False) -> None:
    """See ``shutdown_client``.

    Args:
        ends_servers: servers that count no clients end when all of this one's group are done, see ``ClientExits``.
    """
    context = get_context()
    if context is None or not context.is_client():
        return
    try:
        if rpc.rpc_is_initialized():
            _tell_servers(context, context.world_size if ends_servers and rpc.is_dynamic() else 0)
    finally:
        with contextlib.suppress(RpcError):  # the registry may be gone: leaving needs nobody
            rpc.shutdown_rpc()
        _reset_context()


def _tell_servers(context: DistContext, group_size: int) -> None:
    """Tells every server that this client is done; a server that is gone needs no telling."""
    told = (group_size,) if group_size else ()
    rpc.get_closing_calls().send(DistServer.client_done, dict.fromkeys(range(context.num_servers()), told))


def async_request_server(
    server_rank: int, func: Callable[..., Any] | str, *args: Any, **kwargs: Any
) -> torch.futures.Future[Any]:
    """Calls a method of ``DistServer``, or a function registered on the servers, on one server.

    Args:
        server_rank: which server.
        func: the method (``DistServer.get_dataset_meta``), a function that the servers export (see
            ``register_function``), or its name.
        args: its arguments.
        kwargs: its keyword arguments; ``timeout_s`` is not among them, but the deadline of this request.

    Returns:
        A torch future of the result.
    """
    target = _server(server_rank)
    name = rpc.function_name(func)
    return rpc.to_torch_future(rpc.get_endpoint().request(target, name, *args, **kwargs))


def request_server(server_rank: int, func: Callable[..., Any] | str, *args: Any, **kwargs: Any) -> Any:
    """As ``async_request_server``, and waits for the result; the remote error is raised here."""
    target = _server(server_rank)
    return rpc.get_endpoint().call(target, rpc.function_name(func), *args, **kwargs)


def _server(rank: int) -> tuple[str, int]:
    last = client_context().num_servers() - 1
    if not 0 <= rank <= last:  # nobody would ever join as that one
        raise InvalidArgumentError(f"server_rank: expected 0 to {last}, got {rank}")
    return "server", rank


def rendezvous_store(timeout_s: float = 60.0) -> TCPStore:
    """A store for ``torch.distributed.init_process_group``, agreed among the clients: no port to choose.

    Client 0 opens it on a free port and tells the others through the registry. Collective among the clients.

    Raises:
        DeadlineExceededError: a client did not come.
    """
    context = client_context()
    endpoint = rpc.get_endpoint()
    timeout = timedelta(seconds=timeout_s)
    # It listens on all addresses, or nowhere: others reach this host where the registry does.
    master = PeerAddress(str(rpc.get_rpc_master_addr()), endpoint.master_port)
    host = endpoint.local_host_towards(master) or "127.0.0.1"
    if context.rank == 0:
        store = TCPStore(host, 0, context.world_size, is_master=True, timeout=timeout, wait_for_workers=False)
        rpc.all_gather((host, store.port), timeout_s)
        return store
    places = rpc.all_gather(None, timeout_s)
    first = places[f"{context.group_name}_0"]
    if first is None:
        raise InvalidArgumentError("rendezvous_store: client 0 did not open a store")
    return TCPStore(first[0], first[1], context.world_size, is_master=False, timeout=timeout)
