"""What the processes of a running job are at, for somebody who is not one of them."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import perf_counter_ns

from ...config import RpcSettings, TlsSettings
from ...errors import RpcError
from ...rpc import Endpoint
from ...rpc.calls.remote import Remote, remote
from ...rpc.job.registry import Registry
from ...rpc.peers.identity import Member, PeerAddress, boot_id
from ...telemetry.job_table import Look, describe_job, looks
from ...telemetry.process_status import ProcessStatus, process_status
from ...telemetry.trace import tracer
from ...utils.system.job_file import JobAddress

_CLOCK_REQUESTS = 9


class StatusService:
    """Every member of a job answers by it."""

    @remote
    async def get_status(self) -> ProcessStatus:
        """What this process is at."""
        return process_status()


@dataclass(frozen=True)
class MemberStatus:
    """A member of a job.

    Attributes:
        member: who and where.
        status: what it said; None where it said nothing.
        error: then, why.
    """

    member: Member
    status: ProcessStatus | None
    error: str = ""


@dataclass(frozen=True)
class JobStatus:
    """All members of a job, servers first.

    Attributes:
        members: those that the registry has.
    """

    members: list[MemberStatus] = field(default_factory=list)

    def describe(self, before: JobStatus | None = None) -> str:
        """A table; rates are those since an earlier look at the same job, or since each process began."""
        found = [
            Look(f"{one.member.role} {one.member.rank}", one.member.peer.host, one.status, None, one.error)
            for one in self.members
        ]
        earlier = [] if before is None else before.members
        by_name = {f"{one.member.role} {one.member.rank}": one.status for one in earlier if one.status is not None}
        return describe_job(looks(found, by_name))


class JobObserver:
    """Asks a job's registry who there is, and each of these what it is at. It is no member, and nobody waits for it.

    Args:
        job: how it is reached.
        timeout_s: how long a process may take to answer.
        tls: certificates for connections between hosts.
    """

    def __init__(self, job: JobAddress, timeout_s: float, tls: TlsSettings | None) -> None:
        settings = RpcSettings(request_timeout_s=timeout_s, num_threads=1, tls=tls)
        name = f"observer-{socket.gethostname()}-{os.getpid()}"
        self._endpoint = Endpoint("observer", 0, name=name, settings=settings, token=job.token, listen_host=None)
        self._registry = Remote[Registry](
            self._endpoint, PeerAddress(job.master_addr, job.master_port, "", ""), fail_fast=True
        )

    def look(self) -> JobStatus:
        """All members, now.

        Raises:
            PeerLostError: there is no registry.
            AuthenticationError: the token is not the job's.
            DeadlineExceededError: the registry gave no answer.
        """
        self._endpoint.open()
        members = sorted(self._registry.call(Registry.members), key=lambda m: (m.role != "server", m.role, m.rank))
        asked = [Remote[StatusService](self._endpoint, m.address, fail_fast=True) for m in members]
        futures = [process.ask(StatusService.get_status) for process in asked]
        found = []
        for member, future in zip(members, futures, strict=True):
            try:
                found.append(MemberStatus(member, future.result()))
            except RpcError as error:
                found.append(MemberStatus(member, None, str(error)))
        return JobStatus(found)

    def close(self) -> None:
        """Ends its connections. Idempotent."""
        self._endpoint.close()


@contextmanager
def observe(job: JobAddress, *, timeout_s: float = 10.0) -> Iterator[JobObserver]:
    """A look at a running job from outside, for the time of a ``with`` block; see ``JobObserver``.

    Certificates are those of ``GLD_TLS_…``.
    """
    observer = JobObserver(job, timeout_s, TlsSettings.from_environ())
    try:
        yield observer
    finally:
        observer.close()


def set_trace_clock(endpoint: Endpoint, master_addr: str, master_port: int) -> None:
    """Where this process writes a trace, measures how far the clock of the registry's host is ahead.

    By the fastest of a few requests, in whose middle the registry looked at its clock.
    """
    traced = tracer()
    if traced is None:
        return
    registry = Remote[Registry](endpoint, PeerAddress(master_addr, master_port, "", ""))
    best, offset = float("inf"), 0
    for _ in range(_CLOCK_REQUESTS):
        begun = perf_counter_ns()
        host, there = registry.call(Registry.clock)
        ended = perf_counter_ns()
        if host == boot_id():
            traced.clock(0)
            return
        if ended - begun < best:
            best, offset = ended - begun, there - (begun + ended) // 2
    traced.clock(offset)
