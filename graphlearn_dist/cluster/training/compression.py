"""Gradients made smaller on their way between the ranks of torch's distributed data parallel training."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...errors import InvalidArgumentError

if TYPE_CHECKING:
    import torch.distributed
    from torch.nn.parallel import DistributedDataParallel

COMPRESSIONS = ("fp16", "bf16", "powersgd")


def compress_gradients(
    model: DistributedDataParallel, compression: str = "fp16", group: torch.distributed.ProcessGroup | None = None
) -> None:
    """Has a model's gradients sent in a smaller form.

    Args:
        model: before its first backward pass.
        compression: ``fp16``, ``bf16``, or ``powersgd``, which approximates gradients by matrices of low rank and works
            on nccl only: its chained reductions do not keep one order on gloo, which ends the process.
        group: torch's process group; None means the default one.

    Raises:
        InvalidArgumentError: there is no such compression, or it does not work on the group's backend.
    """
    import torch.distributed as dist
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

    from .ddp_hooks import compression_hook

    if compression not in COMPRESSIONS:
        raise InvalidArgumentError(f"compression: expected one of {COMPRESSIONS}, got {compression!r}")
    if compression != "powersgd":
        model.register_comm_hook(group, compression_hook(compression))
        return
    backend = dist.get_backend(group)
    if backend != "nccl":
        raise InvalidArgumentError(f"compression: expected fp16 or bf16 on {backend}, got 'powersgd' (needs nccl)")
    model.register_comm_hook(powerSGD_hook.PowerSGDState(group), powerSGD_hook.powerSGD_hook)
