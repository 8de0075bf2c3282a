"""How and where a distributed loader samples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch

from ..errors import InvalidArgumentError
from ..utils.units import parse_size

_MAX_CONCURRENCY = 32
_DEFAULT_BUFFER_BYTES = 1 << 30


@dataclass(frozen=True)
class RemoteDistSamplingWorkerOptions:
    """Sampling on servers.

    Attributes:
        server_rank: ranks of the servers to use; None shares them out evenly among the clients.
        num_workers: sampling processes on each of them.
        worker_devices: must be None or CPUs.
        worker_concurrency: batches under way at once in each process (at most 32).
        master_addr: not used; clients know the registry from ``init_client``.
        master_port: likewise.
        num_rpc_threads: not used; the RPC needs no threads of its own here.
        rpc_timeout: deadline of each request, in seconds.
        buffer_size: shared memory for finished batches on each server, as bytes or as text such as ``"64MB"``;
            committed as it is used. Batches that find no room there travel by copies instead.
        prefetch_size: batches asked for ahead of the trainer, on each server.
        worker_key: not used; every loader has sampling processes of its own.
        glt_graph: not used.
        workload_type: not used.
        num_threads: threads of one batch; never changes it.
    """

    server_rank: int | list[int] | None = None
    num_workers: int = 1
    worker_devices: list[torch.device] | None = None
    worker_concurrency: int = 4
    master_addr: str | None = None
    master_port: str | int | None = None
    num_rpc_threads: int | None = None
    rpc_timeout: float = 180
    buffer_size: int | str | None = None
    prefetch_size: int = 4
    worker_key: str | None = None
    glt_graph: Any = None
    workload_type: Literal["train", "validate", "test"] | None = None
    num_threads: int = 1

    def __post_init__(self) -> None:
        for name in ("num_workers", "worker_concurrency", "prefetch_size", "num_threads"):
            if getattr(self, name) < 1:
                raise InvalidArgumentError(f"{name}: expected at least 1, got {getattr(self, name)}")
        if self.worker_concurrency > _MAX_CONCURRENCY:
            raise InvalidArgumentError(
                f"worker_concurrency: expected at most {_MAX_CONCURRENCY}, got {self.worker_concurrency}"
            )
        if self.rpc_timeout <= 0:
            raise InvalidArgumentError(f"rpc_timeout: expected a positive number of seconds, got {self.rpc_timeout}")
        if any(torch.device(device).type != "cpu" for device in self.worker_devices or []):
            raise InvalidArgumentError(f"worker_devices: expected CPUs, got {self.worker_devices}")

    @property
    def buffer_bytes(self) -> int:
        """Shared memory for batches on each server."""
        return _DEFAULT_BUFFER_BYTES if self.buffer_size is None else parse_size(self.buffer_size)


@dataclass(frozen=True)
class ProducerRequest:
    """What a client wants a server to produce, besides input nodes and config.

    Attributes:
        first: the first batch index of an epoch that this server makes.
        step: distance to the next.
        num_workers: sampling processes.
        concurrency: batches under way at once in each.
        num_threads: threads of one batch.
        buffer_bytes: shared memory for batches.
        request_timeout_s: deadline of requests between partitions.
    """

    first: int
    step: int
    num_workers: int
    concurrency: int
    num_threads: int
    buffer_bytes: int
    request_timeout_s: float

    def __post_init__(self) -> None:
        if self.first < 0:
            raise InvalidArgumentError(f"first: expected at least 0, got {self.first}")
        for name in ("step", "num_workers", "concurrency", "num_threads", "buffer_bytes"):
            if getattr(self, name) < 1:
                raise InvalidArgumentError(f"{name}: expected at least 1, got {getattr(self, name)}")
        if not self.request_timeout_s > 0:
            raise InvalidArgumentError(
                f"request_timeout_s: expected a positive number of seconds, got {self.request_timeout_s}"
            )
