"""The other partitions of a worker's data set: found among the workers of its group."""

from __future__ import annotations

from ...config import job_token, master_from_environ
from ...errors import InvalidArgumentError, NotInitializedError
from .. import rpc
from ..dist_context import get_context
from ..dist_dataset import DistDataset
from ..dist_options import CollocatedDistSamplingWorkerOptions, MpDistSamplingWorkerOptions
from ..partitions.host_partitions import open_partitions
from ..partitions.partition_peers import EndpointPeers, PartitionHolders
from ..partitions.partition_service import PartitionService
from ..sampling.batches import NoPeers


def find_holders(
    dataset: DistDataset, options: CollocatedDistSamplingWorkerOptions | MpDistSamplingWorkerOptions
) -> PartitionHolders:
    """Who serves the other partitions; joins the group where the caller has not.

    Raises:
        NotInitializedError: there are other partitions, and this process is no worker.
        InvalidArgumentError: the group has too few workers to hold all partitions, nobody said where it meets, or the
            rows are on servers.
    """
    if not dataset.holds_rows:
        raise InvalidArgumentError(
            "data: expected a partition whose rows are here, got a ServedDataset; to have the servers sample, pass "
            "None and RemoteDistSamplingWorkerOptions"
        )
    if dataset.num_partitions == 1:
        return PartitionHolders({})
    context = get_context()
    if context is None or not context.is_worker():
        raise NotInitializedError(
            f"data: it is one of {dataset.num_partitions} partitions, and this process is in no group of workers that "
            "hold the others: call init_worker_group first (or have servers sample: RemoteDistSamplingWorkerOptions)"
        )
    if context.world_size < dataset.num_partitions:
        raise InvalidArgumentError(
            f"data: expected a worker for each of {dataset.num_partitions} partitions, got {context.world_size} workers"
        )
    if not rpc.rpc_is_initialized():
        address, port = _meeting_point(options)
        rpc.init_rpc(address, port, options.rpc_threads, options.rpc_timeout, token=job_token())
    return rpc.get_worker_group().find_holders(dataset, options.rpc_timeout)


def _meeting_point(
    options: CollocatedDistSamplingWorkerOptions | MpDistSamplingWorkerOptions,
) -> tuple[str, int]:
    address, port = master_from_environ()
    address = options.master_addr or address
    port = int(options.master_port) if options.master_port is not None else port
    if address is None or port is None:
        raise InvalidArgumentError(
            "worker_options: expected master_addr and master_port, where the workers of the group meet (or MASTER_ADDR "
            "and MASTER_PORT in the environment, or a call of init_rpc before)"
        )
    return address, port


def open_peers(
    dataset: DistDataset, options: CollocatedDistSamplingWorkerOptions, holders: PartitionHolders
) -> tuple[list[PartitionService], EndpointPeers | NoPeers]:
    """The partitions at hand, this process's own first, and the others, asked over this process's endpoint.

    The latter are to be closed by who has them.
    """
    own = PartitionService(dataset, options.num_threads)
    if not holders.addresses:
        return [own], NoPeers()
    at_hand = open_partitions(holders.shared, dataset, options.num_threads)
    return [own, *at_hand], EndpointPeers(rpc.get_endpoint(), holders, options.rpc_timeout)
