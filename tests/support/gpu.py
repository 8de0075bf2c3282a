"""What tests on a GPU share."""

from __future__ import annotations

import pytest
import torch

from graphlearn_dist import _C

GPU = torch.device("cuda", 0)

# ``pytestmark`` of their files.
needs_gpu = [
    pytest.mark.gpu,
    pytest.mark.skipif(not _C.cuda_is_built() or _C.cuda_device_count() == 0, reason="needs a GPU and a CUDA build"),
]


def busy(seconds: float) -> None:
    """Keeps the current stream busy for about so long: what it is given next begins later than the host goes on."""
    torch.cuda._sleep(int(seconds * 2e9))  # cycles, of which GPUs make 1.0 to 2.0 billion a second
