"""The carriers that samplers take and give."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch

from ..errors import InvalidArgumentError
from ..typing import NodeType, NumNeighbors, Split
from ..utils.mixin import CastMixin

if TYPE_CHECKING:
    from ..data.dataset import Dataset


class EdgeIndex(NamedTuple):
    """Edges of one layer: ``edge_index`` int64 ``[2, E]``, ``e_id`` int64 ``[E]`` or None, ``size`` (rows, columns)."""

    edge_index: torch.Tensor
    e_id: torch.Tensor | None
    size: tuple[int, int]

    def to(self, *args: Any, **kwargs: Any) -> EdgeIndex:
        """The same on another device."""
        e_id = None if self.e_id is None else self.e_id.to(*args, **kwargs)
        return EdgeIndex(self.edge_index.to(*args, **kwargs), e_id, self.size)


@dataclass(frozen=True)
class NodeSamplerInput(CastMixin):
    """Seeds: ``node`` int64 ``[num_seeds]``, global ids, of node type ``input_type``."""

    node: torch.Tensor
    input_type: NodeType | None = None

    def __getitem__(self, index: torch.Tensor | Any) -> NodeSamplerInput:
        if not isinstance(index, torch.Tensor):
            index = torch.tensor(index, dtype=torch.int64)
        return NodeSamplerInput(self.node[index], self.input_type)

    def __len__(self) -> int:
        return self.node.numel()


@dataclass(frozen=True)
class SamplerOutput(CastMixin):
    """A sampled subgraph of a homogeneous graph.

    Attributes:
        node: int64 ``[num_nodes]``, global ids, seeds first.
        row: int64 ``[num_edges]``, local position of each edge's neighbor.
        col: int64 ``[num_edges]``, local position of the node it was sampled for.
        edge: int64 ``[num_edges]``, global edge ids, or None.
        batch: int64 ``[num_seeds]``, the seeds.
        num_sampled_nodes: new nodes per hop, seeds first.
        num_sampled_edges: edges per hop.
        device: where the tensors are.
        metadata: anything the caller attached.
    """

    node: torch.Tensor
    row: torch.Tensor
    col: torch.Tensor
    edge: torch.Tensor | None = None
    batch: torch.Tensor | None = None
    num_sampled_nodes: list[int] | None = None
    num_sampled_edges: list[int] | None = None
    device: torch.device | None = None
    metadata: Any | None = None


@dataclass(frozen=True)
class NeighborOutput(CastMixin):
    """One hop: ``nbr`` int64 ``[sum]`` grouped by seed, ``nbr_num`` int64 ``[num_seeds]``, ``edge`` int64 or None."""

    nbr: torch.Tensor
    nbr_num: torch.Tensor
    edge: torch.Tensor | None

    def to(self, device: torch.device) -> NeighborOutput:
        edge = None if self.edge is None else self.edge.to(device)
        return NeighborOutput(self.nbr.to(device), self.nbr_num.to(device), edge)


class SamplingType(Enum):
    """What a loader samples."""

    NODE = "node"
    LINK = "link"
    SUBGRAPH = "subgraph"


@dataclass(frozen=True)
class SamplingConfig:
    """Everything besides the data set and the input nodes that a batch depends on, and which batches are wanted.

    Attributes:
        sampling_type: what is sampled.
        num_neighbors: fan-outs by hop, or by edge type and hop.
        batch_size: seeds of a batch.
        shuffle: permute the input nodes in every epoch.
        drop_last: leave out an incomplete last batch.
        with_edge: batches carry edge ids.
        collect_features: batches carry features and labels.
        with_neg: sample negative edges.
        with_weight: sample by edge weight.
        edge_dir: sample in- or out-neighbors.
        seed: seed of the shuffle and of all draws.
        replace: sample with replacement.
    """

    sampling_type: SamplingType
    num_neighbors: NumNeighbors | None
    batch_size: int
    shuffle: bool
    drop_last: bool
    with_edge: bool
    collect_features: bool
    with_neg: bool
    with_weight: bool
    edge_dir: Literal["in", "out"]
    seed: int
    replace: bool = False

    def __post_init__(self) -> None:
        if self.sampling_type is not SamplingType.NODE or self.with_neg or self.with_weight:
            raise InvalidArgumentError(
                "sampling_type, with_neg, with_weight: this version samples nodes uniformly; links, subgraphs and "
                "weights are not supported yet"
            )
        if self.edge_dir not in ("in", "out"):
            raise InvalidArgumentError(f"edge_dir: expected 'in' or 'out', got {self.edge_dir!r}")
        if not isinstance(self.seed, int) or not -(1 << 63) <= self.seed < 1 << 63:
            raise InvalidArgumentError(f"seed: expected an int of 64 bits, got {self.seed!r}")


class BaseSampler(ABC):
    """A sampler: seeds in, a sampled subgraph out."""

    @abstractmethod
    def sample_from_nodes(self, inputs: NodeSamplerInput, **kwargs: Any) -> SamplerOutput:
        """Samples the multi-hop neighborhood of nodes."""


class RemoteSamplerInput(ABC):
    """Seeds that are named here and looked up where the data set is."""

    @abstractmethod
    def to_local_sampler_input(self, dataset: Dataset, **kwargs: Any) -> NodeSamplerInput:
        """The seeds, from the server's data set."""


@dataclass(frozen=True)
class RemoteNodeSplitSamplerInput(RemoteSamplerInput):
    """The nodes of one split of the server's data set."""

    split: Split
    input_type: NodeType | None = None

    def to_local_sampler_input(self, dataset: Dataset, **kwargs: Any) -> NodeSamplerInput:
        return NodeSamplerInput(dataset.split_ids(self.split, self.input_type), self.input_type)
