"""Rows of nodes that lie in several processes of a job: each holds those of some partitions, all ask for all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from ...partition import PartitionBook
from ...rpc import Endpoint
from ...rpc.calls.remote import remote_functions
from ..dist_dataset import DistDataset
from ..partitions.blocking_peers import BlockingPeers
from ..partitions.partition_parts import PartitionParts
from ..partitions.partition_service import PartitionService
from .feature_collector import FeatureCollector


class SharedRows:
    """Serves rows of this process's partitions until it is closed, and asks the other processes for theirs.

    Nobody may ask before all have made theirs.

    Args:
        endpoint: of this process.
        name: of these rows, the same in all processes and of no others.
        own: this process's partitions, at least one.
        owners: the name of the process that serves a partition, by partition.
        timeout_s: deadline of each request.
    """

    def __init__(
        self, endpoint: Endpoint, name: str, own: Sequence[DistDataset], owners: Mapping[int, str], timeout_s: float
    ) -> None:
        suffixes = {partition: f".{name}.{partition}" for partition in owners}
        services = [PartitionService(part) for part in own]
        self._endpoint = endpoint
        self._functions = [
            each for one in services for each in remote_functions(one, suffixes[one.partition_idx]).items()
        ]
        endpoint.register_all(dict(self._functions))
        holders = {partition: (owner, suffixes[partition]) for partition, owner in owners.items()}
        self._collector = FeatureCollector(own[0], services, BlockingPeers(lambda: endpoint, holders, timeout_s))

    def look_up(self, wanted: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Rows by store (see ``data.dataset.store_name``) in the order of the ids; one request for each partition of
        another process that owns some. Any thread may call it.

        Raises:
            UnknownIdError: an id is outside the data set.
            DeadlineExceededError, PeerLostError: a process did not answer.
        """
        return self._collector.look_up(wanted)

    def close(self) -> None:
        """Serves the rows no more. Idempotent."""
        while self._functions:
            self._endpoint.unregister(self._functions.pop()[0])


def rows_of_partition(
    partition: int, books: Mapping[str | None, PartitionBook], rows: Mapping[str | None, torch.Tensor]
) -> DistDataset:
    """A partition that has rows of nodes and no edges.

    Args:
        partition: its number.
        books: who owns which node, by node type.
        rows: ``[nodes of the partition, width]`` by node type, in the order of its book.
    """
    seen_from_it = {node_type: book.for_partition(partition) for node_type, book in books.items()}
    parts = PartitionParts(
        partition_idx=partition,
        num_nodes={node_type: book.num_ids for node_type, book in books.items()},
        node_books=seen_from_it,
        node_feature_books=seen_from_it,
        edge_books={},
        graphs={},
        node_features=rows,
    )
    return DistDataset._of_parts(parts, "in")
