"""The trainer of the fault harness: says what it got, and at one moment of one trainer, that the fault may come.

Arguments: mode, directory of the graph, the trainer whose moment it is, and after how many of its batches that is; -1:
before its loader is opened.
"""

from __future__ import annotations

import sys
from pathlib import Path

from graphlearn_dist.config import LaunchContext
from graphlearn_dist.distributed import init_client, shutdown_client
from tests.faults.hooks import wait_for_go
from tests.faults.workload import NUM_EPOCHS, SERVED, digest, open_loader


def main(mode: str, directory: str, chosen: str, moment: str) -> None:
    context = LaunchContext.from_environ()
    is_chosen, is_served = context.rank == int(chosen), mode in SERVED
    if is_served:
        init_client(
            context.num_servers, context.num_clients, context.rank, context.master_addr, context.master_port,
            connect_timeout_s=60,
        )  # fmt: skip
    if is_chosen and int(moment) < 0:
        wait_for_go()
    with open_loader(mode, Path(directory), context.rank) as loader:
        delivered = 0
        for _ in range(NUM_EPOCHS):
            for batch in loader:
                if is_chosen and delivered == int(moment):
                    wait_for_go()
                print(f"batch {digest(batch)}\n", end="", flush=True)  # in one piece, whatever else is written
                delivered += 1
    if is_served:
        shutdown_client()


if __name__ == "__main__":
    main(*sys.argv[1:])
