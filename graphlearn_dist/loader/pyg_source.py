"""Batches of PyG's data, as loaders take them: sampled by a sampler of PyG's kind, cut out of the data."""

from __future__ import annotations

import functools
import hashlib
import inspect
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from time import perf_counter_ns
from typing import Any, TypeVar

import numpy as np
import torch

from ..data.dataset import Dataset
from ..data.pyg.pyg_adjacency import edges_of
from ..data.pyg.pyg_levels import count_nodes
from ..data.pyg.store_pairs import is_pyg_data, is_pyg_stores
from ..errors import InvalidArgumentError
from ..sampler.base import EdgeSamplerInput, NodeSamplerInput, SamplingType
from ..sampler.epochs.fingerprint import Settings, config_settings, input_settings
from ..sampler.inputs import to_link_input
from ..sampler.links.exclusion import Exclusion, check_excluded, with_excluded
from ..telemetry import BatchCounts
from ..utils.shown import shown
from ..utils.tensor import host_tensor
from ..utils.values import check_callable
from .batch_source import Named, sampled_in_turn
from .pyg_filter import PygFilter, set_links, set_seeds

_NUM_OF_TRIPLETS = 5  # of a sampler's metadata: positions, three kinds of ends, times
_THREADS = 2  # in the background, as loaders have them
Init = TypeVar("Init", bound=Callable[..., None])


def for_pyg(name: str) -> Callable[[Init], Init]:
    """A constructor that takes data sets, and hands PyG's data, or the stores of a partition directory, on to the
    method ``name`` of its object."""

    def choose(init: Init) -> Init:
        @functools.wraps(init)
        def either(self: Any, data: Any, *args: Any, **kwargs: Any) -> None:
            if isinstance(data, (str, Path)):
                from ..distributed.pyg_stores import stores_of_directory

                data = stores_of_directory(data)
            if is_pyg_data(data):
                if "edge_format" in kwargs:
                    raise InvalidArgumentError(
                        "edge_format: expected none with PyG's data, whose batches have edges in the form that these "
                        "have: of data with adj_t (ToSparseTensor) they have adj_t"
                    )
                self.is_over_pyg = True
                open_pyg = getattr(self, name)
                try:
                    inspect.signature(open_pyg).bind(data, *args, **kwargs)
                except TypeError as error:
                    raise TypeError(f"{init.__qualname__}() {error}") from None
                open_pyg(data, *args, **kwargs)
            elif not isinstance(data, Dataset):
                wanted = "a Dataset, PyG's Data, HeteroData or (FeatureStore, GraphStore), or a partition directory"
                raise InvalidArgumentError(f"data: expected {wanted}, got {type(data).__name__}")
            else:
                init(self, data, *args, **kwargs)

        return either  # type: ignore[return-value]

    return choose


def open_sampler(data: Any, num_neighbors: Any, **settings: Any) -> Any:
    """A ``PyGSampler`` of the data."""
    from ..distributed.pyg_sampler import PyGSampler

    if num_neighbors is None:
        raise InvalidArgumentError("num_neighbors: expected a list with one fan-out per hop, got None")
    if settings["time_attr"] is None:
        settings["temporal_strategy"] = None  # PyG looks at times only where it is told which
    return PyGSampler(data, num_neighbors, **settings)


class PygSource:
    """Makes batches of PyG's data.

    Args:
        data: PyG's data; looked at anew for every batch.
        sampler: a ``PyGSampler``, or any other sampler of PyG's kind.
        input_data: all seeds or links, as PyG's ``NodeSamplerInput`` or ``EdgeSamplerInput``.
        excluding: the links with the edges that their batches leave out, or None.
        neg_sampling: of links, PyG's ``NegativeSampling`` or None.
        custom_cls: what batches of stores are made as, instead of ``Data`` or ``HeteroData``.
        num_threads: threads of one lookup.

    Attributes:
        counts: of its batches; bytes of rows are not known here.
    """

    uses_gpu = False

    def __init__(
        self,
        data: Any,
        sampler: Any,
        input_data: Any,
        *,
        excluding: EdgeSamplerInput | None = None,
        neg_sampling: Any = None,
        custom_cls: Any = None,
        num_threads: int = 1,
    ) -> None:
        self.counts = BatchCounts()
        self.device_cache = None
        self._data = data
        self._is_links = hasattr(input_data, "row")
        self._use_sampler(sampler)
        self._input = input_data
        self._excluding = excluding
        if excluding is not None and not self._is_ours:
            raise InvalidArgumentError(
                f"exclude: expected None with a sampler that knows nothing of it, got one and {type(sampler).__name__}"
            )
        if excluding is not None:
            check_excluded(excluding, sampler.num_edge_ids)
        self._neg_sampling = neg_sampling
        self._custom_cls = custom_cls
        self._num_threads = num_threads
        self._inputs: Settings | None = None  # what says which seeds they are, once somebody has asked
        self._filter = PygFilter(num_threads)

    @property
    def runs_others(self) -> bool:
        """See the class."""
        return not self._is_ours or (is_pyg_stores(self._data) and not hasattr(self._data[0], "edge_tensor_attrs"))

    def _use_sampler(self, sampler: Any) -> None:
        from ..distributed.pyg_sampler import PyGSampler

        method = "sample_from_edges" if self._is_links else "sample_from_nodes"
        if not callable(getattr(sampler, method, None)):
            raise InvalidArgumentError(
                f"{'link' if self._is_links else 'node'}_sampler: expected a sampler as PyG's BaseSampler is one, with "
                f"{method}(), got {shown(sampler)}"
            )
        self._sampler, self._is_ours = sampler, isinstance(sampler, PyGSampler)

    def replace(self, name: str, value: Any, before: Any) -> Any:
        """See ``BatchSource``: rows are cut out of other ``data``, while edges are the sampler's, as in PyG."""
        match name:
            case "data":
                self._use_data(value)
            case "node_sampler" | "link_sampler" if value is not self._sampler:
                if self._excluding is not None:
                    raise InvalidArgumentError(f"{name}: a loader with exclude= keeps the one that it was made with")
                self._use_sampler(value)
            case "input_data":
                kind, ends = ("EdgeSamplerInput", "row") if self._is_links else ("NodeSamplerInput", "node")
                count, given = len(getattr(self._input, ends)), getattr(value, ends, None)
                if given is None or len(given) != count:
                    raise InvalidArgumentError(
                        f"input_data: expected {kind} of {count} seeds, as the loader was made with, got "
                        f"{type(value).__name__}{'' if given is None else f' of {len(given)}'}"
                    )
                self._input = value
            case "neg_sampling" if value is not self._neg_sampling:
                value, strict = cast_negatives(value, None)
                if strict and not (self._is_ours and self._sampler.strict_negatives):
                    raise InvalidArgumentError(
                        "neg_sampling: expected negatives that are not strict, as the loader was made with, or another "
                        "loader"
                    )
                self._neg_sampling = value
            case "custom_cls":
                check_callable("custom_cls", value)
                self._custom_cls = value
        self._inputs = None
        return value

    def _use_data(self, data: Any) -> None:
        if data is self._data:
            return
        before = self._data
        alike = is_pyg_stores(data) == is_pyg_stores(before) and hasattr(data, "node_types") == hasattr(
            before, "node_types"
        )
        if not is_pyg_data(data) or not alike:
            kind = "stores" if is_pyg_stores(before) else type(before).__name__
            raise InvalidArgumentError(f"data: expected PyG's data of the same kind ({kind}), got {shown(data)}")
        self._data, self._filter = data, PygFilter(self._num_threads)

    def threads(self, prefetch: int | None) -> int:
        """Background threads where a program does not say how many: none if they would run others' code."""
        return prefetch if prefetch is not None else 0 if self.runs_others else _THREADS

    def sample(self, positions: torch.Tensor, place: tuple[int, int]) -> Any:
        """The sampler's output for the seeds at some positions, with the draws of a batch (epoch, index)."""
        begun = perf_counter_ns()
        inputs = self._input[positions]
        options: dict[str, Any] = {"place": place} if self._is_ours else {}
        if self._is_links:
            if self._excluding is not None:
                options["excluding"] = self._excluding[positions]
            out = self._sampler.sample_from_edges(inputs, neg_sampling=self._neg_sampling, **options)
        else:
            out = self._sampler.sample_from_nodes(inputs, **options)
        sizes = _count(out.node), _count(out.row)
        self.counts.add_sizes(len(positions), *sizes, row_bytes=0, sample_ns=perf_counter_ns() - begun, rows_ns=0)
        return out

    @property
    def looks_ahead(self) -> bool:
        return False

    def sampling(self, named: Named, count: int) -> AbstractContextManager[Callable[[int], Any]]:
        """See ``BatchSource``."""
        return sampled_in_turn(self, named)

    def cut(self, out: Any, *, as_parts: bool = False) -> Any:
        """The batch of a sampler's output, whose matrices are PyG's own."""
        begun = perf_counter_ns()
        batch = self._filter.batch(self._data, out, self._custom_cls)
        if self._is_links:
            # By what was sampled: a program may set other negatives meanwhile.
            set_links(batch, self._input.input_type, out.metadata, triplets=len(out.metadata) == _NUM_OF_TRIPLETS)
        else:
            set_seeds(batch, self._input.input_type, out.metadata)
        self.counts.add_times(rows_ns=perf_counter_ns() - begun)
        return batch

    def check(self, *, wait: bool = True) -> None:
        """See ``BatchSource``: no GPU makes these batches."""

    def settings(self) -> Settings:
        """What the batches are a function of, besides epoch, index and the order of the seeds, which a loader knows."""
        given = self._input
        if self._inputs is None:
            self._inputs = self._input_settings()
        inputs = self._inputs | ({"neg_sampling": self._described_negatives()} if self._is_links else {})
        if not self._is_ours:
            return {"sampler": type(self._sampler).__name__, **inputs}
        kind = SamplingType.LINK if self._is_links else SamplingType.NODE
        config = self._sampler.config(kind, timed=given.time is not None, with_neg=self._neg_sampling is not None)
        subgraph = {"subgraph_type": self._sampler.subgraph_type.value}
        return config_settings(config, self._sampler.schema) | subgraph | inputs

    def _input_settings(self) -> Settings:
        given = self._input
        if not self._is_links:
            return input_settings(NodeSamplerInput(given.node, given.input_type, given.time))
        links = EdgeSamplerInput(given.row, given.col, given.label, given.input_type, None, given.time)
        return input_settings(with_excluded(links, self._excluding))

    def _described_negatives(self) -> str:
        if self._neg_sampling is None:
            return "None"
        weights = (self._neg_sampling.src_weight, self._neg_sampling.dst_weight)
        digest = hashlib.blake2b(digest_size=8)
        for weight in weights:
            digest.update(b"" if weight is None else np.ascontiguousarray(weight.cpu().numpy()).tobytes())
        strict = ", strict" if self._is_ours and self._sampler.strict_negatives else ""
        return f"{self._neg_sampling.mode.value}, {self._neg_sampling.amount}, {digest.hexdigest()}{strict}"


def _count(found: Any) -> int:
    """Entries of a tensor, or of all in a dict by type."""
    return sum(map(len, found.values())) if isinstance(found, dict) else 0 if found is None else len(found)


def node_counter(data: Any, sampler: Any) -> Callable[[Any, Any], int]:
    """Gives the number of nodes of a type (None: the one unnamed) that a program has named by ``input_nodes``.

    It raises an ``InvalidArgumentError`` where there is no such type.
    """
    from ..distributed.pyg_sampler import PyGSampler

    def check_named(node_type: Any, given: Any, known: Sequence[Any]) -> None:
        if node_type is None and None not in known:
            got = "None" if given is None else type(given).__name__
            raise InvalidArgumentError(
                f"input_nodes: expected a node type or (node type, ids), got {got}; the data have {list(known)}"
            )

    def of_sampler(node_type: Any, given: Any) -> int:
        schema = sampler.schema
        check_named(node_type, given, schema.node_types)
        return int(schema.num_nodes[schema.node_type_index(node_type, "input_nodes")])

    def of_data(node_type: Any, given: Any) -> int:
        if is_pyg_stores(data):
            from torch_geometric.data.remote_backend_utils import num_nodes

            return int(num_nodes(*data, node_type) if node_type is not None else sampler.num_nodes)
        typed = hasattr(data, "node_types")
        check_named(node_type, given, data.node_types if typed else [None])
        if (node_type not in data.node_types) if typed else node_type is not None:
            known = list(data.node_types) if typed else "no named types"
            raise InvalidArgumentError(f"input_nodes: unknown node type {node_type!r}; the data have {known}")
        return count_nodes(data, node_type)

    return of_sampler if isinstance(sampler, PyGSampler) else of_data


def node_input(data: Any, input_nodes: Any, input_time: Any, input_id: Any, count: Callable[[Any, Any], int]) -> Any:
    """PyG's ``NodeSamplerInput`` of what its loaders take as ``input_nodes``.

    Args:
        data: PyG's data.
        input_nodes: ids (a tensor, array, list or range), a mask, None for all nodes, a node type for all of its, or
            ``(node type, one of these)``.
        input_time: times of the seeds, or None.
        input_id: what batches call the seeds, or None: their positions, or of a mask their ids.
        count: gives the number of nodes of a type, and is told ``input_nodes``.

    Raises:
        InvalidArgumentError: none of these; a typed graph without a type; not as many times or names as seeds.
    """
    from torch_geometric.sampler import NodeSamplerInput as PygInput

    node_type, nodes = None, input_nodes
    if isinstance(input_nodes, str):
        node_type, nodes = input_nodes, None
    elif isinstance(input_nodes, (tuple, list)) and len(input_nodes) == 2 and isinstance(input_nodes[0], str):
        node_type, nodes = input_nodes
    num_nodes = count(node_type, input_nodes)
    if nodes is None:
        ids = torch.arange(num_nodes)
    else:
        ids = _ids(nodes, "input_nodes")
        if ids.dtype == torch.bool:
            if ids.shape != (num_nodes,):
                raise InvalidArgumentError(f"input_nodes: expected a mask [{num_nodes}], got {list(ids.shape)}")
            ids = ids.nonzero().view(-1)
            input_id = ids if input_id is None else input_id
    input_time, input_id = _on_host(input_time, "input_time"), _on_host(input_id, "input_id")
    for name, given in (("input_time", input_time), ("input_id", input_id)):
        if given is not None and (not isinstance(given, torch.Tensor) or given.shape != ids.shape):
            wanted = f"a tensor with one entry for each of {len(ids)} seeds"
            raise InvalidArgumentError(f"{name}: expected {wanted}, got {shown(given)}")
    return PygInput(input_id, ids, input_time, node_type)


def _on_host(given: Any, name: str) -> Any:
    """What lies on a GPU in host memory, where the host samples; else as it is."""
    return host_tensor(given, name) if isinstance(given, torch.Tensor) and given.is_cuda else given


def _ids(given: Any, name: str) -> torch.Tensor:
    try:
        is_data = isinstance(given, (torch.Tensor, np.ndarray))
        ids = given if isinstance(given, torch.Tensor) else torch.as_tensor(given if is_data else list(given))
    except (TypeError, ValueError, RuntimeError) as error:
        raise InvalidArgumentError(f"{name}: expected ids or a mask, got {type(given).__name__}") from error
    ids = host_tensor(ids, name)
    if ids.numel() == 0 and ids.dtype != torch.bool:
        ids = ids.to(torch.int64)
    if ids.dim() != 1 or ids.is_floating_point() or ids.is_complex():
        raise InvalidArgumentError(f"{name}: expected integer ids [n] or a mask, got {ids.dtype} {list(ids.shape)}")
    return ids if ids.dtype == torch.bool else ids.to(torch.int64)


def link_input(
    data: Any, edge_label_index: Any, edge_label: Any, edge_label_time: Any, neg_sampling: Any, input_id: Any
) -> Any:
    """PyG's ``EdgeSamplerInput`` of what its loaders take as links; see ``link_index``.

    With binary negatives, whose label is 0, labels that begin at 0 are raised by one.

    Args:
        data: PyG's data.
        edge_label_index: the links.
        edge_label: ``[n, ...]``, or None.
        edge_label_time: times of the links, or None.
        neg_sampling: PyG's ``NegativeSampling``, or None.
        input_id: what batches call the links, or None: their positions.

    Raises:
        InvalidArgumentError: not as many labels, times or names as links; labels beside triplets.
    """
    from torch_geometric.sampler import EdgeSamplerInput as PygInput

    edge_type, links = link_index(data, edge_label_index)
    count = links.size(1)
    edge_label, edge_label_time, input_id = (
        _on_host(given, name)
        for name, given in (("edge_label", edge_label), ("edge_label_time", edge_label_time), ("input_id", input_id))
    )
    for name, given in (("edge_label", edge_label), ("edge_label_time", edge_label_time), ("input_id", input_id)):
        if given is not None and (not isinstance(given, torch.Tensor) or given.dim() < 1 or len(given) != count):
            wanted = f"a tensor with one entry for each of {count} links"
            raise InvalidArgumentError(f"{name}: expected {wanted}, got {shown(given)}")
    if edge_label is not None and neg_sampling is not None:
        if neg_sampling.is_triplet():
            raise InvalidArgumentError("edge_label: expected None with triplet negatives, which have no labels")
        if edge_label.numel() and edge_label.min() == 0:
            edge_label = edge_label + 1
    return PygInput(input_id, links[0], links[1], edge_label, edge_label_time, edge_type)


def excluding_links(
    links: Any, exclusion: Exclusion | None, edge_label_id: Any, edge_label_index: Any
) -> EdgeSamplerInput | None:
    """PyG's links with the edges that their batches leave out; None where nothing is excluded.

    The id of an edge is its position among the edges of the data.

    Raises:
        InvalidArgumentError: links that are given as pairs have no ids.
    """
    named = edge_label_index[1] if isinstance(edge_label_index, (tuple, list)) else edge_label_index
    if exclusion is not None and edge_label_id is None and (named is None or isinstance(named, str)):
        edge_label_id = torch.arange(len(links.row))
    pairs = links.input_type, torch.stack([links.row, links.col])
    made = to_link_input(pairs, exclusion=exclusion, edge_label_id=edge_label_id)
    return None if exclusion is None else made


def link_index(data: Any, edge_label_index: Any) -> tuple[Any, torch.Tensor]:
    """The edge type (None in a homogeneous graph) and the links ``[2, n]`` of what PyG's loaders take as
    ``edge_label_index``: a tensor or array, None for all edges, an edge type for all of its, or ``(edge type, one of
    these)``. An edge type may leave its relation out where there is one between its nodes.

    Raises:
        InvalidArgumentError: none of these, or an edge type that is not there.
    """
    edge_type, index = None, edge_label_index
    if isinstance(edge_label_index, (tuple, list)) and edge_label_index:
        if all(isinstance(part, str) for part in edge_label_index):
            edge_type, index = edge_label_index, None
        elif len(edge_label_index) == 2 and isinstance(edge_label_index[0], (tuple, list, type(None), str)):
            first = edge_label_index[0]
            if first is None or (first and all(isinstance(part, str) for part in first)):
                edge_type, index = edge_label_index
    stores = _edge_stores(data)
    if edge_type is not None:
        edge_type = _canonical(edge_type, stores, must_be_there=index is None)
    elif stores and None not in stores:
        raise InvalidArgumentError(
            f"edge_label_index: expected an edge type, or (edge type, links), got "
            f"{type(edge_label_index).__name__}; the data have {list(stores)}"
        )
    if index is None:
        if edge_type not in stores:
            raise InvalidArgumentError("edge_label_index: expected links, as the data have no edges, got None")
        index = stores[edge_type]()
    is_pair = isinstance(index, (tuple, list)) and all(isinstance(end, torch.Tensor) for end in index)
    ends = [_on_host(end, "edge_label_index") for end in (index if is_pair else [index])]
    try:
        links = (
            torch.stack(ends) if is_pair else torch.as_tensor(np.asarray(index) if isinstance(index, list) else ends[0])
        )
    except (TypeError, ValueError, RuntimeError) as error:
        raise InvalidArgumentError(f"edge_label_index: expected links [2, n], got {type(index).__name__}") from error
    if links.dim() != 2 or links.size(0) != 2 or links.is_floating_point():
        raise InvalidArgumentError(f"edge_label_index: expected links [2, n], got {links.dtype} {list(links.shape)}")
    return edge_type, links


def _edge_stores(data: Any) -> dict[Any, Callable[[], torch.Tensor]]:
    """By edge type, what gives its edges."""
    if not is_pyg_stores(data):
        if hasattr(data, "edge_types"):
            return {key: functools.partial(_edges, data[key]) for key in data.edge_types}
        return {} if edges_of(data._store) is None else {None: lambda: _edges(data._store)}
    graph = data[1]

    def edges(edge_type: Any) -> torch.Tensor:
        row, col, _ = graph.coo() if edge_type is None else graph.coo([edge_type])
        pair = (row, col) if edge_type is None else (row[edge_type], col[edge_type])
        return torch.stack([torch.as_tensor(end) for end in pair])

    return {attr.edge_type: functools.partial(edges, attr.edge_type) for attr in graph.get_all_edge_attrs()}


def _edges(store: Any) -> torch.Tensor:
    """The edges of a storage; of a type without any, none."""
    edges = edges_of(store)
    return torch.empty(2, 0, dtype=torch.int64) if edges is None else edges


def _canonical(parts: Sequence[str], known: Any, *, must_be_there: bool) -> tuple[str, str, str]:
    """The edge type that is meant by its three parts, or by source and target where there is one between these.

    Where there is none, its relation is PyG's ``"to"``, if links of it are given.
    """
    if len(parts) == 2:
        found = [key for key in known if (key[0], key[2]) == tuple(parts)]
        if not found and not must_be_there:
            return parts[0], "to", parts[1]
        if len(found) != 1:
            raise InvalidArgumentError(
                f"edge_label_index: expected one edge type from {parts[0]!r} to {parts[1]!r}, got {found}"
            )
        return found[0]  # type: ignore[no-any-return]
    if len(parts) != 3 or (must_be_there and tuple(parts) not in known):
        raise InvalidArgumentError(f"edge_label_index: unknown edge type {tuple(parts)}; the data have {list(known)}")
    return tuple(parts)  # type: ignore[return-value]


def cast_negatives(neg_sampling: Any, ratio: float | None) -> tuple[Any, bool]:
    """PyG's ``NegativeSampling`` (or None) of what loaders take for it, and whether no negative may be an edge.

    That is PyG's own or ours, a mode, or a tuple or dict of arguments; ``ratio`` is PyG's older way to say binary.

    Raises:
        InvalidArgumentError: an unknown mode, an amount out of range, or weights that cannot be weights.
    """
    from torch_geometric.sampler import NegativeSampling as PygNegatives

    from ..sampler.links.negative_sampling import NegativeSampling

    if ratio is not None and ratio != 0.0:
        neg_sampling = ("binary", ratio)
    strict = isinstance(neg_sampling, NegativeSampling) and neg_sampling.strict
    if isinstance(neg_sampling, NegativeSampling):
        ours = neg_sampling
        neg_sampling = PygNegatives(ours.mode.value, ours.amount, ours.src_weight, ours.weight)  # type: ignore[union-attr]
    try:
        return PygNegatives.cast(neg_sampling) if neg_sampling is not None else None, strict
    except (ValueError, TypeError) as error:
        raise InvalidArgumentError(f"neg_sampling: {error}") from error
