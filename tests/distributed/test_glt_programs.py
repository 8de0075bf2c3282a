"""Programs written for GraphLearn-for-PyTorch, with another import line: server-client and multiprocessing."""

from __future__ import annotations

import contextlib
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch

from graphlearn_dist.utils.system.ports import reserved_port
from tests.support.glt_programs import NUM_NODES, partition
from tests.support.graphs import analytic_edges
from tests.support.jobs import wait_ended
from tests.support.processes import assert_nothing_left, start

PROGRAMS = "tests.support.glt_programs"
DEADLINE_S = 180.0  # only ever reached by a hang
SEEDS = torch.arange(0, NUM_NODES, 3)
IDS = torch.arange(NUM_NODES)
FEATURES = torch.stack([IDS.float(), IDS + 0.5], dim=1)
TYPES = {("user", "buys", "item"), ("item", "rev_buys", "user"), ("user", "knows", "user")}
GRAPHS: dict[str, dict[str, Any]] = {
    "homogeneous": {
        "num_nodes": NUM_NODES,
        "edge_index": analytic_edges(NUM_NODES),
        "node_feat": FEATURES,
        "node_labels": IDS,
    },
    "typed": {
        "num_nodes": {"user": NUM_NODES, "item": NUM_NODES},
        "edge_index": {edge_type: analytic_edges(NUM_NODES) for edge_type in sorted(TYPES)},
        "node_feat": {"user": FEATURES, "item": FEATURES},
        "node_labels": {"user": IDS},
    },
}


@pytest.fixture(scope="module")
def roots(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Two partitions of each graph, and the seeds, in files."""
    found = {}
    for kind, graph in GRAPHS.items():
        root = tmp_path_factory.mktemp(kind)
        partition(str(root / "parts"), 2, graph)
        torch.save(SEEDS, root / "train_idx.pt")
        found[kind] = str(root)
    return found


def of_each_epoch(epochs: list[list[int]]) -> None:
    """Every seed once in each epoch, in another order."""
    assert epochs[0] != epochs[1]
    assert [sorted(seeds) for seeds in epochs] == [SEEDS.tolist()] * 2


@pytest.mark.parametrize("kind", GRAPHS)
def test_server_and_client(roots: dict[str, str], kind: str, port: int) -> None:
    root, node_type = Path(roots[kind]), None if kind == "homogeneous" else "user"
    job = {"num_servers": 2, "num_clients": 1, "port": port}
    with ExitStack() as stack:
        servers = [
            stack.enter_context(start(f"{PROGRAMS}.run_server", root=str(root / "parts"), rank=rank, **job))
            for rank in range(2)
        ]
        client = stack.enter_context(
            start(f"{PROGRAMS}.run_client", seed_file=str(root / "train_idx.pt"), node_type=node_type, **job)
        )
        result = client.wait(DEADLINE_S)
        for server in servers:
            server.wait(DEADLINE_S)
        assert_nothing_left(*(process.pid for process in (*servers, client)))
    assert result["meta"] == [2, 0, [] if node_type is None else ["item", "user"]]
    of_each_epoch(result["seen"])


def members_of(groups: set[int]) -> list[int]:
    """The processes of these process groups."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            fields = stat.read_text().rpartition(")")[2].split()
            if int(fields[2]) in groups:
                found.append(int(stat.parent.name))
    return found


def test_multiprocessing(roots: dict[str, str]) -> None:
    """Two workers, which end as their programs do: without a word to the package."""
    arguments: dict[str, Any] = {
        "roots": {kind: f"{root}/parts" for kind, root in roots.items()},
        "seed_files": {kind: f"{root}/train_idx.pt" for kind, root in roots.items()},
        "world_size": 2,
    }
    with ExitStack() as stack:
        arguments["ports"] = [stack.enter_context(reserved_port()) for _ in GRAPHS]
        workers = [stack.enter_context(start(f"{PROGRAMS}.run_worker", rank=rank, **arguments)) for rank in range(2)]
        seen = [worker.wait(DEADLINE_S) for worker in workers]
        # Sampling processes see that their worker is gone, and end; who reaps them then is not ours to say.
        wait_ended(members_of({worker.pid for worker in workers}), DEADLINE_S)
        assert_nothing_left()
    for kind in GRAPHS:
        of_each_epoch([seen[0][kind][epoch] + seen[1][kind][epoch] for epoch in range(2)])
