"""How many batches travel together: a rule of fan-outs and batch size, which must be the same wherever it is asked."""

from __future__ import annotations

from typing import Any

import pytest

from graphlearn_dist.sampler.base import SamplingConfig, SamplingType
from graphlearn_dist.sampler.batches_together import batches_together

NODE, LINK, SUBGRAPH = SamplingType.NODE, SamplingType.LINK, SamplingType.SUBGRAPH
TYPED = {("a", "to", "b"): [10, 5], ("b", "to", "a"): [5]}


@pytest.mark.parametrize(
    ("kind", "fanouts", "batch_size", "expected"),
    [
        (NODE, [10, 5], 256, 4),  # 256 + 2,560 + 12,800
        (NODE, [15, 10, 5], 1024, 1),
        (NODE, [2], 4, 8),  # no more than that, however small
        (NODE, [2], 1 << 20, 1),
        (NODE, [10, -1], 4, 1),  # who knows
        (LINK, [10, 5], 256, 1),
        (LINK, [10, 5], 64, 4),
        (NODE, TYPED, 256, 2),  # 256 + 3,840 + 19,200
        (NODE, [0], 100, 8),
        (SUBGRAPH, [2], 4, 1),  # all edges between its nodes
        (SUBGRAPH, None, 4, 1),
    ],
)
def test_how_many(kind: SamplingType, fanouts: Any, batch_size: int, expected: int) -> None:
    config = SamplingConfig(kind, fanouts, batch_size, True, False, False, False, False, False, "in", 0)
    assert batches_together(config) == expected
