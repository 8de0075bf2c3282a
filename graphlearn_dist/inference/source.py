"""The data set of an inference: blocks of its nodes, their edges and their rows, wherever these lie."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ..config import feature_memory
from ..data.dataset import Dataset
from ..data.disk_tier import FeatureMemory
from ..data.feature import Feature, divide_memory
from ..data.pyg.store_pairs import is_pyg_data
from ..data.schema import NODE_FEATURE, edge_ends, store_name
from ..data.topology import Topology
from ..distributed import DistDataset, ServedDataset, rpc
from ..distributed.partitions.blocking_peers import BlockingPeers
from ..distributed.partitions.partition_service import PartitionService
from ..distributed.sampling.asked_dataset import AskedDataset
from ..distributed.sampling.batches import NoPeers
from ..distributed.sampling.feature_collector import FeatureCollector
from ..distributed.sampling.partition_directory import DirectoryDataset
from ..distributed.sampling.partitioned_sampler import PartitionedGraph
from ..distributed.whole_partition import open_partition
from ..errors import InvalidArgumentError, PartitionFormatError, UnknownIdError
from ..loader.learned_rows import Embeddings, embeddings_by_type
from ..messages import Subgraph
from ..partition import PartitionBook
from ..sampler.local_graph import LocalGraph
from ..sampler.plan import SamplingPlan, build_plan
from ..sampler.tasks import GraphAccess, SeedList
from ..utils.coroutines import run_local
from ..utils.system.memory import memory_left_bytes
from ..utils.units import parse_size
from .lost_servers import Answer, LostServers
from .together import Group, join_group

_LookUp = Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]


@dataclass(frozen=True)
class Block:
    """Consecutive rows of one partition, of one node type (by its number)."""

    node_type: int
    partition: int
    first: int
    last: int


@dataclass(frozen=True)
class BlockEdges:
    """The edges that lead to a block's nodes, compressed by node, of one edge type; neighbors are global ids.

    Attributes:
        indptr: int64 ``[nodes + 1]``, from 0.
        neighbors: int32 or int64 ``[edges]``.
        weights: float ``[edges]``, or None.
    """

    indptr: torch.Tensor
    neighbors: torch.Tensor
    weights: torch.Tensor | None


class BlockSource:
    """Reads a data set for inference. Thread-safe.

    Args:
        data: see ``infer``.
        fanout: of each node; -1 takes all neighbors.
        seed: of the draws.
        together: this is one of several processes that infer together.
        embeddings: learned rows by node type, see ``infer``.
        reconnect_timeout_s: how long a server that is gone may take to come back.

    Attributes:
        group: those processes; None where it is alone.

    Raises:
        InvalidArgumentError: data are of another kind, a part of a data set, or sampled by out-neighbors.
    """

    def __init__(
        self,
        data: Any,
        fanout: int,
        seed: int,
        *,
        together: bool = False,
        embeddings: Embeddings | None = None,
        reconnect_timeout_s: float = 0.0,
    ) -> None:
        self.directory = Path(data) if isinstance(data, (str, Path)) else None
        self.group: Group | None = None
        if together:
            self._dataset, self.group = join_group(data)
        else:
            self._dataset = _open(data)
        self.schema = self._dataset.schema
        if self.schema.edge_dir != "in":
            raise InvalidArgumentError(
                "data: expected a data set that is sampled by in-neighbors (edge_dir='in'), got 'out'; a layer passes "
                "messages along the edges"
            )
        self._learned = {
            self.schema.node_types.index(node_type): rows
            for node_type, rows in embeddings_by_type(embeddings, self.schema).items()
        }
        self._parts = _parts(self._dataset)
        if self.directory is not None:
            features = [feature for part in self._parts.values() for feature in part.features_in_use()]
            divide_memory(features, _memory_of_features())
        self._servers = (
            LostServers(self._dataset, reconnect_timeout_s) if isinstance(self._dataset, ServedDataset) else None
        )
        self._books = [self._dataset.node_books()[node_type] for node_type in self.schema.node_types]
        self._look_up, self._stop_serving = self._open_rows()
        self._fanout = fanout
        self._access = [
            self._open_graph(self._plan(node_type, fanout, seed)) for node_type in range(len(self.schema.node_types))
        ]

    def __enter__(self) -> BlockSource:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop_serving()

    def meet(self) -> None:
        """Returns when all processes have come here."""
        if self.group is not None:
            self.group.meet()

    def _open_rows(self) -> tuple[_LookUp, Callable[[], None]]:
        """What looks up rows of features, and what ends it."""
        if isinstance(self._dataset, ServedDataset):
            return self._dataset.look_up, lambda: None
        if self.group is not None and len(self.group.names) > 1:
            shared = self.group.share("features", [self._dataset])
            return shared.look_up, shared.close
        services = [PartitionService(part) for part in self._parts.values()]
        return FeatureCollector(self._dataset, services, NoPeers()).look_up, lambda: None

    def _ask(self, ask: Callable[[], Answer]) -> Answer:
        """What is asked of the data set; of servers again, where one was lost and is back."""
        return ask() if self._servers is None else self._servers.ask(ask)

    def _plan(self, node_type: int, fanout: int, seed: int) -> SamplingPlan:
        """One hop along the edges that lead to nodes of this type."""
        hops = {
            edge_type: [fanout if spec[0] == node_type else 0]
            for edge_type, spec in zip(self.schema.edge_types, self.schema.edge_specs, strict=True)
        }
        return build_plan(self.schema, hops[None] if self.schema.is_homogeneous else hops, seed=seed)

    def _open_graph(self, plan: SamplingPlan) -> GraphAccess:
        if isinstance(self._dataset, AskedDataset):
            return self._dataset.graph_access(plan)
        if self._dataset.is_whole:
            return LocalGraph(self._dataset, plan)
        services = [PartitionService(part) for part in self._parts.values()]
        nobody = BlockingPeers(rpc.get_endpoint, {}, 0.0)  # who has a node has its edges
        return PartitionedGraph(self._dataset, plan, services, nobody)

    # --- nodes -------------------------------------------------------------------------------------------------

    def blocks(self, node_type: int, block_size: int, partition: int | None = None) -> list[Block]:
        """All nodes of a type, or of one partition alone, in blocks, in the order of the partitions' rows."""
        book = self._books[node_type]
        return [
            Block(node_type, number, first, min(first + block_size, size))
            for number in (range(book.num_partitions) if partition is None else [partition])
            for size in [book.partition_size(number)]
            for first in range(0, size, block_size)
        ]

    def num_nodes(self, node_type: int, partition: int | None = None) -> int:
        """Nodes of a type, or of those in one partition."""
        return self._books[node_type].num_ids if partition is None else self._books[node_type].partition_size(partition)

    @property
    def books(self) -> dict[Any, PartitionBook]:
        """Who owns which node, by node type."""
        return dict(zip(self.schema.node_types, self._books, strict=True))

    def local_ids(self, node_type: int, partition: int) -> torch.Tensor:
        """Ids of a partition's nodes in the order of its rows."""
        return self._books[node_type].local_ids(partition)

    # --- edges -------------------------------------------------------------------------------------------------

    def sample(self, node_type: int, ids: torch.Tensor, layer: int) -> Subgraph:
        """One hop of nodes; the draws depend on the layer and the node alone."""
        graph = self._access[node_type]
        ((subgraph, _),) = self._ask(lambda: run_local(graph.sample([([SeedList(node_type, ids)], 0, layer)])))
        return subgraph

    @property
    def has_rows(self) -> bool:
        """Whether all edges of a block lie one behind the other here."""
        return bool(self._parts) and self._fanout == -1

    def num_edges(self, block: Block) -> int | None:
        """So many edges that lead to a block's nodes are sampled, at most; None where servers have them."""
        if block.partition not in self._parts:
            return None
        edge_types = self.edge_types_to(block.node_type)
        if self._fanout != -1:
            return self._fanout * (block.last - block.first) * len(edge_types)
        bounds = [
            self._topology(block.partition, edge_type).indptr[[block.first, block.last]] for edge_type in edge_types
        ]
        return sum(int(last) - int(first) for first, last in bounds)

    def edges(self, block: Block, edge_type: int) -> BlockEdges:
        """All edges of an edge type that lead to a block's nodes, where they lie; only if ``has_rows``.

        Raises:
            PartitionFormatError, UnknownIdError: the files are damaged.
        """
        topology = self._topology(block.partition, edge_type)
        indptr = topology.indptr[block.first : block.last + 1]
        begin, end = int(indptr[0]), int(indptr[-1])
        if not 0 <= begin <= end <= topology.edge_count or bool((indptr.diff() < 0).any()):
            raise PartitionFormatError(f"indptr: rows {block.first} to {block.last} of partition {block.partition}")
        neighbors, weights = topology.indices[begin:end], topology.edge_weights
        count = self.schema.num_nodes[self.schema.edge_specs[edge_type][1]]
        if neighbors.numel() and not 0 <= int(neighbors.min()) <= int(neighbors.max()) < count:
            raise UnknownIdError(f"indices: expected 0 <= id < {count} in partition {block.partition}")
        return BlockEdges(indptr - begin, neighbors, None if weights is None else weights[begin:end])

    def weights(self, block: Block, edge_type: int) -> torch.Tensor | None:
        """float32, weights of all edges that lead to a block's nodes, as these lie; None where the type has none."""
        if not self._has_weights[edge_type]:
            return None
        if isinstance(self._dataset, ServedDataset):
            served = self._dataset
            return self._ask(lambda: served.edge_weights(block.partition, edge_type, block.first, block.last))
        weights = self.edges(block, edge_type).weights
        assert weights is not None
        return weights.float()

    def check_weights(self) -> None:
        """InvalidArgumentError unless the data set has weights of edges."""
        if not any(self._has_weights):
            raise InvalidArgumentError("weights: expected edge weights in the data set, which has none")

    @functools.cached_property
    def _has_weights(self) -> list[bool]:
        """By edge type."""
        some = next(iter(self._parts.values()), self._dataset)
        return [some.graphs()[edge_type].topo.edge_weights is not None for edge_type in self.schema.edge_types]

    def _topology(self, partition: int, edge_type: int) -> Topology:
        return self._parts[partition].graphs()[self.schema.edge_types[edge_type]].topo

    def edge_types_to(self, node_type: int) -> list[int]:
        """Numbers of the edge types that lead to a node type."""
        name = self.schema.node_types[node_type]
        return [i for i, each in enumerate(self.schema.edge_types) if edge_ends(each, "in")[0] == name]

    # --- features ----------------------------------------------------------------------------------------------

    def without_features(self) -> list[Any]:
        """The node types that have no features."""
        stores = self._dataset.stores()
        return [
            name
            for i, name in enumerate(self.schema.node_types)
            if store_name(NODE_FEATURE, i) not in stores and i not in self._learned
        ]

    def features(self, wanted: dict[int, torch.Tensor]) -> dict[int, torch.Tensor]:
        """float32 rows of nodes, by node type, asked for at once; learned ones follow what is stored."""
        stores = {node_type: store_name(NODE_FEATURE, node_type) for node_type in wanted}
        has = self._dataset.stores()
        stored = {store: wanted[node_type] for node_type, store in stores.items() if store in has}
        found = self._ask(lambda: self._look_up(stored))
        rows = {node_type: [found[store].float()] for node_type, store in stores.items() if store in found}
        with torch.no_grad():
            for node_type in self._learned.keys() & wanted.keys():
                learned = self._ask(functools.partial(self._learned[node_type], wanted[node_type]))
                rows.setdefault(node_type, []).append(learned.float())
        return {
            node_type: found[0] if len(found) == 1 else torch.cat(found, dim=-1) for node_type, found in rows.items()
        }

    @property
    def learned(self) -> dict[str, list[Any]]:
        """By node type what is known of the state of learned rows: name, steps, and since which checkpoint."""
        return {
            str(self.schema.node_types[node_type]): [getattr(rows, name, None) for name in ("name", "step", "tag")]
            for node_type, rows in sorted(self._learned.items())
        }

    def whole_features(self, node_type: int) -> torch.Tensor | None:
        """float32 rows by id, where they lie here one behind the other; else None."""
        if len(self._parts) != 1 or not self._dataset.is_whole or node_type in self._learned:
            return None
        feature: Feature = self._dataset.stores()[store_name(NODE_FEATURE, node_type)]
        if feature.disk_tier is not None:
            return None
        parts = feature.unified.parts
        return parts[0] if len(parts) == 1 and parts[0].dtype == torch.float32 else None


def _open(data: Any) -> DistDataset:
    if isinstance(data, (str, Path)):
        return DirectoryDataset(data)
    if is_pyg_data(data):
        opened = open_partition(data, "in", "edge_weight" if "edge_weight" in data else None)
        assert opened is not None
        return opened
    if isinstance(data, DistDataset):
        if isinstance(data, AskedDataset) or data.is_whole:
            return data
        raise InvalidArgumentError("data: expected the whole data set, got one of its partitions")
    if isinstance(data, Dataset):
        return DistDataset.from_dataset(data)
    raise InvalidArgumentError(
        f"data: expected a partition directory, a data set, a ServedDataset or PyG's data, got {type(data).__name__}"
    )


def _memory_of_features() -> FeatureMemory:
    """What ``GLD_FEATURE_MEMORY`` says; else features that take more than half of what is left have a quarter of it."""
    if (limit := feature_memory()) is not None:
        total = parse_size(limit, name="GLD_FEATURE_MEMORY")
        return FeatureMemory(total, total)
    memory = memory_left_bytes()
    return FeatureMemory(memory // 2, memory // 4)


def _parts(dataset: DistDataset) -> dict[int, DistDataset]:
    """The partitions that are at hand."""
    if isinstance(dataset, DirectoryDataset):
        return {part.partition_idx: part for part in dataset.partitions}
    return {dataset.partition_idx: dataset} if dataset.holds_rows else {}
