"""What samplers take: seeds, links, and how to sample."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from copy import copy
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, Literal, TypedDict, TypeVar

import torch

from ..errors import InvalidArgumentError
from ..typing import EdgeType, NodeType, NumNeighbors, NumSamples, Split
from ..utils.device_exchange import moved
from ..utils.message_types import BY_TYPE, register_as_base, register_message
from ..utils.mixin import CastMixin
from ..utils.shown import shown
from ..utils.tensor import host_tensor, load_tensor
from ..utils.values import check_seed, to_count, to_flag
from .links.negative_sampling import NegativeSampling, NegativeSamplingMode
from .outputs import EdgeIndex, HeteroSamplerOutput, NeighborOutput, SamplerOutput
from .strategies import TEMPORAL_STRATEGIES, check_strategy

if TYPE_CHECKING:
    from ..data.dataset import Dataset

__all__ = [
    "BaseSampler",
    "EdgeIndex",
    "EdgeSamplerInput",
    "HeteroSamplerOutput",
    "NegativeSampling",
    "NegativeSamplingMode",
    "NeighborOutput",
    "NodeSamplerInput",
    "RemoteAllNodesSamplerInput",
    "RemoteNodePathSamplerInput",
    "RemoteNodeSplitSamplerInput",
    "RemoteSamplerInput",
    "SamplerInput",
    "SamplerOutput",
    "SamplingConfig",
    "SamplingType",
]

T = TypeVar("T", bound="_InputTensors")

EDGE_FORMATS = ("edge_index", "adj_t")
MAX_STRETCHES = 1 << 16  # of ``SamplingConfig.locality``


class _InputTensors(CastMixin):
    """What both kinds of input do with each of their tensors.

    Inputs are no settings: programs set their fields and derive classes with fields of their own, as they do of PyG's.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """A program's own input reaches workers and servers as the input that it is one of: they know no other."""
        super().__init_subclass__(**kwargs)
        if any(base in BY_TYPE for base in cls.__mro__[1:]):
            register_as_base(cls)

    def __post_init__(self) -> None:
        for name, value in self._tensors().items():
            setattr(self, name, host_tensor(value, name))

    def _own_fields(self) -> dict[str, Any]:
        """Those of the input, without what a program's class adds."""
        return {name: getattr(self, name) for name in BY_TYPE[type(self)].field_names}

    def _tensors(self) -> dict[str, torch.Tensor]:
        return {name: value for name, value in self._own_fields().items() if isinstance(value, torch.Tensor)}

    def _map(self: T, change: Any) -> T:
        """The same with changed tensors, and with everything that a program's class added."""
        other = copy(self)
        for name, value in self._tensors().items():
            setattr(other, name, change(value))
        return other

    def __getitem__(self: T, index: torch.Tensor | Any) -> T:
        """The entries at some positions: an int or bool tensor, a list, or a slice.

        Of a class that a program derived, an input without what that adds, of which nobody knows what is to be taken.
        """
        where = index if isinstance(index, (torch.Tensor, slice)) else torch.tensor(index, dtype=torch.int64)
        taken = {name: value[where] for name, value in self._tensors().items()}
        made: T = BY_TYPE[type(self)].cls(**{**self._own_fields(), **taken})
        return made

    def share_memory(self: T) -> T:
        """Moves the tensors to memory that other processes can map."""
        return self._map(lambda tensor: tensor.share_memory_())

    def to(self: T, device: torch.device | str) -> T:
        """The same on another device; on a GPU, nobody waits for the copies."""
        return self._map(lambda tensor: moved(tensor, device))


@register_message
@dataclass
class NodeSamplerInput(_InputTensors):
    """Seeds.

    Attributes:
        node: int ``[num_seeds]``, global ids.
        input_type: their node type; None where the graph has one unnamed type.
        time: int64 ``[num_seeds]``: no edge that is later is sampled for the seed; None samples all edges.
        input_id: int64 ``[num_seeds]``, what batches call each seed; its position unless given.
        mask_length: of the mask whose nodes the seeds are, which must be the number of nodes; None without a mask.
    """

    node: torch.Tensor
    input_type: NodeType | None = None
    time: torch.Tensor | None = None
    input_id: torch.Tensor | None = None
    mask_length: int | None = field(default=None, kw_only=True)

    def __len__(self) -> int:
        return self.node.numel()


@register_message
@dataclass
class EdgeSamplerInput(_InputTensors):
    """Links whose ends are the seeds.

    Attributes:
        row: int ``[num_links]``, sources, global ids.
        col: int ``[num_links]``, targets, global ids.
        label: ``[num_links, ...]``, labels, or None. Where binary negatives are drawn, 0 is theirs.
        input_type: edge type of the links; None where the graph has one unnamed type.
        neg_sampling: which negatives are drawn; None draws none.
        time: int64 ``[num_links]``: no edge that is later is sampled for the link; None samples all edges.
        excluded: int64 ``[num_links]``: the edge of the links' type (its id) that no batch with this link passes
            messages along, -1 for none; None excludes nothing. Batches need edge ids for that.
        excluded_reverse: int64 ``[num_links]``: likewise an edge of ``reverse_type``.
        reverse_type: see there; None where the graph has one unnamed type.
    """

    row: torch.Tensor
    col: torch.Tensor
    label: torch.Tensor | None = None
    input_type: EdgeType | None = None
    neg_sampling: NegativeSampling | None = None
    time: torch.Tensor | None = None
    excluded: torch.Tensor | None = None
    excluded_reverse: torch.Tensor | None = None
    reverse_type: EdgeType | None = None

    def __len__(self) -> int:
        return self.row.numel()


@register_message
class SamplingType(Enum):
    """What a loader samples."""

    NODE = "node"
    LINK = "link"
    SUBGRAPH = "subgraph"
    HGT = "hgt"

    @property
    def plural(self) -> str:
        """What is sampled, as errors call it."""
        return "by HGT" if self is SamplingType.HGT else f"{self.value}s"


_FLAGS = (
    "shuffle", "drop_last", "with_edge", "collect_features", "with_neg", "with_weight", "replace", "disjoint",
    "induced", "collect_labels",
)  # fmt: skip


@register_message
@dataclass(frozen=True)
class SamplingConfig:
    """Everything besides the data set and the input that a batch depends on, and which batches are wanted.

    Attributes:
        sampling_type: what is sampled.
        num_neighbors: fan-outs by hop, or by edge type and hop; None takes no hop (subgraphs), or is what HGT sampling
            expects.
        batch_size: seeds, or links, of a batch.
        shuffle: permute the input in every epoch.
        drop_last: leave out an incomplete last batch.
        with_edge: batches carry edge ids.
        collect_features: batches carry features and labels.
        with_neg: negatives are drawn for links.
        with_weight: sample by edge weight, along the edge types that have weights.
        edge_dir: sample in- or out-neighbors; None samples those that the data set holds.
        seed: seed of the shuffle and of all draws.
        replace: sample with replacement.
        strategy: ``"random"``, or another name of ``sampler.strategies.STRATEGIES``; see ``docs/sampling.md``.
        disjoint: every seed grows a tree of its own.
        temporal_strategy: how neighbors not later than the seed's time are drawn, ``"uniform"`` or ``"last"`` (the most
            recent ones), along the edge types that have times; None where seeds have no times.
        own_times: the same for seeds that are given without times: where the data set has times, each seed has its
            node's own (see ``with_own_times``). None looks at no time.
        induced: batches have all edges between their nodes instead of those that were sampled; those of subgraphs do
            whatever this says.
        collect_labels: batches carry labels, without ``collect_features`` too.
        locality: into how many stretches of near seeds the input is cut, one of which a batch is of, see
            ``SeedSchedule``; None where nearness does not matter.
        edge_format: how batches carry their edges, ``"edge_index"`` or ``"adj_t"``, see ``loader.transform.to_pyg``.
        num_samples: of HGT sampling, how many nodes of each type an iteration takes: a list by iteration, or by node
            type such a list; None where something else is sampled.
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
    edge_dir: Literal["in", "out"] | None
    seed: int
    replace: bool = False
    strategy: str = "random"
    disjoint: bool = False
    temporal_strategy: str | None = None
    own_times: str | None = None
    induced: bool = False
    collect_labels: bool = False
    locality: int | None = None
    edge_format: str = "edge_index"
    num_samples: NumSamples | None = None

    def __post_init__(self) -> None:
        if self.edge_dir not in ("in", "out", None):
            raise InvalidArgumentError(f"edge_dir: expected 'in', 'out' or None, got {shown(self.edge_dir)}")
        object.__setattr__(self, "batch_size", to_count("batch_size", self.batch_size))
        for name in _FLAGS:
            object.__setattr__(self, name, to_flag(name, getattr(self, name)))
        check_seed("seed", self.seed)
        for strategy in (self.temporal_strategy, self.own_times):
            if strategy is not None and strategy not in TEMPORAL_STRATEGIES:
                raise InvalidArgumentError(
                    f"temporal_strategy: expected one of {tuple(TEMPORAL_STRATEGIES)} or None, got {shown(strategy)}"
                )
        if self.locality is not None and (type(self.locality) is not int or not 1 <= self.locality <= MAX_STRETCHES):
            raise InvalidArgumentError(
                f"locality: expected a number of stretches from 1 to {MAX_STRETCHES} or None, "
                f"got {shown(self.locality)}"
            )
        if type(self.edge_format) is not str or self.edge_format not in EDGE_FORMATS:
            raise InvalidArgumentError(f"edge_format: expected one of {EDGE_FORMATS}, got {shown(self.edge_format)}")
        check_strategy(self.strategy, with_weight=self.with_weight, replace=self.replace)
        self._check_combination()

    def _check_combination(self) -> None:
        if self.with_neg and self.sampling_type is not SamplingType.LINK:
            raise InvalidArgumentError(
                "with_neg: expected False for nodes and subgraphs: negatives are drawn for links"
            )
        takes_last = "last" in (self.temporal_strategy, self.own_times)
        if takes_last and (self.replace or self.with_weight or self.strategy != "random"):
            raise InvalidArgumentError(
                "temporal_strategy: 'last' takes the most recent neighbors and draws nothing; expected replace and "
                "with_weight False and strategy 'random'"
            )
        if (self.num_samples is not None) != (self.sampling_type is SamplingType.HGT):
            wanted = "None" if self.num_samples is not None else "numbers of nodes"
            raise InvalidArgumentError(
                f"num_samples: expected {wanted} to sample {self.sampling_type.plural}, got {shown(self.num_samples)}"
            )
        if self.sampling_type is SamplingType.HGT:
            self._check_hgt()
        if self.has_induced_edges and self.is_disjoint:
            raise InvalidArgumentError(
                "disjoint, temporal_strategy: an induced subgraph has each node once; expected False and no times"
            )

    def _check_hgt(self) -> None:
        if self.num_neighbors is not None:
            raise InvalidArgumentError(
                f"num_neighbors: expected None beside num_samples, got {shown(self.num_neighbors)}"
            )
        for name in ("replace", "with_weight"):
            if getattr(self, name):
                raise InvalidArgumentError(f"{name}: expected False with num_samples, whose budgets decide, got True")
        if self.strategy != "random":
            raise InvalidArgumentError(f"strategy: expected 'random' with num_samples, got {shown(self.strategy)}")
        if self.own_times is not None:
            raise InvalidArgumentError(
                f"temporal_strategy: expected None with num_samples, got {shown(self.own_times)}"
            )

    @property
    def has_induced_edges(self) -> bool:
        """Whether batches have all edges between their nodes."""
        return self.induced or self.sampling_type in (SamplingType.SUBGRAPH, SamplingType.HGT)

    @property
    def is_disjoint(self) -> bool:
        """Whether each seed grows a tree of its own: where that is asked for, and where seeds have times."""
        return self.disjoint or self.temporal_strategy is not None


def is_induced(subgraph_type: str) -> bool:
    """Whether batches have all edges between their nodes, by PyG's name of what they have.

    Raises:
        InvalidArgumentError: neither ``"directional"`` nor ``"induced"``.
    """
    name = getattr(subgraph_type, "value", subgraph_type)  # PyG's ``SubgraphType``
    if name not in ("directional", "induced"):
        raise InvalidArgumentError(f"subgraph_type: expected 'directional' or 'induced' here, got {shown(name)}")
    return bool(name == "induced")


class TimeSettings(TypedDict):
    """The two fields of a ``SamplingConfig`` that say what times of seeds do."""

    temporal_strategy: str | None
    own_times: str | None


def time_settings(strategy: str | None, *, timed: bool) -> TimeSettings:
    """Of a loader whose ``temporal_strategy`` this is, and whose seeds are given with times or without.

    Raises:
        InvalidArgumentError: times are given, and are not to be looked at.
    """
    if not timed:
        return {"temporal_strategy": None, "own_times": strategy}
    if strategy is None:
        raise InvalidArgumentError(
            "temporal_strategy: None looks at no times; expected no input_time or edge_label_time"
        )
    return {"temporal_strategy": strategy, "own_times": None}


class BaseSampler(ABC):
    """A sampler: seeds in, a sampled subgraph out."""

    @abstractmethod
    def sample_from_nodes(self, inputs: NodeSamplerInput, **kwargs: Any) -> SamplerOutput | HeteroSamplerOutput:
        """Samples the multi-hop neighborhood of nodes."""

    @abstractmethod
    def sample_from_edges(self, inputs: EdgeSamplerInput, **kwargs: Any) -> SamplerOutput | HeteroSamplerOutput:
        """Samples the multi-hop neighborhood of the ends of links, and of negatives drawn for them."""

    @abstractmethod
    def subgraph(self, inputs: NodeSamplerInput, **kwargs: Any) -> SamplerOutput | HeteroSamplerOutput:
        """All edges between nodes and their sampled neighborhood."""


class RemoteSamplerInput(ABC):
    """Seeds that are named here and looked up where the data set is."""

    @abstractmethod
    def to_local_sampler_input(self, dataset: Dataset, **kwargs: Any) -> NodeSamplerInput | EdgeSamplerInput:
        """The seeds, from the server's data set."""


@register_message
@dataclass
class RemoteNodeSplitSamplerInput(RemoteSamplerInput):
    """The nodes of one split of the server's data set."""

    split: Split
    input_type: NodeType | None = None

    def to_local_sampler_input(self, dataset: Dataset, **kwargs: Any) -> NodeSamplerInput:
        return NodeSamplerInput(dataset.split_ids(self.split, self.input_type), self.input_type)


@register_message
@dataclass
class RemoteAllNodesSamplerInput(RemoteSamplerInput):
    """All nodes of one type of the server's data set, in the order of their ids."""

    input_type: NodeType | None = None

    def to_local_sampler_input(self, dataset: Dataset, **kwargs: Any) -> NodeSamplerInput:
        schema = dataset.schema
        count = schema.num_nodes[schema.node_type_index(self.input_type, "input_nodes")]
        return NodeSamplerInput(torch.arange(count), self.input_type)


@register_message
@dataclass
class RemoteNodePathSamplerInput(RemoteSamplerInput):
    """Nodes listed in a file of the server's host: integers ``[num_seeds]``, see ``utils.tensor.load_tensor``."""

    node_path: str
    input_type: NodeType | None = None

    def to_local_sampler_input(self, dataset: Dataset, **kwargs: Any) -> NodeSamplerInput:
        if self.node_path in Split.__members__ and not os.path.exists(self.node_path):
            raise InvalidArgumentError(
                f"input_nodes: expected the path of a file of seeds, got {self.node_path!r}; for the split of that "
                f"name Split.{self.node_path}"
            )
        ids = load_tensor(self.node_path, "node_path")
        if ids.dim() != 1 or ids.is_floating_point() or ids.is_complex() or ids.dtype == torch.bool:
            raise InvalidArgumentError(
                f"node_path: expected a list of integers, got {ids.dtype} {list(ids.shape)} in {self.node_path}"
            )
        return NodeSamplerInput(ids.to(torch.int64), self.input_type)


SamplerInput = NodeSamplerInput | EdgeSamplerInput | RemoteSamplerInput
