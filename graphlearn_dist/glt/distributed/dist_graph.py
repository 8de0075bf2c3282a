"""The names of ``graphlearn_torch.distributed.dist_graph``."""

from __future__ import annotations

from ...distributed import dist_graph


class DistGraph(dist_graph.DistGraph):
    """See ``graphlearn_dist.distributed.DistGraph``."""

    @property
    def data_cls(self) -> str:
        """``"homo"`` or ``"hetero"``."""
        return "hetero" if isinstance(self.local_graph, dict) else "homo"


__all__ = [
    "DistGraph",
]
