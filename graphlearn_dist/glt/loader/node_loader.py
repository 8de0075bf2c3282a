"""``NodeLoader`` as ``graphlearn_torch.loader`` has it."""

from __future__ import annotations

from typing import Any

from ...loader import node_loader
from ...sampler.base import SamplingType
from ...sampler.inputs import to_sampler_input
from .local_loader import LocalLoader
from .own_sampler import is_own_sampler

__all__ = [
    "NodeLoader",
]


class NodeLoader(node_loader.NodeLoader, LocalLoader):
    """``graphlearn_dist.loader.NodeLoader`` with batches in the form of GraphLearn-for-PyTorch.

    A program's own sampler is called for each batch, one after the other: anything whose ``sample_from_nodes`` (of a
    ``SubGraphLoader`` ``subgraph``) takes a ``NodeSamplerInput`` and gives a ``SamplerOutput`` or
    ``HeteroSamplerOutput``, a subclass of ``NeighborSampler`` with such a method of its own too.

    Arguments are the same.

    Raises:
        InvalidArgumentError: as there, or options that an own sampler would have to know.
    """

    def __init__(self, data: Any, node_sampler: Any, input_nodes: Any, device: Any = None, **kwargs: Any) -> None:
        is_induced = kwargs.get("sampling_type") is SamplingType.SUBGRAPH
        method = "subgraph" if is_induced else "sample_from_nodes"
        if not is_own_sampler(data, node_sampler, method):
            super().__init__(data, node_sampler, input_nodes, device, **kwargs)
            return
        kwargs.pop("sampling_type", None)
        self.node_sampler = node_sampler
        self._open_own(data, getattr(node_sampler, method), to_sampler_input(input_nodes), device, **kwargs)

    @property
    def sampler(self) -> Any:
        """The sampler of neighbors; torch's loaders call the order of the seeds so."""
        return self.node_sampler

    @property
    def as_pyg_v1(self) -> bool:
        """Whether batches are (batch size, ids, layers)."""
        return self._as_pyg_v1
