"""The seed of a loader that was given none: trainers of a group must not draw the same batches in the same order."""

from __future__ import annotations

import torch.distributed as dist

from ..dist_context import get_context

_GOLDEN = 0x9E3779B97F4A7C15  # 2^64 over the golden ratio, odd: multiples are different, and far from seeds people take
_NUM_SEEDS = 1 << 63


def trainer_rank() -> int:
    """This process's rank among the trainers of its job.

    A client's among the clients of its group, a worker's in its group. Where it is in none, its rank in
    ``torch.distributed``; 0 where that was not set up either.
    """
    context = get_context()
    if context is not None:
        return context.rank
    return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0


def loader_seed(random_seed: int | None, shard: tuple[int, int] | None) -> int:
    """The seed with which a loader of this trainer draws.

    A function of the arguments and of the trainer's rank, so that a job that starts again draws the same batches.

    Args:
        random_seed: the one that was given; it holds.
        shard: the loader's part of every epoch. Shards have to draw alike, so that they share out one epoch: with one
            the seed is 0 unless given. Without, each rank has another; that of rank 0 is 0, as in a single process.
    """
    if random_seed is not None:
        return random_seed
    return 0 if shard is not None else trainer_rank() * _GOLDEN % _NUM_SEEDS
