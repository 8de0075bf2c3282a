"""Large batches that want many of the same rows of other hosts: they travel by twos, as far as there is memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from graphlearn_dist.config import rpc_engine
from graphlearn_dist.distributed import DistNeighborLoader, RemoteDistSamplingWorkerOptions
from graphlearn_dist.distributed import rpc as session_rpc
from graphlearn_dist.loader import NeighborLoader
from tests.support.jobs import NUM_NODES, load, make_partitions, running_servers, same_batches

pytestmark = [
    pytest.mark.usefixtures("over_unix_sockets"),
    pytest.mark.skipif(
        rpc_engine() != "native", reason="counts queries of the native engine; the one in Python sends none"
    ),
]

DEADLINE_S = 60.0
SERVERS = range(2)
NUM_FEATURES = 1000  # a batch has some 400 KB of rows
SEEDS = torch.arange(NUM_NODES).repeat(22)
NUM_BATCHES = 66  # of fewer, none would go together, so that all workers have about as many
MIB = 1 << 20


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> NeighborLoader:
    whole = load(make_partitions(tmp_path_factory.mktemp("whole"), 1, num_features=NUM_FEATURES))
    return NeighborLoader(whole, [4], SEEDS, batch_size=40, shuffle=True)


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_partitions(tmp_path_factory.mktemp("parts"), len(SERVERS), num_features=NUM_FEATURES)


@pytest.fixture(scope="module", params=["0", "1"], ids=["asked", "in place"])
def is_in_place(parts: Path, request: pytest.FixtureRequest) -> Iterator[bool]:
    """Whether servers read each other's partitions in place, while two of them run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GLD_SHARE_PARTITIONS", request.param)
        with running_servers(parts, parts) as job, job.client():
            yield request.param == "1"


def queries() -> int:
    """That servers were asked by this process."""
    endpoint = session_rpc.get_endpoint()
    streams = [endpoint.connect(("server", rank), DEADLINE_S).result(DEADLINE_S).stream for rank in SERVERS]
    return sum(stream.queries_sent for stream in streams if stream is not None)


@pytest.mark.parametrize("buffer_size", [6 * MIB, 3 * MIB], ids=["there is room", "larger than expected"])
def test_they_are_asked_for_by_twos(is_in_place: bool, local: NeighborLoader, buffer_size: int) -> None:
    options = RemoteDistSamplingWorkerOptions(
        server_rank=0, num_workers=1, rpc_timeout=DEADLINE_S, buffer_size=buffer_size
    )
    before = queries()
    with DistNeighborLoader(
        None, [4], SEEDS, batch_size=40, shuffle=True, collect_features=True, worker_options=options
    ) as loader:
        same_batches(loader, [local.batch(0, index) for index in range(NUM_BATCHES)])
        asked = queries() - before
        if is_in_place:
            assert asked == NUM_BATCHES
        elif buffer_size == 6 * MIB:
            assert asked == NUM_BATCHES // 2
        else:  # a pair takes more than a fifth of the memory: from then on they go one by one
            assert NUM_BATCHES // 2 < asked <= NUM_BATCHES
        same_batches(loader, [local.batch(1, index) for index in range(NUM_BATCHES)])
