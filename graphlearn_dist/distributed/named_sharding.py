"""The names of ``cluster.data.named_sharding``, at the place where the cluster layer's documents have them."""

from ..cluster.data.named_sharding import NamedSharding

__all__ = ["NamedSharding"]
