"""A data set that is all on servers, as a client sees it."""

from __future__ import annotations

from dataclasses import replace
from typing import NoReturn

import torch

from ...data.graph import Graph
from ...data.schema import by_type
from ...data.topology import Topology
from ...errors import InvalidArgumentError
from ...partition import PartitionBook
from ...partition.edge_book import edge_book_from_dict
from ...partition.partition_book import from_dict
from ...rpc.calls.remote import Remote
from ...sampler.plan import SamplingPlan
from ...sampler.tasks import HostGraph
from ...typing import EdgeType
from ...utils.coroutines import run_local
from .. import rpc
from ..dist_client import client_context
from ..dist_server import DistServer
from ..partitions.blocking_peers import BlockingPeers
from ..partitions.held_partition import GivenPartition
from ..partitions.partition_outline import BookOutline, DatasetOutline, EdgeOutline
from ..partitions.partition_parts import PartitionParts
from ..partitions.partition_service import PartitionService
from .asked_dataset import AskedDataset
from .feature_collector import FeatureCollector
from .partitioned_sampler import PartitionedGraph


class ServedDataset(AskedDataset):
    """A data set that is all on servers, as a client sees it: types, counts, shapes and owners are here, rows are not.

    ``connect`` makes one. It is what the PyG stores (``pyg_stores``) and ``pyg_sampler.PyGSampler`` take.
    """

    def __init__(self, outline: DatasetOutline, servers: BlockingPeers) -> None:
        super().__init__(edge_dir=outline.edge_dir)  # type: ignore[arg-type]
        self._servers = servers
        nodes, edges = outline.nodes, outline.edges
        books = {node.node_type: _open_book(node.book) for node in nodes}
        own = {node.node_type: _open_book(node.feature_book) for node in nodes if node.feature_book is not None}
        parts = PartitionParts(  # of a partition that owns nothing
            partition_idx=0,
            num_nodes={node.node_type: node.count for node in nodes},
            node_books=books,
            node_feature_books={**books, **own},
            edge_books={edge.edge_type: _open_edge_book(edge.feature_book) for edge in edges},
            graphs={edge.edge_type: self._no_rows(edge) for edge in edges},
            node_features={node.node_type: node.features for node in nodes if node.features is not None},
            node_labels={node.node_type: node.labels for node in nodes if node.labels is not None},
            edge_features={edge.edge_type: edge.features for edge in edges if edge.features is not None},
            earliest_nodes={node.node_type: node.earliest for node in nodes if node.earliest is not None},
            node_attrs={node.node_type: node.attrs for node in nodes},
            edge_attrs={edge.edge_type: edge.attrs for edge in edges},
            table_columns=outline.table_columns,
        )
        self._set(parts)
        self._collector = FeatureCollector(self, (), servers)

    @classmethod
    def connect(cls, timeout_s: float = 180.0) -> ServedDataset:
        """Asks the servers of this client what they hold.

        Args:
            timeout_s: deadline of each request, of those made later through this data set too.

        Raises:
            NotInitializedError: the process is not a client.
            InvalidArgumentError: the servers hold different data sets, or a partition is missing.
        """
        context = client_context()
        endpoint, count = rpc.get_endpoint(), context.num_servers()
        servers = [Remote[DistServer](endpoint, ("server", rank), timeout_s=timeout_s) for rank in range(count)]
        asked = [server.ask(DistServer.get_dataset_meta) for server in servers]
        outline = servers[context.rank % count].ask(DistServer.get_outline)
        ranks: dict[int, list[int]] = {}
        num_partitions = set()
        for rank, answer in enumerate(asked):
            parts, partition, *_ = answer.result()
            num_partitions.add(parts)
            ranks.setdefault(partition, []).append(rank)
        if len(num_partitions) != 1 or (missing := set(range(min(num_partitions))) - {*ranks}):
            held = f"of {sorted(num_partitions)} partitions" if len(num_partitions) != 1 else f"without {missing}"
            raise InvalidArgumentError(f"servers: expected all partitions of one data set, got data sets {held}")
        # clients spread over the servers of a partition by their rank
        holders = {p: (("server", held[context.rank % len(held)]), "") for p, held in ranks.items()}
        return cls(outline.result(), BlockingPeers(rpc.get_endpoint, holders, timeout_s))

    def reach(self, timeout_s: float) -> None:
        """Returns when all servers have answered, within so many seconds each.

        Raises:
            DeadlineExceededError, PeerLostError: one has not.
        """
        servers = self._servers.until(timeout_s)
        answers = [servers.ask(partition, DistServer.get_dataset_meta) for partition in range(self.num_partitions)]

        async def all_of_them() -> None:
            for answer in answers:
                await answer

        run_local(all_of_them())

    def _no_rows(self, edge: EdgeOutline) -> Topology:
        none = torch.empty(0, dtype=torch.int64)
        return Topology.from_arrays(
            torch.zeros(1, dtype=torch.int64),
            none,
            none,
            layout="CSR" if self.edge_dir == "out" else "CSC",
            num_cols=edge.num_cols,
            edge_weights=edge.weights,
            edge_times=edge.times,
        )

    def _given(self) -> GivenPartition:
        return replace(super()._given(), graph=None)  # there are no rows to put in order

    def graphs(self) -> dict[EdgeType | None, Graph]:
        """Edge types and what their edges have; no rows."""
        return by_type(self.graph)

    @property
    def holds_rows(self) -> bool:
        """No: they have to be asked for."""
        return False

    @property
    def is_whole(self) -> bool:
        """No, as no row is here."""
        return False

    def to_handle(self, *, with_splits: bool) -> NoReturn:
        """There is nothing to share, and connections are this process's own: an ``InvalidArgumentError``."""
        raise InvalidArgumentError("data: expected a partition whose rows are here, got a ServedDataset")

    # --- asking ------------------------------------------------------------------------------------------------

    def edge_index(self, edge_type: EdgeType | None) -> torch.Tensor:
        """All edges of a type, int64 ``[2, num_edges]``, sources and targets, in no particular order."""
        answers = [
            self._servers.ask(p, DistServer.get_edge_index, edge_type, "coo") for p in range(self.num_partitions)
        ]

        async def gather() -> torch.Tensor:
            return torch.cat([await answer for answer in answers], dim=1)

        return run_local(gather())

    def edge_weights(self, partition: int, edge_type: int, first: int, last: int) -> torch.Tensor:
        """float32, weights of the edges of a partition's rows from ``first`` to ``last``, in the order of the edges."""

        async def weights() -> torch.Tensor:
            found: torch.Tensor = await self._servers.ask(
                partition, PartitionService.edge_weights, edge_type, first, last
            )
            return found

        return run_local(weights())

    def graph_access(self, plan: SamplingPlan, num_threads: int = 1) -> HostGraph:
        """The graph, asked of the servers hop by hop: one request a partition and hop. Never waits in a coroutine."""
        return PartitionedGraph(self, plan, (), self._servers, num_threads)


def _open_book(outline: BookOutline) -> PartitionBook:
    return from_dict(outline.description, 0, outline.tables)


def _open_edge_book(outline: BookOutline) -> PartitionBook:
    return edge_book_from_dict(outline.description) if outline.description["kind"] == "edges" else _open_book(outline)
