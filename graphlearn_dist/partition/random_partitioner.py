"""GraphLearn-for-PyTorch's place for RandomPartitioner."""

from .partitioner import RandomPartitioner

__all__ = ["RandomPartitioner"]
