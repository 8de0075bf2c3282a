"""Memory of servers that a client has mapped, since batches are lent to it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from graphlearn_dist.distributed import DistNeighborLoader, RemoteDistSamplingWorkerOptions
from graphlearn_dist.distributed import rpc as session_rpc
from tests.support.jobs import NUM_NODES, make_partitions, running_servers
from tests.support.waiting import wait_until

pytestmark = pytest.mark.usefixtures("over_unix_sockets")

DEADLINE_S = 60.0


def open_loader() -> DistNeighborLoader:
    options = RemoteDistSamplingWorkerOptions(num_workers=1, rpc_timeout=DEADLINE_S)
    seeds = torch.arange(NUM_NODES)
    return DistNeighborLoader(None, [2, 2], seeds, batch_size=8, collect_features=True, worker_options=options)


def mapped() -> set[str]:
    """What lies nowhere but in memory, by its inode."""
    return {line.split()[4] for line in Path("/proc/self/maps").read_text().splitlines() if "memfd:" in line}


def test_memory_of_closed_loaders_while_another_ones_batches_wait_to_be_read(tmp_path: Path) -> None:
    """It is mapped no longer, though those of a loader that is left open wait for as long as nobody reads them."""
    parts = make_partitions(tmp_path / "parts", 1, num_features=1000)
    with running_servers(parts) as job, job.client(), open_loader() as left:
        stream, _, _ = session_rpc.get_endpoint().connect(("server", 0), DEADLINE_S).result(DEADLINE_S)
        assert stream is not None
        for _ in range(2):  # the first batches of all are copied, while the region is offered
            batches = iter(left)
            next(batches)
        wait_until(lambda: stream.lent_here(1) > 0)
        before = mapped()
        with open_loader() as closed:
            assert [len(list(closed)) for _ in range(2)] == [len(closed)] * 2
            assert len(mapped()) > len(before)
        wait_until(lambda: mapped() <= before)
        assert stream.lent_here(1) > 0
