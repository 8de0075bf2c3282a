"""A partitioner that puts nodes where they are sampled most."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import torch

from ..errors import InvalidArgumentError
from ..typing import EdgeType, NodeType
from ..utils.shown import shown
from ..utils.units import parse_size
from ..utils.values import label_of
from .ingest import by_type, to_tensor
from .layout import NodeKey
from .partition_book import PartitionBook, TablePartitionBook
from .partitioner import PartitionerBase


class FrequencyPartitioner(PartitionerBase):
    """Gives each node to the partition whose training seeds reach it most, evenly, and caches hot rows of others.

    Ids are taken ``chunk_size`` at a time. In each chunk the partitions pick in turn the nodes that they gain most
    from: those with the highest ``num_parts * p_own - (sum of the others' p)``, an equal share each. The placement is
    Quiver's partitioning of features without replication (Tan et al., "Quiver: Supporting GPUs for Low-Latency,
    High-Throughput GNN Serving with Workload Awareness", 2023); the hotness that it and the cache go by is GNNLab's
    pre-sampling (Yang et al., EuroSys 2022, section 6). Here the first pick goes round, and sizes differ by at most 1.

    Args:
        output_dir, num_parts, num_nodes, edge_index, edge_weights, edge_assign_strategy: see PartitionerBase.
        node_feat, node_feat_dtype, edge_feat, edge_feat_dtype: see PartitionerBase.
        probs: for each partition a float vector ``[num_nodes]``: how likely each node is in a batch of that
            partition's seeds (by node type); ``NeighborSampler.sample_prob`` computes it.
        cache_memory_budget: bytes of other partitions' rows that each partition keeps, or a text such as ``"64MB"`` (by
            node type).
        cache_ratio: the same as a share of all nodes, 0 to 1 (by node type). With both the smaller one counts, with
            neither there is no cache.
        chunk_size: ids assigned at a time, and feature rows in memory at a time.
        options: the keywords of PartitionerBase.

    Raises:
        InvalidArgumentError: an argument is wrong.
    """

    def __init__(
        self,
        output_dir: str | os.PathLike[str],
        num_parts: int,
        num_nodes: int | dict[NodeType, int],
        edge_index: Any,
        probs: Sequence[torch.Tensor] | dict[NodeType, Sequence[torch.Tensor]],
        node_feat: Any = None,
        node_feat_dtype: torch.dtype | None = None,
        edge_feat: Any = None,
        edge_feat_dtype: torch.dtype | None = None,
        edge_weights: Any = None,
        edge_assign_strategy: str = "by_src",
        cache_memory_budget: int | str | dict[NodeType, int | str] | None = None,
        cache_ratio: float | dict[NodeType, float] | None = None,
        chunk_size: int = 10000,
        **options: Any,
    ) -> None:
        super().__init__(
            output_dir,
            num_parts,
            num_nodes,
            edge_index,
            node_feat,
            node_feat_dtype,
            edge_feat,
            edge_feat_dtype,
            edge_weights,
            edge_assign_strategy,
            chunk_size,
            **options,
        )
        given: dict[EdgeType | NodeKey, Any] = by_type("probs", probs, self.nodes)
        self._probs = {key: self._check_probs(key, given.get(key)) for key in self.nodes}
        self._budgets = self._limits("cache_memory_budget", cache_memory_budget, float("inf"))
        self._ratios = self._limits("cache_ratio", cache_ratio, 1.0)

    def _check_probs(self, key: NodeKey, probs: Any) -> torch.Tensor:
        name, count = label_of("probs", key), self.nodes[key].count
        if not isinstance(probs, (list, tuple)) or len(probs) != self.num_parts:
            found = f"{len(probs)}" if isinstance(probs, (list, tuple)) else type(probs).__name__
            raise InvalidArgumentError(f"{name}: expected a list of {self.num_parts} vectors, got {found}")
        vectors = [to_tensor(f"{name}[{p}]", vector) for p, vector in enumerate(probs)]
        for p, vector in enumerate(vectors):
            if tuple(vector.shape) != (count,):
                raise InvalidArgumentError(f"{name}[{p}]: expected [{count}], got {list(vector.shape)}")
            wrong = ~(torch.isfinite(vector) & (vector >= 0))
            if bool(wrong.any()):
                node = int(wrong.nonzero()[0, 0])
                raise InvalidArgumentError(f"{name}[{p}][{node}]={float(vector[node])}: expected a finite number >= 0")
        return torch.stack(vectors).float()

    def _limits(self, name: str, given: Any, largest: float) -> dict[NodeKey, float]:
        values: dict[NodeKey, float] = {}
        if given is not None:
            shared = not isinstance(given, dict)
            values = dict.fromkeys(self.nodes, given) if shared else dict(by_type(name, given, self.nodes))
        for key, value in values.items():
            if isinstance(value, str) and largest == float("inf"):
                values[key] = value = parse_size(value, name=label_of(name, key))
            if not isinstance(value, (int, float)) or not 0 <= value <= largest:
                raise InvalidArgumentError(f"{label_of(name, key)}: expected 0 to {largest:g}, got {shown(value)}")
        return values

    def _partition_node(self, ntype: NodeType | None = None) -> tuple[None, PartitionBook]:
        probs, parts = self._probs[ntype], self.num_parts
        owners = torch.empty(probs.shape[1], dtype=torch.int64)
        taken_over = 0  # how often a partition had one node more than another in a chunk: its turn goes round
        for turn, begin in enumerate(range(0, len(owners), self.chunk_size)):
            hot = probs[:, begin : begin + self.chunk_size]
            size, extra = divmod(hot.shape[1], parts)
            shares = [size] * parts
            for p in range(taken_over, taken_over + extra):
                shares[p % parts] += 1
            taken_over = (taken_over + extra) % parts
            owners[begin : begin + self.chunk_size] = _assign_chunk(hot, shares, turn % parts)
        return None, TablePartitionBook.from_owners(owners, parts)

    def _cache_node(self, ntype: NodeType | None = None) -> Sequence[torch.Tensor | None]:
        feat, book = self.nodes[ntype].feat, self._node_book(ntype)
        if feat is None or (ntype not in self._budgets and ntype not in self._ratios):
            return [None] * self.num_parts
        row_bytes = feat[:1].numel() * (self.node_feat_dtype or feat.dtype).itemsize
        limits = [int(self._ratios.get(ntype, 1.0) * len(feat))]
        if ntype in self._budgets:
            limits.append(int(self._budgets[ntype] // max(row_bytes, 1)))
        caches: list[torch.Tensor | None] = []
        for p in range(self.num_parts):
            heat = self._probs[ntype][p].clone()
            heat[book.local_ids(p)] = 0.0  # it has them already
            hottest = heat.argsort(descending=True, stable=True)[: min(*limits, int((heat > 0).sum()))]
            caches.append(hottest)
        return caches


def _assign_chunk(hot: torch.Tensor, shares: list[int], first: int) -> torch.Tensor:
    """Owners of the nodes of a chunk: ``hot`` ``[parts, nodes]``; partition ``first`` picks first. Ties go by id."""
    parts, count = hot.shape
    owners = torch.full((count,), -1)
    gains = hot * (parts + 1) - hot.sum(0)  # num_parts * own - others
    for p in ((first + turn) % parts for turn in range(parts)):
        free = (owners < 0).nonzero().flatten()
        best = gains[p, free].argsort(descending=True, stable=True)[: shares[p]]
        owners[free[best]] = p
    return owners
