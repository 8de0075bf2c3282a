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
