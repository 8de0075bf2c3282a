"""For the code of workers: torch's process group and data parallel models, as their group was told to have them."""

from __future__ import annotations

import datetime
from typing import Any

import torch
import torch.distributed
from torch.nn.parallel import DistributedDataParallel

from ...config import CommunicationSettings
from .compression import compress_gradients


def init_process_group(timeout_s: float = 300.0) -> None:
    """Joins the workers of a group into torch's default process group.

    Rank, size and address come from the environment that the group gave each worker; the backend is the cluster's
    ``communication_backend``.

    Raises:
        InvalidArgumentError: this process is no worker of a group.
    """
    settings = CommunicationSettings.from_environ()
    torch.distributed.init_process_group(settings.backend, timeout=datetime.timedelta(seconds=timeout_s))


def wrap_ddp(model: torch.nn.Module, **options: Any) -> DistributedDataParallel:
    """The model as a data parallel one, with the gradient compression that the group was made with.

    Args:
        model: on the device where it is trained.
        **options: for ``DistributedDataParallel``.
    """
    wrapped = DistributedDataParallel(model, **options)
    compression = CommunicationSettings.from_environ().gradient_compression
    if compression is not None:
        compress_gradients(wrapped, compression)
    return wrapped
