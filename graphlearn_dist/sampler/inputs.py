"""From what a user calls "input nodes" and "edge label index" to seeds and links."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch

from ..core import check_index_tensor, check_index_vector
from ..data.dataset import Dataset
from ..data.schema import GraphSchema
from ..errors import InvalidArgumentError
from ..typing import EdgeType, NodeType, Split
from ..utils.message_types import register_message
from ..utils.shown import shown
from ..utils.tensor import convert_to_tensor, from_array, host_tensor
from .base import (
    EdgeSamplerInput,
    NegativeSampling,
    NodeSamplerInput,
    RemoteAllNodesSamplerInput,
    RemoteNodePathSamplerInput,
    RemoteNodeSplitSamplerInput,
    RemoteSamplerInput,
    SamplerInput,
)
from .links.exclusion import Exclusion, check_edge_ids, check_excluded, to_exclusion
from .links.negative_sampling import negatives_of

_FILE_SUFFIXES = (".npy", ".pt")
Seeds = TypeVar("Seeds", NodeSamplerInput, EdgeSamplerInput)


def to_sampler_input(input_nodes: Any, input_time: Any = None) -> NodeSamplerInput | RemoteSamplerInput:
    """Makes seeds of what a loader is given as its input nodes.

    That is ids int ``[n]`` (a tensor, array, list or range), a boolean mask, a ``Split``, a file of ids, None for all
    nodes, or ``(node type, one of these)``; a node type alone stands for all its nodes. A file is a ``Path``, or text
    that ends in ``.npy`` or ``.pt`` or has a type beside it.

    Ids and the length of a mask are checked against the graph where the graph is; dtypes and shapes are checked here.

    Args:
        input_nodes: see above.
        input_time: int64 ``[n]``, times of the seeds (of a mask: of the nodes it selects); None where they have none.

    Raises:
        InvalidArgumentError: none of these, or not one time for each seed.
        UnknownIdError: a negative id.
    """
    if isinstance(input_nodes, (NodeSamplerInput, RemoteSamplerInput)):
        if input_time is not None:
            raise InvalidArgumentError(
                f"input_time: expected None beside a {type(input_nodes).__name__}, which has times of its own or none"
            )
        return input_nodes
    node_type, input_nodes = _split_node_type(input_nodes)
    if input_nodes is None or isinstance(input_nodes, (Split, Path)):
        if input_time is not None:
            raise InvalidArgumentError("input_time: expected None unless the seeds are given as ids or as a mask")
        match input_nodes:
            case None:
                return RemoteAllNodesSamplerInput(node_type)
            case Split():
                return RemoteNodeSplitSamplerInput(input_nodes, node_type)
            case _:
                return RemoteNodePathSamplerInput(str(input_nodes), node_type)
    if isinstance(input_nodes, (list, range)):
        numbers = convert_to_tensor(list(input_nodes), name="input_nodes")
        input_nodes = numbers if len(input_nodes) else numbers.to(torch.int64)
    elif isinstance(input_nodes, np.ndarray):
        input_nodes = from_array(input_nodes, "input_nodes")
    mask_length = None
    if isinstance(input_nodes, torch.Tensor) and input_nodes.dtype == torch.bool:
        input_nodes = host_tensor(input_nodes, "input_nodes")
        if input_nodes.dim() != 1:
            raise InvalidArgumentError(f"input_nodes: expected a mask [num_nodes], got {tuple(input_nodes.shape)}")
        mask_length = input_nodes.numel()
        input_nodes = input_nodes.nonzero().view(-1)
    node = check_index_tensor(input_nodes, "input_nodes", what="node id").to(torch.int64)
    times = _checked_times(input_time, node.numel(), "input_time")
    ids = None if mask_length is None else node  # in PyG too, a mask's seed is its node
    return NodeSamplerInput(node, node_type, times, ids, mask_length=mask_length)


def to_sampler_inputs(input_nodes: Any, input_time: Any = None) -> SamplerInput | list[SamplerInput]:
    """As ``to_sampler_input``; a list of them, or ``(node type, list)``, has one for each server.

    Raises:
        InvalidArgumentError: see there; or times beside a list, whose entries have times of their own.
    """
    node_type, entries = _split_node_type(input_nodes)
    if not isinstance(entries, list):
        return to_sampler_input(input_nodes, input_time)
    if input_time is not None:
        raise InvalidArgumentError("input_time: expected None beside a list; a NodeSamplerInput in it may have times")
    if any(isinstance(entry, int) for entry in entries):
        raise InvalidArgumentError(
            "input_nodes: expected a torch.Tensor of ids, got list of numbers; a list has one entry for each server"
        )
    if node_type is None:
        return [to_sampler_input(entry) for entry in entries]
    is_named = [isinstance(entry, (NodeSamplerInput, RemoteSamplerInput)) for entry in entries]
    return [e if named else to_sampler_input((node_type, e)) for e, named in zip(entries, is_named, strict=True)]


def _split_node_type(input_nodes: Any) -> tuple[NodeType | None, Any]:
    """The node type (None if unnamed) and the rest: text that names a file as a ``Path``, that names a type as None."""
    node_type = None
    if isinstance(input_nodes, tuple) and len(input_nodes) == 2 and isinstance(input_nodes[0], str):
        node_type, input_nodes = input_nodes
    if isinstance(input_nodes, str):
        if node_type is not None or input_nodes.endswith(_FILE_SUFFIXES):
            return node_type, Path(input_nodes)
        return input_nodes, None
    return node_type, input_nodes


def concatenate_inputs(inputs: Sequence[NodeSamplerInput | EdgeSamplerInput]) -> NodeSamplerInput | EdgeSamplerInput:
    """One input whose seeds (or links) are those of all of them, in this order.

    Raises:
        InvalidArgumentError: there are none, or they are not of one kind: of one type, all with or all without times,
            labels, and the same negatives.
    """
    if not inputs:
        raise InvalidArgumentError("input_nodes: expected at least one input, got an empty list")
    kinds = [_kind_of(one) for one in inputs]
    if any(kind != kinds[0] for kind in kinds):
        other = next(i for i, kind in enumerate(kinds) if kind != kinds[0])
        raise InvalidArgumentError(
            f"input_nodes: expected inputs of one kind, got {kinds[0]} at position 0 and {kinds[other]} at {other}"
        )
    if any(getattr(one, "input_id", None) is None for one in inputs):  # then they are positions in the whole
        inputs = [replace(one, input_id=None) if isinstance(one, NodeSamplerInput) else one for one in inputs]
    first = inputs[0]
    names = [field.name for field in fields(first) if isinstance(getattr(first, field.name), torch.Tensor)]
    joined: dict[str, Any] = {name: torch.cat([getattr(one, name) for one in inputs]) for name in names}
    if isinstance(first, NodeSamplerInput):
        lengths = sorted({one.mask_length for one in inputs if isinstance(one, NodeSamplerInput) and one.mask_length})
        if len(lengths) > 1:
            raise InvalidArgumentError(f"input_nodes: expected masks of one length, got lengths {lengths}")
        first = replace(first, mask_length=lengths[0] if lengths else None)
    return replace(first, **joined)


def has_times(sampler_input: SamplerInput | list[SamplerInput]) -> bool:
    """Whether seeds or links (the first of a list) have times."""
    one = sampler_input[0] if isinstance(sampler_input, list) and sampler_input else sampler_input
    return getattr(one, "time", None) is not None


def has_exclusion(sampler_input: SamplerInput | list[SamplerInput]) -> bool:
    """Whether batches leave out edges of their links (the first of a list)."""
    one = sampler_input[0] if isinstance(sampler_input, list) and sampler_input else sampler_input
    return any(getattr(one, name, None) is not None for name in ("exclusion", "excluded", "excluded_reverse"))


def has_negatives(sampler_input: SamplerInput | list[SamplerInput]) -> bool:
    """Whether negatives are drawn for links (the first of a list)."""
    one = sampler_input[0] if isinstance(sampler_input, list) and sampler_input else sampler_input
    return getattr(one, "neg_sampling", None) is not None


def _kind_of(one: NodeSamplerInput | EdgeSamplerInput) -> dict[str, Any]:
    """What inputs that can be concatenated have in common."""
    own = ("input_id", "mask_length")
    values = {field.name: getattr(one, field.name) for field in fields(one) if field.name not in own}
    given = {name: isinstance(value, torch.Tensor) or value for name, value in values.items()}
    return {"class": type(one).__name__, **{name: value for name, value in given.items() if value is not None}}


def to_link_input(
    edge_label_index: Any,
    edge_label: torch.Tensor | None = None,
    neg_sampling: Any = None,
    edge_label_time: Any = None,
    exclusion: Exclusion | None = None,
    edge_label_id: Any = None,
) -> EdgeSamplerInput:
    """Makes links of ``edge_label_index`` int ``[2, n]`` (a tensor or array), or ``(edge type, that)``.

    Labels of positives are shifted up by one where binary negatives are drawn and a label is 0, which is then the label
    of negatives.

    Args:
        edge_label_index: sources and targets, whatever the direction of sampling.
        edge_label: ``[n, ...]``, or None.
        neg_sampling: a ``NegativeSampling`` (PyG's, too), its mode, or a tuple or dict of its arguments; None: none.
        edge_label_time: int64 ``[n]``, or None.
        exclusion: which edges batches leave out, or None.
        edge_label_id: int64 ``[n]``, the ids of the links among the edges of their type, -1 for a link that is none;
            there where edges are left out.

    Raises:
        InvalidArgumentError: wrong types, shapes or lengths, labels together with triplets, or an exclusion of links
            whose ids are not known.
        UnknownIdError: a negative id.
    """
    edge_type, index = _split_edge_type(edge_label_index)
    if isinstance(index, np.ndarray):
        index = from_array(index, "edge_label_index")
    if not isinstance(index, torch.Tensor) or index.dim() != 2 or index.size(0) != 2:
        got = tuple(index.shape) if isinstance(index, torch.Tensor) else type(index).__name__
        raise InvalidArgumentError(f"edge_label_index: expected a tensor [2, n], or (edge type, that), got {got}")
    index = host_tensor(index, "edge_label_index")
    row, col = (check_index_tensor(ids, "edge_label_index", what="node id").to(torch.int64) for ids in index)
    sampling = negatives_of(neg_sampling)
    if edge_label is not None:
        if isinstance(edge_label, np.ndarray):
            edge_label = from_array(edge_label, "edge_label")
        if not isinstance(edge_label, torch.Tensor) or edge_label.dim() < 1 or edge_label.size(0) != row.numel():
            got = tuple(edge_label.shape) if isinstance(edge_label, torch.Tensor) else type(edge_label).__name__
            wanted = f"a tensor or array with a label for each of {row.numel()} links"
            raise InvalidArgumentError(f"edge_label: expected {wanted}, got {got}")
        edge_label = host_tensor(edge_label, "edge_label").contiguous()
        if sampling is not None and sampling.is_triplet():
            raise InvalidArgumentError("edge_label: expected None with triplet negatives, which have no labels")
        if sampling is not None and edge_label.numel() and edge_label.min() == 0:
            edge_label = edge_label + 1
    times = _checked_times(edge_label_time, row.numel(), "edge_label_time")
    made = EdgeSamplerInput(row, col, edge_label, edge_type, sampling, times)
    if (exclusion is None) != (edge_label_id is None):
        raise InvalidArgumentError(
            "edge_label_id: expected the ids of the links with exclude, and None without, as edges are known by their "
            f"ids; got {'none' if edge_label_id is None else 'some'}"
        )
    return made if exclusion is None else exclusion.of(made, check_edge_ids(edge_label_id, "edge_label_id", len(made)))


@register_message
@dataclass(frozen=True)
class RemoteAllEdgesSamplerInput(RemoteSamplerInput):
    """All edges of one type of the server's data set, in the order of their ids.

    Attributes:
        input_type: the edge type; None where the graph has one unnamed type.
        label: ``[num_edges, ...]``, labels in that order, or None; see ``to_link_input``.
        neg_sampling: which negatives are drawn.
        time: int64 ``[num_edges]``, or None.
        exclusion: which edges batches leave out, or None.
    """

    input_type: EdgeType | None = None
    label: torch.Tensor | None = None
    neg_sampling: NegativeSampling | None = None
    time: torch.Tensor | None = None
    exclusion: Exclusion | None = None

    def to_local_sampler_input(self, dataset: Dataset, **kwargs: Any) -> EdgeSamplerInput:
        """The links, from a data set that has all edges; or of these as ``edges``: ids, sources, targets."""
        edge_type_index(dataset.schema, self.input_type, "edge_label_index")
        edge_ids, links = by_edge_id(*(kwargs.get("edges") or dataset.edges(self.input_type)))
        ids = None if self.exclusion is None else edge_ids
        return to_link_input((self.input_type, links), self.label, self.neg_sampling, self.time, self.exclusion, ids)


def to_remote_link_input(
    edge_label_index: Any,
    edge_label: torch.Tensor | None = None,
    neg_sampling: Any = None,
    edge_label_time: Any = None,
    edge_label_id: Any = None,
    *,
    exclude: str | None = None,
    reverse_eids: Any = None,
    reverse_etypes: Any = None,
) -> EdgeSamplerInput | RemoteAllEdgesSamplerInput:
    """As ``to_link_input``; an edge type alone, or None, names all its edges, which are looked up where they are.

    ``exclude`` and what belongs to it are the arguments of ``to_exclusion``.
    """
    edge_type, index = _split_edge_type(edge_label_index)
    exclusion = to_exclusion(exclude, edge_type, reverse_eids, reverse_etypes)
    if index is not None:
        return to_link_input(edge_label_index, edge_label, neg_sampling, edge_label_time, exclusion, edge_label_id)
    if edge_label_id is not None:
        raise InvalidArgumentError("edge_label_id: expected None, as all edges of a type know theirs, got some")
    return RemoteAllEdgesSamplerInput(edge_type, edge_label, negatives_of(neg_sampling), edge_label_time, exclusion)


def get_edge_label_index(data: Dataset, edge_label_index: Any) -> tuple[EdgeType | None, torch.Tensor]:
    """The edge type of links, and the links, int ``[2, num_links]``.

    Args:
        data: where edges are looked up.
        edge_label_index: a tensor; an edge type or None (in a homogeneous graph) for all edges, in the order of their
            ids; or ``(edge type, tensor or None)``.

    Raises:
        InvalidArgumentError: an edge type that the data set does not have, or none where it has several.
    """
    edge_type, index = _split_edge_type(edge_label_index)
    edge_type_index(data.schema, edge_type, "edge_label_index")
    if index is not None:
        return edge_type, index
    return edge_type, by_edge_id(*data.edges(edge_type))[1]


def by_edge_id(edge_ids: torch.Tensor, source: torch.Tensor, target: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids int ``[n]`` and edges int ``[2, n]``, in the order of the ids."""
    edge_ids, order = torch.sort(edge_ids)
    return edge_ids, torch.stack([source[order], target[order]])


def _split_edge_type(edge_label_index: Any) -> tuple[EdgeType | None, Any]:
    if isinstance(edge_label_index, (tuple, list)):
        if len(edge_label_index) == 3 and all(isinstance(part, str) for part in edge_label_index):
            source, relation, target = edge_label_index
            return (source, relation, target), None
        if len(edge_label_index) == 2 and isinstance(edge_label_index[0], (tuple, list, type(None))):
            named = edge_label_index[0] or ()
            if named and len(named) != 3 and all(isinstance(part, str) for part in named):
                raise InvalidArgumentError(
                    f"edge_label_index: expected an edge type (source, relation, target), got {shown(named)}"
                )
            return _split_edge_type(edge_label_index[0])[0], edge_label_index[1]
        if len(edge_label_index) == 2 and all(isinstance(part, torch.Tensor) for part in edge_label_index):
            ends = [check_index_vector(part, "edge_label_index") for part in edge_label_index]
            if ends[0].shape != ends[1].shape:
                raise InvalidArgumentError(
                    f"edge_label_index: expected as many sources as targets, got {len(ends[0])} and {len(ends[1])}"
                )
            return None, torch.stack(ends)
    return None, edge_label_index


def edge_type_index(schema: GraphSchema, edge_type: EdgeType | None, name: str) -> int:
    """The number of an edge type.

    Raises:
        InvalidArgumentError: there is no such type; the error names the argument ``name``.
    """
    if edge_type not in schema.edge_types:
        known = "no named types" if schema.edge_types == (None,) else ", ".join(map(str, schema.edge_types))
        raise InvalidArgumentError(f"{name}: unknown edge type {edge_type!r}; the data set has {known}")
    return schema.edge_types.index(edge_type)


def _checked_times(times: Any, count: int, name: str) -> torch.Tensor | None:
    if times is None:
        return None
    if not isinstance(times, torch.Tensor) or times.dtype not in (torch.int32, torch.int64):
        got = times.dtype if isinstance(times, torch.Tensor) else type(times).__name__
        raise InvalidArgumentError(f"{name}: expected a tensor of dtype int64, got {got}")
    if times.shape != (count,):
        raise InvalidArgumentError(f"{name}: expected one time for each of {count} seeds, got {tuple(times.shape)}")
    return host_tensor(times, name).to(torch.int64).contiguous()


def resolve_input(
    sampler_input: NodeSamplerInput | EdgeSamplerInput | RemoteSamplerInput, dataset: Dataset
) -> NodeSamplerInput | EdgeSamplerInput:
    """Looks up seeds that were named, and checks all of them against the graph.

    Raises:
        InvalidArgumentError: an unknown type, or wrong dtypes, shapes or lengths.
        UnknownIdError: an id outside the graph.
    """
    if isinstance(sampler_input, RemoteSamplerInput):
        sampler_input = sampler_input.to_local_sampler_input(dataset)
    sampler_input = check_input(sampler_input, dataset.schema)
    if isinstance(sampler_input, EdgeSamplerInput):
        check_excluded(sampler_input, dataset.num_edge_ids)
    return sampler_input


def check_input(
    sampler_input: NodeSamplerInput | EdgeSamplerInput, schema: GraphSchema
) -> NodeSamplerInput | EdgeSamplerInput:
    """Checks seeds against types and counts; raises as ``resolve_input``."""
    if isinstance(sampler_input, NodeSamplerInput):
        _check_ids(schema, sampler_input.node, sampler_input.input_type, "input_nodes")
        count = schema.num_nodes[schema.node_type_index(sampler_input.input_type, "input_nodes")]
        if sampler_input.mask_length not in (None, count):
            raise InvalidArgumentError(f"input_nodes: expected a mask [{count}], got [{sampler_input.mask_length}]")
        return _with_times(sampler_input, _checked_times(sampler_input.time, len(sampler_input), "input_time"))
    edge_type_index(schema, sampler_input.input_type, "edge_label_index")
    ends = (None, None) if sampler_input.input_type is None else sampler_input.input_type[::2]
    for ids, node_type in zip((sampler_input.row, sampler_input.col), ends, strict=True):
        _check_ids(schema, ids, node_type, "edge_label_index")
    if sampler_input.row.shape != sampler_input.col.shape:
        raise InvalidArgumentError(
            f"edge_label_index: expected as many sources as targets, got {sampler_input.row.numel()} and "
            f"{sampler_input.col.numel()}"
        )
    times = _checked_times(sampler_input.time, len(sampler_input), "edge_label_time")
    for name in ("excluded", "excluded_reverse"):
        if (edge_ids := getattr(sampler_input, name)) is not None:
            check_edge_ids(edge_ids, name, len(sampler_input))
    return _with_times(sampler_input, times)


def _with_times(inputs: Seeds, times: torch.Tensor | None) -> Seeds:
    """The same seeds or links with times as the core reads them; itself where they are so already."""
    return inputs if times is inputs.time else replace(inputs, time=times)


def _check_ids(schema: GraphSchema, ids: Any, node_type: str | None, name: str) -> None:
    count = schema.num_nodes[schema.node_type_index(node_type, name)]
    check_index_tensor(ids, name, num_ids=count, what="node id")


def check_direction(schema: GraphSchema, edge_dir: str | None) -> None:
    """Refuses a loader that wants the neighbors which this data set does not hold; None wants those that it holds."""
    if edge_dir is not None and schema.edge_dir != edge_dir:
        strategy = {"in": "by_dst", "out": "by_src"}[edge_dir]
        raise InvalidArgumentError(
            f"edge_dir: the data set holds {schema.edge_dir!r}-neighbors, the loader asks for {edge_dir!r}; build it "
            f"with edge_dir={edge_dir!r} (partitions: edge_assign_strategy={strategy!r})"
        )
