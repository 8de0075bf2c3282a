"""What a training example measures: an epoch's sums, where a batch's time went, and the line that says so."""

# No postponed annotations here: DDP looks at those of its communication hook, and wants the classes themselves.
import time
from dataclasses import astuple, dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

# A trainer's time: waiting for batches; forward, backward and optimizer; exchanging gradients.
COLUMNS = "  epoch    loss  validation    time    seeds/s     edges/s  waiting  compute    sync"


@dataclass
class Totals:
    """Sums over an epoch's batches; the times are seconds of a trainer, `loss` is weighted by seeds."""

    batches: float = 0.0
    seeds: float = 0.0
    edges: float = 0.0
    loss: float = 0.0
    wait_s: float = 0.0
    compute_s: float = 0.0
    sync_s: float = 0.0

    def add(self, batch: Any, loss: torch.Tensor, *, wait_s: float, compute_s: float, sync_s: float) -> None:
        """Count one batch."""
        self.batches += 1
        self.seeds += batch.batch_size
        self.edges += batch.edge_index.shape[1]
        self.loss += float(loss.detach()) * batch.batch_size
        self.wait_s += wait_s
        self.compute_s += compute_s
        self.sync_s += sync_s

    def over_all_trainers(self) -> "Totals":
        """The sum over the trainers, on each of them; waits for all of them."""
        sums = torch.tensor(astuple(self), dtype=torch.float64)
        dist.all_reduce(sums)
        return Totals(*sums.tolist())


class SyncTimer:
    """Notes when a backward pass has nothing left to do but to exchange the last gradients.

    What follows until the end of the pass is the exchange, and waiting for slower trainers. Earlier buckets of
    gradients travel while the backward pass goes on, and are not counted.
    """

    def __init__(self, model: DistributedDataParallel) -> None:
        self.started = time.perf_counter()
        model.register_comm_hook(None, self._hook)

    def _hook(self, _: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        self.started = time.perf_counter()
        return allreduce_hook(None, bucket)


def epoch_row(epoch: int, totals: Totals, train_s: float, val_accuracy: float) -> dict[str, float]:
    """An epoch's figures from the sums over all trainers and its wall-clock seconds."""
    spent = totals.wait_s + totals.compute_s + totals.sync_s
    return {
        "epoch": epoch,
        "loss": totals.loss / totals.seeds,
        "val_accuracy": val_accuracy,
        "train_s": train_s,
        "batches": totals.batches,
        "seeds_per_s": totals.seeds / train_s,
        "edges_per_s": totals.edges / train_s,
        "wait_share": totals.wait_s / spent,
        "compute_share": totals.compute_s / spent,
        "sync_share": totals.sync_s / spent,
    }


def line(row: dict[str, float], epochs: int) -> str:
    """One line of progress; the first comes below the names of the columns."""
    text = (
        f"{row['epoch']:3.0f}/{epochs:<4}{row['loss']:6.3f}{row['val_accuracy']:12.2%}{row['train_s']:7.2f} s"
        f"{row['seeds_per_s']:11,.0f}{row['edges_per_s']:12,.0f}"
        f"{row['wait_share']:9.0%}{row['compute_share']:9.0%}{row['sync_share']:8.0%}"
    )
    return f"{COLUMNS}\n{text}" if row["epoch"] == 1 else text
