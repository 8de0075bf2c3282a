"""Everything that crosses a process, as frozen dataclasses.

Node and edge types are small integers here: positions in the data set's lists of types. A homogeneous graph has one
of each. Tuples "by node type" and "by edge type" are indexed by them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from .utils.message_types import register_message


@register_message
@dataclass(frozen=True)
class Adjacency:
    """Edges of one type by the node that they were sampled for.

    Attributes:
        offsets: int32 ``[num_nodes + 1]``, by the position of such a node, where its edges begin.
        rows: int32 ``[num_edges]``, local positions of the neighbors, ascending among those of one node.
    """

    offsets: torch.Tensor
    rows: torch.Tensor

    def cols(self) -> torch.Tensor:
        """int64 ``[num_edges]``, local position of the node that each edge was sampled for."""
        return torch.arange(self.offsets.numel() - 1, device=self.rows.device).repeat_interleave(self.offsets.diff())


@register_message
@dataclass(frozen=True)
class Subgraph:
    """A sampled multi-hop neighborhood.

    Attributes:
        nodes: by node type, int64 ``[num_nodes]``, global ids; the seeds come first, in the order asked.
        edge_index: by edge type, int64 ``[2, num_edges]``, contiguous: local positions of the neighbors, and of the
            nodes that they were sampled for. None at all where there are adjacencies.
        edge_ids: by edge type, int64 ``[num_edges]``, global; None unless asked for.
        num_sampled_nodes: by node type, new nodes per hop; entry 0 are the seeds.
        num_sampled_edges: by edge type, edges per hop.
        trees: by node type, int64 ``[num_nodes]``, the seed (or link) whose tree each node stands in; None unless
            disjoint.
        adjacency: by edge type, the edges in another form; none at all where there is ``edge_index``.
        unwritten: by edge type, what ``edge_index``, memory that nobody has written yet, is to be written by (a
            ``_C.EdgeRuns``), or None; none at all where all is written. A batch travels only when it is.
    """

    nodes: tuple[torch.Tensor, ...]
    edge_index: tuple[torch.Tensor, ...]
    edge_ids: tuple[torch.Tensor | None, ...]
    num_sampled_nodes: tuple[tuple[int, ...], ...]
    num_sampled_edges: tuple[tuple[int, ...], ...]
    trees: tuple[torch.Tensor | None, ...]
    adjacency: tuple[Adjacency, ...] = ()
    unwritten: tuple[Any, ...] = ()

    @property
    def rows(self) -> tuple[torch.Tensor, ...]:
        """By edge type, int64 ``[num_edges]``, local position of the neighbor."""
        return tuple(pair[0] for pair in self.edge_index) or tuple(each.rows.long() for each in self.adjacency)

    @property
    def cols(self) -> tuple[torch.Tensor, ...]:
        """By edge type, int64 ``[num_edges]``, local position of the node it was sampled for."""
        return tuple(pair[1] for pair in self.edge_index) or tuple(each.cols() for each in self.adjacency)

    @property
    def num_edges(self) -> int:
        """Sampled edges of all types."""
        return sum(pair.size(1) for pair in self.edge_index) + sum(each.rows.numel() for each in self.adjacency)


@register_message
@dataclass(frozen=True)
class LinkLabels:
    """The links of a batch, in local ids: positives in the order asked, then negatives.

    Attributes:
        edge_type: edge type of the links.
        edge_label_index: int64 ``[2, num_links]``, sources and targets; None where negatives come as triplets.
        edge_label: ``[num_links, ...]``, labels; None where there are none.
        src_index: int64 ``[num_positives]``, sources of triplets; None otherwise, as the next two.
        dst_pos_index: int64 ``[num_positives]``, targets of the positives.
        dst_neg_index: int64 ``[num_positives]``, or ``[num_positives, amount]`` where there are several: targets that
            were drawn.
    """

    edge_type: int
    edge_label_index: torch.Tensor | None
    edge_label: torch.Tensor | None
    src_index: torch.Tensor | None
    dst_pos_index: torch.Tensor | None
    dst_neg_index: torch.Tensor | None


@register_message
@dataclass(frozen=True)
class SampledBatch:
    """One mini-batch with what was looked up for it.

    Attributes:
        run: which iteration of the loader asked for it; a batch of an older run is dropped.
        epoch: the epoch whose draws it has.
        index: its index in the epoch's global list of batches.
        seed_type: node type of the seeds (of the sources, where links are sampled).
        input_positions: int64 ``[num_seeds]``, positions of the seeds in the loader's list of input nodes or links, or
            what that calls them (``NodeSamplerInput.input_id``).
        subgraph: the sampled neighborhood.
        node_features: by node type, ``[num_nodes, dim]``; None where a type has none.
        node_labels: by node type, ``[num_nodes, ...]``; None where a type has none.
        edge_features: by edge type, ``[num_edges, dim]``; None where a type has none or none were asked for.
        seed_times: int64 ``[num_seeds]``, times of the seeds, or of links, negatives too; None where they have none.
        links: the links whose ends are the seeds; None unless links are sampled.
        mapping: int64 ``[num_seeds]``, local ids of the seeds in an induced subgraph; None otherwise.
        columns: by store (see ``data.columns.column_store``), rows of further attributes of the nodes or edges.
    """

    run: int
    epoch: int
    index: int
    seed_type: int
    input_positions: torch.Tensor
    subgraph: Subgraph
    node_features: tuple[torch.Tensor | None, ...]
    node_labels: tuple[torch.Tensor | None, ...]
    edge_features: tuple[torch.Tensor | None, ...]
    seed_times: torch.Tensor | None = None
    links: LinkLabels | None = None
    mapping: torch.Tensor | None = None
    columns: dict[str, torch.Tensor] = field(default_factory=dict)


@register_message
@dataclass(frozen=True)
class SampledBatches:
    """Small batches of one run that travel together, in their order, at least two."""

    batches: tuple[SampledBatch, ...]


@register_message
@dataclass(frozen=True)
class EndOfEpoch:
    """Every batch asked for has been sent: there were ``num_batches``."""

    run: int
    epoch: int
    num_batches: int


@register_message
@dataclass(frozen=True)
class WorkerFailure:
    """A sampling worker could not make a batch: who (with pid and host), where, in which stage, and why."""

    run: int
    epoch: int
    index: int
    worker: str
    stage: str
    type_name: str
    message: str
    traceback: str


ChannelItem = SampledBatch | SampledBatches | EndOfEpoch | WorkerFailure


@register_message
@dataclass(frozen=True)
class SpreadRequest:
    """Asks the owner of some nodes how likely their neighbors are to be drawn; nothing is drawn.

    Attributes:
        edge_type: along which edge type.
        ids: int64 ``[n]``, global ids of nodes the receiver owns.
        chances: float32 ``[n]``, how likely each is to draw neighbors.
        fanout: how many (-1: all).
    """

    edge_type: int
    ids: torch.Tensor
    chances: torch.Tensor
    fanout: int


@register_message
@dataclass(frozen=True)
class SpreadReply:
    """The answer: ``degrees`` of the nodes, int64 ``[n]``; their ``neighbors``, int64 ``[m]``, each once; and the log
    of the probability that none of the nodes draws it, ``missed`` float32 ``[m]``."""

    degrees: torch.Tensor
    neighbors: torch.Tensor
    missed: torch.Tensor


@register_message
@dataclass(frozen=True)
class EdgeListRequest:
    """Asks for all edges of one type that a partition holds."""

    edge_type: int


@register_message
@dataclass(frozen=True)
class EdgeListReply:
    """Ids, sources and targets of edges, int64 ``[num_edges]`` each, global."""

    edge_ids: torch.Tensor
    sources: torch.Tensor
    targets: torch.Tensor


@register_message
@dataclass(frozen=True)
class TensorHandle:
    """Where a tensor lies, for a process of the same host to map it.

    Attributes:
        path: a file, or ``/proc/<pid>/fd/<n>`` of anonymous shared memory.
        offset: first byte.
        dtype: torch's name of the dtype, such as ``"int64"``.
        shape: extents.
        inode: of anonymous shared memory its inode number, since other memory gets the number of its descriptor when it
            is gone; 0 of a file.
    """

    path: str
    offset: int
    dtype: str
    shape: tuple[int, ...]
    inode: int = 0
