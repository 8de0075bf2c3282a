"""Train GraphSAGE on workers that hold a partition each and sample in the training process.

Run: python examples/train_sage_collocated.py [--data debian] [--workers 2] [--smoke]

Each worker asks the others for neighbors and features that lie in their partitions, a batch or two ahead of its model.
Gradients are averaged by DDP.
"""

from __future__ import annotations

from workers import train

from graphlearn_dist.distributed import CollocatedDistSamplingWorkerOptions
from graphlearn_dist.typing import Split


def make_options(split: Split, address: str, port: int) -> CollocatedDistSamplingWorkerOptions:
    """Sample here, in a thread, two batches ahead."""
    return CollocatedDistSamplingWorkerOptions(master_addr=address, master_port=port, prefetch_size=2)


if __name__ == "__main__":
    train(__doc__, make_options)
