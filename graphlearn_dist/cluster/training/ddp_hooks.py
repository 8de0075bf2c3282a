"""Communication hooks of ``DistributedDataParallel``.

Annotations are evaluated here, unlike elsewhere: torch compares those of a hook with its own classes.
"""

from collections.abc import Callable

import torch
import torch.distributed as dist

DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}
Hook = Callable[..., torch.futures.Future[torch.Tensor]]


def compression_hook(name: str) -> Hook:
    """A hook that sends gradients as ``fp16`` or ``bf16`` and gives every rank the same mean, in their own dtype.

    Works on every device and backend (torch's own bf16 hook wants CUDA). A gradient is divided by the number of ranks
    before it is cast, so that a sum does not overflow where the mean would not.
    """
    dtype = DTYPES[name]

    def hook(
        group: dist.ProcessGroup | None,
        bucket: dist.GradBucket,  # type: ignore[name-defined]  # torch has it where it is built with distributed
    ) -> torch.futures.Future[torch.Tensor]:
        gradient: torch.Tensor = bucket.buffer()
        small = (gradient / dist.get_world_size(group)).to(dtype)
        work = dist.all_reduce(small, group=group, async_op=True)

        def widen(_: torch.futures.Future[list[torch.Tensor]]) -> torch.Tensor:
            return gradient.copy_(small)

        future: torch.futures.Future[torch.Tensor] = work.get_future().then(widen)
        return future

    return hook
