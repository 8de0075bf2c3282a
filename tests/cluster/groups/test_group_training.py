"""What workers do with torch's process group, which needs no particular engine."""

from __future__ import annotations

import pytest
import torch

from graphlearn_dist.cluster import RayVirtualCluster, RayWorkerGroup
from tests.support.cluster_training import Trainer


def test_gradients_travel_small_and_batches_are_gathered() -> None:
    with RayVirtualCluster([2], use_gpus=False, backend="local") as cluster:
        with RayWorkerGroup(
            cluster,
            "tests.support.cluster_training.Trainer",
            name_prefix="trainer",
            enable_gradient_compression=True,
            gradient_compression="bf16",
            call_timeout_s=120.0,
        ) as group:
            for compression, dtype in ((None, torch.bfloat16), ("fp16", torch.float16)):
                first, second = group.run_all_workers_single_data("gradient", compression)
                halves = [(Trainer.inputs(rank) / 2).to(dtype) for rank in range(2)]
                assert torch.equal(first, (halves[0] + halves[1]).float())
                assert torch.equal(first, second)
                assert first == pytest.approx((Trainer.inputs(0) + Trainer.inputs(1)) / 2, rel=0.01)
            for said in group.run_all_workers_single_data("refuse_powersgd"):
                assert "expected fp16 or bf16 on gloo, got 'powersgd'" in said
            for gathered in group.run_all_workers_single_data("gather"):
                assert gathered["ids"].tolist() == [[0, 0, -1], [1, 1, 1], [1, 1, 1]]
                assert gathered["names"] == ["0", "1", "1"]
            for gathered in group.run_all_workers_single_data("gather_some"):
                assert gathered["ids"].tolist() == [7, 8]
                assert gathered["more"].tolist() == [[1.0], [1.0]]
                assert gathered["names"] == ["a", "b"]
            for said in group.run_all_workers_single_data("gather_what_does_not_fit"):
                assert "expected key 'ids' in each, batch 0 has ['names']" in said
