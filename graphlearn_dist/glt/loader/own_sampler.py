"""Samplers that programs bring: each batch is what they give for its seeds, with rows of the data set."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, Literal

import torch

from ...data.dataset import Dataset
from ...errors import InvalidArgumentError
from ...loader.batch_source import Named, sampled_in_turn
from ...sampler import neighbor_sampler as core_sampler
from ...sampler.base import EdgeSamplerInput, NodeSamplerInput
from ...sampler.convert import message_type
from ...sampler.outputs import SamplerOutput
from ...telemetry import BatchCounts
from ...utils.shown import shown
from ..sampler.neighbor_sampler import NeighborSampler
from ..sampler.output_form import Output, moved
from .transform import to_data, to_hetero_data

if TYPE_CHECKING:
    from torch_geometric.data import Data, HeteroData

# What loaders pass on, and a sampler of the program's own has to do itself.
_DEFAULTS: dict[str, Any] = {
    "input_time": None,
    "edge_label_time": None,
    "embeddings": None,
    "locality": None,
    "exclude": None,
    "edge_label_id": None,
    "reverse_eids": None,
    "reverse_etypes": None,
    "edge_format": "edge_index",
    "static_shapes": False,
    "as_pyg_v1": False,
}
_WITHOUT_EFFECT = ("prefetch", "num_threads")


def is_own_sampler(data: Any, sampler: Any, method: str) -> bool:
    """Whether a loader calls a sampler for each batch: one that is no ``NeighborSampler``, or overrides the method."""
    if not isinstance(data, Dataset) or not callable(getattr(sampler, method, None)):
        return False
    known = (getattr(NeighborSampler, method), getattr(core_sampler.NeighborSampler, method))
    return not isinstance(sampler, core_sampler.NeighborSampler) or getattr(type(sampler), method) not in known


def without_settings(options: Mapping[str, Any]) -> dict[str, Any]:
    """A loader's keywords without those that a sampler of the program's own leaves no meaning.

    Raises:
        InvalidArgumentError: one of these is set.
    """
    for name, default in _DEFAULTS.items():
        given = options.get(name, default)
        if given is not default and not (isinstance(default, str) and given == default):
            raise InvalidArgumentError(f"{name}: expected none with an own sampler, which samples, got {shown(given)}")
    return {name: value for name, value in options.items() if name not in {*_DEFAULTS, *_WITHOUT_EFFECT}}


class SamplerSource:
    """Makes batches by a program's sampler; see ``BatchSource``.

    Args:
        sample: gives the sampler's output for seeds or links.
        sampler_input: all of them.
        loader: its ``_collate_fn`` makes the batch of an output; it holds this object.
        device: where the sampler gets seeds; None: in host memory.
    """

    runs_others = True
    uses_gpu = False
    device_cache = None
    looks_ahead = False

    def __init__(
        self,
        sample: Callable[[Any], Any],
        sampler_input: NodeSamplerInput | EdgeSamplerInput,
        loader: Any,
        device: torch.device | None,
    ) -> None:
        self.counts = BatchCounts()
        self._sample, self._input, self._device = sample, sampler_input, device
        self._loader = weakref.ref(loader)

    def sample(self, positions: torch.Tensor, place: tuple[int, int]) -> Any:
        """See ``BatchSource``; the draws are the sampler's."""
        begun = perf_counter_ns()
        seeds = self._input[positions]
        out = self._sample(seeds if self._device is None else seeds.to(self._device))
        nodes, edges = _count(getattr(out, "node", ())), _count(getattr(out, "row", ()))
        self.counts.add_sizes(len(positions), nodes, edges, 0, perf_counter_ns() - begun, 0)
        return out

    def sampling(self, named: Named, count: int) -> AbstractContextManager[Callable[[int], Any]]:
        """See ``BatchSource``."""
        return sampled_in_turn(self, named)

    def cut(self, sampled: Any, *, as_parts: bool = False) -> Any:
        """See ``BatchSource``; no batch has matrices, whose parts ``as_parts`` asks for."""
        loader = self._loader()
        assert loader is not None  # it calls
        begun = perf_counter_ns()
        batch = loader._collate_fn(sampled)
        self.counts.add_times(rows_ns=perf_counter_ns() - begun)
        return batch

    def replace(self, name: str, value: Any, before: Any) -> Any:
        """See ``BatchSource``."""
        if value is before:
            return value
        raise InvalidArgumentError(f"{name}: a loader of a data set keeps what it was made with, make another one")

    def check(self, *, wait: bool = True) -> None:
        """See ``BatchSource``: no GPU makes these batches."""


def _count(ids: Any) -> int:
    """How many there are, of each type or of one; of what has no length, as a program's own output may be, none."""
    if isinstance(ids, dict):
        return sum(map(_count, ids.values()))
    return len(ids) if hasattr(ids, "__len__") else 0


def to_batch(
    data: Dataset, out: Output, edge_dir: Literal["in", "out"], *, input_type: Any, with_labels: bool
) -> Data | HeteroData:
    """A sampler's output with the rows of its nodes and edges, in the form of GraphLearn-for-PyTorch.

    Args:
        data: where rows are looked up.
        out: what a sampler gave.
        edge_dir: the direction of sampling.
        input_type: of the seeds or links, where the output does not say it.
        with_labels: whether seeds have labels, as those of nodes do.
    """
    out = moved(out, torch.device("cpu"))
    of_nodes = functools.partial(_rows, data.get_node_feature)
    of_edges = functools.partial(_rows, data.get_edge_feature)
    of_labels = functools.partial(_rows, data.get_node_label)
    if isinstance(out, SamplerOutput):
        labels = of_labels(None, out.node) if with_labels else None
        return to_data(out, labels, of_nodes(None, out.node), of_edges(None, out.edge))
    out = replace(out, input_type=out.input_type or input_type)
    others: dict[str, Any] = {}
    if isinstance(out.metadata, dict) and isinstance(out.input_type, str):  # of nodes: attributes of the batch
        others = out.metadata
        out = replace(out, metadata=None)
    names = {message_type(edge_type, edge_dir): edge_type for edge_type in data.get_edge_types() or ()}
    x = {key: of_nodes(key, ids) for key, ids in out.node.items()}
    y = {key: of_labels(key, ids) for key, ids in out.node.items() if with_labels and key == out.input_type}
    edge_attr = {key: of_edges(names.get(key, key), ids) for key, ids in (out.edge or {}).items()}
    return to_hetero_data(out, _there(y), _there(x), _there(edge_attr), edge_dir, **others)


def _rows(find: Callable[[Any], Any], key: Any, ids: torch.Tensor | None) -> torch.Tensor | None:
    stored = None if ids is None else find(key)
    return None if stored is None or ids is None else stored[ids.to(torch.int64)]


def _there(rows: Mapping[Any, torch.Tensor | None]) -> dict[Any, torch.Tensor]:
    return {key: value for key, value in rows.items() if value is not None}
