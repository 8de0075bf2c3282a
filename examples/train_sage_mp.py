"""Train GraphSAGE on workers that hold a partition each and sample in subprocesses.

Run: python examples/train_sage_mp.py [--data debian] [--workers 2] [--smoke]

A subprocess maps its worker's partition, asks the other workers for the rest, and leaves batches in shared memory,
where the model reads them. Gradients are averaged by DDP.
"""

from __future__ import annotations

from workers import train

from graphlearn_dist.distributed.dist_options import (
    AllDistSamplingWorkerOptions,
    CollocatedDistSamplingWorkerOptions,
    MpDistSamplingWorkerOptions,
)
from graphlearn_dist.typing import Split


def make_options(split: Split, address: str, port: int) -> AllDistSamplingWorkerOptions:
    """Batches to train on come from a subprocess; the few to evaluate with are sampled here, when they are wanted."""
    if split is Split.train:
        return MpDistSamplingWorkerOptions(num_workers=1, master_addr=address, master_port=port)
    return CollocatedDistSamplingWorkerOptions(master_addr=address, master_port=port, prefetch_size=0)


if __name__ == "__main__":
    train(__doc__, make_options)
