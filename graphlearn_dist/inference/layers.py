"""A model as layers, each of which computes the rows of a block of nodes from those of the block and its neighbors."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MethodType
from typing import Any

import torch
import torch.nn.functional as F
from torch_geometric.nn import GCNConv, GINConv, MessagePassing, SAGEConv
from torch_geometric.nn.aggr import QuantileAggregation
from torch_geometric.nn.models.basic_gnn import BasicGNN
from torch_geometric.utils import add_remaining_self_loops

from ..errors import InvalidArgumentError

Rows = dict[Any, torch.Tensor]
_MOST_INT32 = torch.iinfo(torch.int32).max
_REDUCTIONS = ("sum", "add", "mean", "min", "max")


@dataclass(frozen=True)
class Neighborhood:
    """A block's nodes, their neighbors, and what is known of them.

    Attributes:
        node_type: of the block.
        num_nodes: of the block.
        x: by node type, float32 rows; of ``node_type`` the block's nodes come first, then neighbors.
        edge_index: by edge type that leads to ``node_type``, int64 ``[2, E]``, neighbors and nodes of the block by
            their rows in ``x``; sorted by the latter.
        weights: by edge type, float32 ``[E]``; empty unless asked for.
        whole: float32 rows of all nodes by id, of a homogeneous graph, and
        adjacency: the edges as a sparse matrix ``[nodes of the block, all nodes]``, in place of ``edge_index``, for a
            layer that only adds; else both are None.
        scales: float32 ``[rows of x]``, what ``NodeScales`` made; None without it.
    """

    node_type: Any
    num_nodes: int
    x: Rows
    edge_index: dict[Any, torch.Tensor]
    weights: dict[Any, torch.Tensor]
    whole: torch.Tensor | None = None
    adjacency: torch.Tensor | None = None
    scales: torch.Tensor | None = None


class Layer(ABC):
    """One layer of a model.

    Attributes:
        reads_rows: whether it reads rows of the layer before.
        only_adds: neighbors' rows are only summed up, so that it may be given those of all nodes.
        wants_all_types: edges of all types, without any where these do not lead to the block, as `to_hetero` does.
    """

    reads_rows = True
    only_adds = False
    wants_all_types = False

    @abstractmethod
    def __call__(self, block: Neighborhood) -> Rows:
        """Rows by node type; those of the block's nodes come first."""


class NodeScales(Layer):
    """1 / sqrt(degree) of each node, float32 ``[n, 1]``: what ``GCNConv`` takes from the whole graph (Kipf & Welling,
    ICLR 2017, section 2), with the self loops that ``conv`` adds."""

    reads_rows = False

    def __init__(self, conv: GCNConv) -> None:
        self._conv = conv

    def __call__(self, block: Neighborhood) -> Rows:
        edge_index, weights = with_self_loops(block, self._conv)
        degrees = torch.zeros(block.num_nodes).scatter_add_(0, edge_index[1], weights)
        scales = degrees.pow(-0.5)
        return {block.node_type: scales.masked_fill(scales.isinf(), 0)[:, None]}


def with_self_loops(block: Neighborhood, conv: GCNConv) -> tuple[torch.Tensor, torch.Tensor]:
    """Edges and float32 weights as ``GCNConv`` has them: with the self loops of the block's nodes, if it adds them."""
    edge_index = block.edge_index[None]
    weights = block.weights.get(None)
    if conv.add_self_loops:
        fill = 2.0 if conv.improved else 1.0  # PyG, too, weighs the loops so only where edges have weights
        edge_index, weights = add_remaining_self_loops(edge_index, weights, fill, num_nodes=block.num_nodes)
    return edge_index, torch.ones(edge_index.size(1)) if weights is None else weights


class BasicLayer(Layer):
    """A layer of PyG's ``BasicGNN``, computed by its own ``inference_per_layer``."""

    def __init__(self, model: BasicGNN, index: int) -> None:
        self._model, self._index = model, index
        conv = model.convs[index]
        self._takes_pairs = isinstance(conv, (SAGEConv, GINConv))
        self._sums = self._takes_pairs and conv.fuse and conv.aggr in _REDUCTIONS
        self._scaled = isinstance(conv, GCNConv) and conv.normalize
        self._wants_first_edge = wants_first_edge(conv)
        self.only_adds = self._sums and not getattr(conv, "project", False)

    def __call__(self, block: Neighborhood) -> Rows:
        x, weights = block.x[block.node_type], block.weights.get(None)
        if block.adjacency is not None:
            return self._rows((block.whole, x), block.adjacency, block)
        edges = block.edge_index[None]
        if self._sums:
            adjacency = compress(edges, None, (block.num_nodes, len(x)))
            return self._rows((x, x[: block.num_nodes]), adjacency, block)
        if self._scaled:
            return self._rows(x, self._scaled_edges(block), block)
        if weights is not None:
            return self._rows(x, compress(edges, weights, (len(x),) * 2), block)
        if self._wants_first_edge:
            wider = self._by_edges(with_a_first_edge(block))
            return {key: rows[1:] for key, rows in wider.items()}
        return self._by_edges(block)

    def _by_edges(self, block: Neighborhood) -> Rows:
        some = with_some_edges(block)
        x, edges = some.x[None], some.edge_index[None]
        if not self._takes_pairs:
            return self._rows(x, edges, block)
        num_targets = block.num_nodes if some is block else len(x)  # targets are those of the block, else all nodes
        return self._rows((x, x[:num_targets]), edges, block)

    def _rows(self, x: Any, edges: torch.Tensor, block: Neighborhood) -> Rows:
        return {None: self._model.inference_per_layer(self._index, x, edges, block.num_nodes)}

    def _scaled_edges(self, block: Neighborhood) -> torch.Tensor:
        assert block.scales is not None
        (rows, cols), weights = with_self_loops(block, self._model.convs[self._index])
        order = cols.argsort(stable=True)
        rows, cols, weights = rows[order], cols[order], weights[order]
        values = block.scales[rows] * weights * block.scales[cols]
        return compress(torch.stack([rows, cols]), values, (len(block.x[None]),) * 2)


def wants_first_edge(function: Any) -> bool:
    """Whether it has an aggregation that fails where the first node has no edge: PyG's quantiles, as the median."""
    is_module = isinstance(function, torch.nn.Module)
    return is_module and any(isinstance(part, QuantileAggregation) for part in function.modules())


def with_a_first_edge(block: Neighborhood) -> Neighborhood:
    """The block, with a node of zeros before all others of each type, and two edges of each type between these."""
    return replace(
        block,
        num_nodes=block.num_nodes + 1,
        x={key: F.pad(rows, (0, 0, 1, 0)) for key, rows in block.x.items()},
        edge_index={key: F.pad(edges + 1, (2, 0)) for key, edges in block.edge_index.items()},
        weights={key: F.pad(weights, (2, 0), value=1.0) for key, weights in block.weights.items()},
    )


def with_some_edges(block: Neighborhood) -> Neighborhood:
    """The block, with an edge of each type: one from a node to another of zeros, behind all others, where it has none.

    Aggregations such as those by LSTM fail without any, as PyG never has in a forward pass over the whole graph.
    """
    bare = [key for key, edges in block.edge_index.items() if not edges.size(1)]
    if not bare or not block.x:
        return block
    ends = {key: (block.node_type, block.node_type) if key is None else (key[0], key[2]) for key in bare}
    longer = {end for pair in ends.values() for end in pair}
    more = {key: F.pad(rows, (0, 0, 0, 1)) for key, rows in block.x.items() if key in longer}
    x = {**block.x, **more}
    added = {key: torch.tensor([[len(x[end]) - 1] for end in ends[key]]) for key in bare}
    ones = {key: torch.ones(1) for key in bare if key in block.weights}
    return replace(block, x=x, edge_index={**block.edge_index, **added}, weights={**block.weights, **ones})


def compress(edges: torch.Tensor, values: torch.Tensor | None, shape: tuple[int, int]) -> torch.Tensor:
    """Edges that are sorted by target as a sparse matrix ``[targets, sources]``, whose rows torch adds up in order."""
    indptr = torch.zeros(shape[0] + 1, dtype=torch.int64)
    torch.cumsum(torch.bincount(edges[1], minlength=shape[0]), 0, out=indptr[1:])
    return sparse_rows(indptr, edges[0], values, shape)


def sparse_rows(
    indptr: torch.Tensor, sources: torch.Tensor, values: torch.Tensor | None, shape: tuple[int, int]
) -> torch.Tensor:
    """A sparse matrix ``[targets, sources]`` of edges that are compressed by target; its values are 1 unless given.

    Its indices are int32 where the sources are: nothing is copied.
    """
    values = torch.ones(len(sources)) if values is None else values
    if len(sources) > _MOST_INT32:
        sources = sources.long()
    return torch.sparse_csr_tensor(indptr.to(sources.dtype), sources, values, shape, check_invariants=False)


class CallableLayer(Layer):
    """A layer of the caller's: ``(x by type, edge_index by type) -> x by type``.

    With weights, it has a third argument, the weights by edge type. Of a homogeneous graph, all of them are bare.
    """

    def __init__(self, function: Callable[..., Any], *, with_weights: bool) -> None:
        self._function, self._with_weights = function, with_weights
        self.wants_all_types = isinstance(function, torch.fx.GraphModule)
        self._wants_first_edge = wants_first_edge(function)

    def __call__(self, block: Neighborhood) -> Rows:
        if self._wants_first_edge:
            return {key: rows[1:] for key, rows in self._call(with_a_first_edge(block)).items()}
        return self._call(with_some_edges(block))

    def _call(self, block: Neighborhood) -> Rows:
        arguments: list[Any] = [block.x, block.edge_index, *([block.weights] if self._with_weights else [])]
        if block.node_type is None:
            arguments = [by_type.get(None) for by_type in arguments]
        found = self._function(*arguments)
        found = found if isinstance(found, Mapping) else {block.node_type: found}
        return {key: rows for key, rows in found.items() if rows is not None}


def layers_of(model: Any, *, with_weights: bool) -> list[Layer]:
    """The layers of a model; see ``infer``.

    Raises:
        InvalidArgumentError: they cannot be computed block by block, or are not known.
    """
    _check_dtypes(model)
    _check_reach(model)
    if isinstance(model, BasicGNN):
        return _basic_layers(model, with_weights)
    given = model.inference_layers() if hasattr(model, "inference_layers") else model
    if not isinstance(given, Sequence) and not isinstance(given, torch.nn.ModuleList):
        raise InvalidArgumentError(
            "model: expected PyG's BasicGNN, a list of layers (x, edge_index) -> x, or a model whose "
            f"inference_layers() gives one, got {type(model).__name__}"
        )
    if not len(given) or not all(map(callable, given)):
        raise InvalidArgumentError("model: expected at least one layer, each of them callable")
    return [CallableLayer(each, with_weights=with_weights) for each in given]


def _is_normalized(part: Any) -> bool:
    return bool(part.normalize)


def _always(part: Any) -> bool:
    return True


# By the name of PyG's (or torch's) module, whether this one reads more than the nodes of a block and their neighbors:
# degrees of neighbors, neighbors of these, or all nodes.
_READS_MORE: dict[str, Callable[[Any], bool]] = {
    **dict.fromkeys(("ARMAConv", "ChebConv", "SGConv", "SSGConv", "MixHopConv", "PANConv"), _always),
    **dict.fromkeys(("DirGNNConv", "HypergraphConv", "DynamicEdgeConv", "GravNetConv", "XConv", "HANConv"), _always),
    **dict.fromkeys(("GraphNorm", "PairNorm", "InstanceNorm", "MeanSubtractionNorm", "DiffGroupNorm"), _always),
    **dict.fromkeys(("GraphSizeNorm", "AntiSymmetricConv", "APPNP", "TAGConv"), _always),
    **dict.fromkeys(("LSTMAggregation", "GRUAggregation"), _always),  # go on with zeros for the most neighbors of all
    **dict.fromkeys(("GCN2Conv", "FAConv", "LGConv", "DNAConv"), _is_normalized),
    "EGConv": lambda part: "symnorm" in part.aggregators,
    "GatedGraphConv": lambda part: part.num_layers > 1,
    "GPSConv": lambda part: part.attn is not None,
    "LayerNorm": lambda part: getattr(part, "mode", "node") != "node",
    "BatchNorm1d": lambda part: part.running_mean is None,
    "HeteroBatchNorm": lambda part: part.running_mean is None,
}


def _check_reach(model: Any) -> None:
    for part in (part for module in modules_of(model) for part in module.modules()):
        if isinstance(part, GCNConv) and part.normalize and not isinstance(model, BasicGNN):
            raise InvalidArgumentError(
                "model: a layer has a GCNConv, whose degrees are of the whole graph and not of a block: expected "
                "GCNConv(normalize=False) with weights, or PyG's GCN, whose degrees are counted here"
            )
        if _READS_MORE.get(type(part).__name__, lambda _: False)(part):
            raise InvalidArgumentError(
                f"model: expected layers that read a node and its neighbors, got {part}, which reads more of the graph"
            )


def _check_dtypes(model: Any) -> None:
    for module in modules_of(model):
        for name, parameter in module.named_parameters():
            if parameter.is_floating_point() and parameter.dtype != torch.float32:
                raise InvalidArgumentError(
                    f"model: expected float32, in which layers compute, got {parameter.dtype} ({name}); model.float()"
                )


def _basic_layers(model: BasicGNN, with_weights: bool) -> list[Layer]:
    if model.jk_mode not in (None, "last"):
        raise InvalidArgumentError(f"model: expected jk=None or 'last', got {model.jk_mode!r}: it reads all layers")
    if with_weights and not all(isinstance(conv, GCNConv) for conv in model.convs):
        raise InvalidArgumentError(f"weights: expected a model of GCNConvs, or layers, got {type(model).__name__}")
    convs = [conv for conv in model.convs if isinstance(conv, GCNConv) and conv.normalize]
    if len({(conv.improved, conv.add_self_loops) for conv in convs}) > 1:
        raise InvalidArgumentError("model: expected all GCNConvs to add the same self loops")
    own = copy.copy(model)  # parameters are those of the model
    own._modules = dict(model._modules)
    own.convs = torch.nn.ModuleList(model.convs)
    layers = [BasicLayer(own, i) for i in range(model.num_layers)]
    for i, conv in enumerate(model.convs):
        own.convs[i] = _for_blocks(conv)
    return [*map(NodeScales, convs[:1]), *layers]


def _for_blocks(conv: Any) -> torch.nn.Module:
    """A convolution as blocks are given to it, with the same parameters."""
    plain: Any = conv
    fuses = isinstance(conv, MessagePassing) and conv.fuse
    if fuses or isinstance(conv, GCNConv):
        plain = copy.copy(conv)
    if isinstance(conv, GCNConv):
        plain.normalize = False  # the weights of its edges come scaled
    if fuses:
        # PyG compiles `propagate` once for a class. If the first convolution of a process had an aggregation that takes
        # no sparse matrices, the others of its class refuse them, too.
        plain.propagate = MethodType(MessagePassing.propagate, plain)
    module: torch.nn.Module = plain
    return module


def modules_of(model: Any) -> list[torch.nn.Module]:
    """The modules of a model, or of a list of layers."""
    given = model if isinstance(model, (list, tuple)) else [model]
    return [each for each in given if isinstance(each, torch.nn.Module)]
