"""A worker that trains, for the tests of what groups do with torch's process groups."""

from __future__ import annotations

import os
from typing import Any

import torch
import torch.distributed
from torch.nn.parallel import DistributedDataParallel

from graphlearn_dist.cluster import BatchedDataDict, compress_gradients, init_process_group, wrap_ddp
from graphlearn_dist.errors import InvalidArgumentError


class Trainer:
    """One rank. Its input on rank r is ``inputs(r)``, and so is the gradient of a sum of weight times input."""

    def __init__(self) -> None:
        init_process_group()
        self.rank = int(os.environ["RANK"])

    @staticmethod
    def inputs(rank: int) -> torch.Tensor:
        return torch.linspace(0.1, 3.3, 64) * (rank + 1)

    def gradient(self, compression: str | None) -> torch.Tensor:
        """The gradient after two steps; None leaves the compression to the group."""
        torch.manual_seed(0)
        layer = torch.nn.Linear(64, 1, bias=False)
        if compression is None:
            model = wrap_ddp(layer)
        else:
            model = DistributedDataParallel(layer)
            compress_gradients(model, compression)
        for _ in range(2):  # torch rebuilds its buckets after the first
            model.zero_grad()
            model(self.inputs(self.rank)).sum().backward()
        assert layer.weight.grad is not None
        return layer.weight.grad.flatten()

    def refuse_powersgd(self) -> str:
        try:
            compress_gradients(DistributedDataParallel(torch.nn.Linear(1, 1)), "powersgd")
        except InvalidArgumentError as error:
            return str(error)
        return ""

    def gather(self) -> dict[str, Any]:
        """Rank r has r + 1 rows of length r + 2."""
        rows = self.rank + 1
        batch = BatchedDataDict(
            ids=torch.full((rows, rows + 1), self.rank), names=[str(self.rank)] * rows, pad_values={"ids": -1}
        )
        return dict(batch.all_gather())

    def gather_some(self) -> dict[str, Any]:
        """Rank 0 had nothing to do, and does not know of ``ids``; the others name their keys in another order."""
        batch = BatchedDataDict(names=[], more=torch.zeros(0))
        if self.rank:
            batch = BatchedDataDict(more=torch.ones(2, 1), ids=torch.tensor([7, 8]), names=["a", "b"])
        return dict(batch.all_gather())

    def gather_what_does_not_fit(self) -> str:
        """Rank 0 has rows and lacks ``ids``: every rank is told, and none waits for another."""
        batch = BatchedDataDict(names=["a"]) if self.rank == 0 else BatchedDataDict(names=["b"], ids=torch.ones(1))
        try:
            batch.all_gather()
        except KeyError as error:
            return str(error)
        return ""
