"""Options of distributed loaders in the order of ``graphlearn_torch.distributed.dist_options``."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import torch

from ...distributed import dist_options
from ...distributed.dist_options import AllDistSamplingWorkerOptions
from ...utils.device import parse_device
from ...utils.message_types import register_as_base
from ...utils.no_effect import warn_no_effect

__all__ = [
    "AllDistSamplingWorkerOptions",
    "CollocatedDistSamplingWorkerOptions",
    "MpDistSamplingWorkerOptions",
    "RemoteDistSamplingWorkerOptions",
]

_Devices: TypeAlias = torch.device | str | int | list[torch.device] | None


class CollocatedDistSamplingWorkerOptions(dist_options.CollocatedDistSamplingWorkerOptions):
    """Sampling in the training process; those of ``graphlearn_dist.distributed`` that follow are keywords."""

    def __init__(
        self,
        master_addr: str | None = None,
        master_port: str | int | None = None,
        num_rpc_threads: int | None = None,
        rpc_timeout: float = 180,
        use_all2all: bool = False,
        **others: Any,
    ) -> None:
        super().__init__(master_addr, master_port, num_rpc_threads, rpc_timeout, use_all2all=use_all2all, **others)


class MpDistSamplingWorkerOptions(dist_options.MpDistSamplingWorkerOptions):
    """Sampling in subprocesses; those of ``graphlearn_dist.distributed`` that follow are keywords.

    Workers sample where the graph lies: on its GPU where one partition is the whole data set, else on the CPU, see
    ``docs/gpu.md``. GPUs as ``worker_devices`` change nothing, as a warning says once, and for ``num_workers=0``, the
    number of GPUs of a host without any, another that there is one worker.
    """

    def __init__(
        self,
        num_workers: int = 1,
        worker_devices: _Devices = None,
        worker_concurrency: int = 4,
        master_addr: str | None = None,
        master_port: str | int | None = None,
        num_rpc_threads: int | None = None,
        rpc_timeout: float = 180,
        channel_size: int | str | None = None,
        pin_memory: bool = False,
        use_all2all: bool = False,
        **others: Any,
    ) -> None:
        _check_devices(worker_devices)
        super().__init__(
            _at_least_one(num_workers),
            None,
            worker_concurrency,
            master_addr,
            master_port,
            num_rpc_threads,
            rpc_timeout,
            channel_size,
            pin_memory,
            use_all2all=use_all2all,
            **others,
        )

    @property
    def channel_capacity(self) -> int:
        """Batches that workers make at once."""
        return self.num_workers * self.worker_concurrency


@register_as_base
class RemoteDistSamplingWorkerOptions(dist_options.RemoteDistSamplingWorkerOptions):
    """Sampling on servers; those of ``graphlearn_dist.distributed`` that follow are keywords.

    Workers sample where the graph lies: on its GPU where one partition is the whole data set, else on the CPU, see
    ``docs/gpu.md``. GPUs as ``worker_devices`` change nothing, as a warning says once, and for ``num_workers=0``, the
    number of GPUs of a host without any, another that there is one worker. Clients with the same ``worker_key`` do not
    share a producer: each goes through all of its input; ``shard`` of a loader divides an epoch.
    """

    def __init__(
        self,
        server_rank: int | list[int] | None = None,
        num_workers: int = 1,
        worker_devices: _Devices = None,
        worker_concurrency: int = 4,
        master_addr: str | None = None,
        master_port: str | int | None = None,
        num_rpc_threads: int | None = None,
        rpc_timeout: float = 180,
        buffer_size: int | str | None = None,
        prefetch_size: int = 4,
        worker_key: str | None = None,
        glt_graph: Any = None,
        workload_type: Literal["train", "validate", "test"] | None = None,
        use_all2all: bool = False,
        **others: Any,
    ) -> None:
        _check_devices(worker_devices)
        super().__init__(
            server_rank,
            _at_least_one(num_workers),
            None,
            worker_concurrency,
            master_addr,
            master_port,
            num_rpc_threads,
            rpc_timeout,
            buffer_size,
            prefetch_size,
            worker_key,
            glt_graph,
            workload_type,
            use_all2all=use_all2all,
            **others,
        )

    @property
    def buffer_capacity(self) -> int:
        """Batches that the workers of a server make at once."""
        return self.num_workers * self.worker_concurrency


def _at_least_one(num_workers: int) -> int:
    """One worker where there is to be one for each GPU, and there is none."""
    if num_workers == 0:
        warn_no_effect("num_workers=0", "one worker samples")
        return 1
    return num_workers


def _check_devices(devices: _Devices) -> None:
    """Says that the device of the graph is what counts, where GPUs are named, whether or not they are there.

    Raises:
        InvalidArgumentError: neither the CPU nor a GPU.
    """
    named = list(devices or ()) if devices is None or isinstance(devices, (list, tuple)) else [devices]
    found = [parse_device(device, "worker_devices", must_be_there=False) for device in named]
    if any(device.type != "cpu" for device in found):
        warn_no_effect("worker_devices", "workers sample where the graph lies: on its device, see docs/gpu.md")
