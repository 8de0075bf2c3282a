"""A launched trainer: compares its batches with those of one process, and waits half-way through each epoch."""

from __future__ import annotations

import os
from pathlib import Path

from graphlearn_dist.config import LaunchContext
from graphlearn_dist.distributed import RemoteDistSamplingWorkerOptions, init_client, shutdown_client
from tests.support.oracle import assert_same, open_loader, oracle_epochs, pyg_tensors

GRAPH, SAMPLING = "homogeneous", ("node", "uniform")
HALF_WAY = 5


def main() -> None:
    context = LaunchContext.from_environ()
    init_client(
        num_servers=context.num_servers,
        num_clients=context.num_clients,
        client_rank=context.rank,
        master_addr=context.master_addr,
        master_port=context.master_port,
    )
    loader = open_loader(GRAPH, "in", SAMPLING, None, RemoteDistSamplingWorkerOptions(num_workers=1, prefetch_size=2))
    for epoch, expected in enumerate(oracle_epochs(GRAPH, "in", SAMPLING)):
        for index, (batch, wanted) in enumerate(zip(loader, expected, strict=True)):
            assert_same(pyg_tensors(batch), wanted)
            if index == HALF_WAY:
                print(f"half-way {epoch}", flush=True)
                Path(os.environ["GLD_TEST_PIPE"]).read_text()
        print(f"same {epoch} {len(expected)}", flush=True)
    loader.shutdown()
    shutdown_client()


if __name__ == "__main__":
    main()
