"""Learned rows on servers have the same bits for any number of them, and no step is taken by some trainers only."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from graphlearn_dist import DistEmbedding, SparseAdagrad, SparseAdam, SparseSGD
from graphlearn_dist.distributed import (
    CollocatedDistSamplingWorkerOptions,
    DistNeighborLoader,
    MpDistSamplingWorkerOptions,
    RemoteDistSamplingWorkerOptions,
    init_client,
    shutdown_client,
)
from graphlearn_dist.errors import EmbeddingStateError, InvalidArgumentError, PeerLostError
from graphlearn_dist.loader import NeighborLoader
from tests.support.jobs import NUM_NODES, load, make_partitions, running_servers
from tests.support.processes import run_processes

DEADLINE_S = 60.0  # only ever reached by a hang
ALL = torch.arange(NUM_NODES)
DIM, STEPS = 3, 6
OPTIMIZERS = {"sgd": SparseSGD, "adagrad": SparseAdagrad, "adam": SparseAdam}


def gradients(rank: int, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """What a trainer uses in a step, with duplicates, and the derivatives of its loss."""
    generator = torch.Generator().manual_seed(100 * rank + step)
    return torch.randint(NUM_NODES, (40,), generator=generator), torch.randn(40, DIM, generator=generator)


def train(rank: int, num_trainers: int, num_servers: int, port: int, optimizer: str) -> list[list[float]]:
    """A trainer; the rows at its end."""
    init_client(num_servers, num_trainers, rank, "127.0.0.1", port)
    embedding = DistEmbedding(NUM_NODES, DIM, name="a", timeout_s=DEADLINE_S)
    steps = OPTIMIZERS[optimizer]([embedding], lr=0.1)
    for step in range(STEPS):
        ids, weights = gradients(rank, step)
        (embedding(ids) * weights).sum().backward()
        steps.step()
    with torch.no_grad():
        rows: list[list[float]] = embedding(ALL).tolist()
    shutdown_client()
    return rows


def rows_after(tmp_path: Path, num_servers: int, optimizer: str) -> torch.Tensor:
    directory = make_partitions(tmp_path / str(num_servers), num_servers)
    with running_servers(*[directory] * num_servers, num_clients=2) as job:
        how = {"num_trainers": 2, "num_servers": num_servers, "port": job.port, "optimizer": optimizer}
        function = "tests.distributed.test_embeddings.train"
        first, second = run_processes([(function, {"rank": rank, **how}) for rank in range(2)], DEADLINE_S)
    assert first == second
    return torch.tensor(first)


@pytest.mark.parametrize("optimizer", [*OPTIMIZERS])
def test_same_bits_for_any_number_of_servers(optimizer: str, tmp_path: Path) -> None:
    found = [rows_after(tmp_path, num_servers, optimizer) for num_servers in (1, 2, 3)]
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])
    alone = DistEmbedding(NUM_NODES, DIM, name="a")
    steps = OPTIMIZERS[optimizer]([alone], lr=0.1)
    for step in range(STEPS):
        for rank in range(2):
            ids, weights = gradients(rank, step)
            (alone(ids) * weights).sum().backward()
        steps.step()
    torch.testing.assert_close(found[0], alone(ALL).detach())


def rows_in_batches(rank: int, port: int) -> list[list[float]]:
    """The rows after an epoch whose batches bring them, on servers."""
    init_client(2, 1, rank, "127.0.0.1", port)
    embedding = DistEmbedding(NUM_NODES, DIM, name="a", timeout_s=DEADLINE_S)
    options = RemoteDistSamplingWorkerOptions()
    with DistNeighborLoader(
        None, [3, 2], ALL, 16, shuffle=True, worker_options=options, embeddings=embedding, random_seed=3
    ) as loader:
        learn_from(loader, embedding)
    with torch.no_grad():
        rows: list[list[float]] = embedding(ALL).tolist()
    shutdown_client()
    return rows


def learn_from(loader: Any, embedding: DistEmbedding) -> None:
    optimizer = SparseAdam([embedding], lr=0.1)
    for batch in loader:
        assert batch.x.shape == (batch.num_nodes, DIM)
        (batch.x * batch.n_id[:, None]).sum().backward()
        optimizer.step()


def test_loaders_bring_rows_in_every_mode(tmp_path: Path) -> None:
    """The same bits from servers, subprocesses and this process, and as looked up by hand."""
    first = DistEmbedding(NUM_NODES, DIM, name="a")(ALL).detach()
    directory = make_partitions(tmp_path / "one", 1)
    dataset, found = load(directory), []
    how: dict[str, Any] = {"batch_size": 16, "shuffle": True}
    for options in (CollocatedDistSamplingWorkerOptions(), MpDistSamplingWorkerOptions()):
        embedding = DistEmbedding(NUM_NODES, DIM, name="a")
        with DistNeighborLoader(
            dataset, [3, 2], ALL, **how, random_seed=3, worker_options=options, embeddings={None: embedding}
        ) as loader:
            learn_from(loader, embedding)
        found.append(embedding(ALL).detach())
        del embedding, loader
    embedding = DistEmbedding(NUM_NODES, DIM, name="a")
    optimizer = SparseAdam([embedding], lr=0.1)
    for batch in NeighborLoader(dataset, [3, 2], ALL, **how, seed=3):
        (embedding(batch.n_id) * batch.n_id[:, None]).sum().backward()
        optimizer.step()
    found.append(embedding(ALL).detach())
    two = make_partitions(tmp_path / "two", 2)
    with running_servers(two, two, num_clients=1) as job:
        arguments = {"rank": 0, "port": job.port}
        [rows] = run_processes([("tests.distributed.test_embeddings.rows_in_batches", arguments)], DEADLINE_S)
    for other in [*found[1:], torch.tensor(rows)]:
        assert torch.equal(other, found[0])
    assert not torch.equal(found[0], first)


def leave(num_servers: int, port: int) -> None:
    """A trainer that opens the embedding and leaves the other alone."""
    init_client(num_servers, 2, 1, "127.0.0.1", port)
    DistEmbedding(NUM_NODES, DIM, name="a", timeout_s=DEADLINE_S)
    shutdown_client()


def stay(num_servers: int, port: int) -> str:
    """The other one, and what its step says."""
    init_client(num_servers, 2, 0, "127.0.0.1", port)
    embedding = DistEmbedding(NUM_NODES, DIM, name="a", timeout_s=DEADLINE_S)
    with pytest.raises(PeerLostError) as caught:
        SparseSGD([embedding], lr=0.1).step()
    shutdown_client()
    return str(caught.value)


def test_a_trainer_that_leaves_fails_the_step_of_the_others(tmp_path: Path) -> None:
    directory = make_partitions(tmp_path / "data", 2)
    with running_servers(directory, directory, num_clients=2) as job:
        how = {"num_servers": 2, "port": job.port}
        functions = [(f"tests.distributed.test_embeddings.{name}", how) for name in ("stay", "leave")]
        told, _ = run_processes(functions, DEADLINE_S)
    assert "client" in told


def test_mixed_states_are_refused(tmp_path: Path) -> None:
    directory = make_partitions(tmp_path / "data", 2)
    with running_servers(directory, directory) as job, job.client():
        embedding = DistEmbedding(NUM_NODES, DIM, name="a")
        other = DistEmbedding(NUM_NODES, DIM, name="a")
        SparseSGD([embedding], lr=0.1).step()
        with pytest.raises(EmbeddingStateError, match="has taken 1 steps here, the caller is at 0"):
            other(ALL)
        with pytest.raises(EmbeddingStateError, match="has taken 1 steps here, the caller is at 0"):
            SparseSGD([other], lr=0.1).step()
        assert DistEmbedding(NUM_NODES, DIM, name="a").step == 1
        with pytest.raises(InvalidArgumentError, match="embedding 'a': expected"):
            DistEmbedding(NUM_NODES, DIM, name="a", seed=3)
        with pytest.raises(InvalidArgumentError, match=f"num: expected {NUM_NODES}"):
            DistEmbedding(NUM_NODES - 1, DIM, name="a")
        with pytest.raises(InvalidArgumentError, match="node_type: unknown"):
            DistEmbedding(NUM_NODES, DIM, name="b", node_type="user")
