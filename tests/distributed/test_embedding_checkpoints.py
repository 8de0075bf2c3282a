"""Checkpoints of learned rows on servers: for any number of them, and after deaths of servers and trainers."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from graphlearn_dist import DistEmbedding, SparseAdam
from graphlearn_dist.distributed import init_client, shutdown_client
from graphlearn_dist.distributed.embeddings import checkpoint
from graphlearn_dist.distributed.embeddings.checkpoint import Checkpoint
from graphlearn_dist.errors import (
    DeadlineExceededError,
    EmbeddingStateError,
    InvalidArgumentError,
    PeerLostError,
    StorageError,
)
from graphlearn_dist.partition.storage import ArrayFile, check_size
from tests.distributed.test_embeddings import ALL, DIM, gradients
from tests.support.jobs import NUM_NODES, Job, make_partitions, running_servers
from tests.support.processes import TestProcess, run_processes, start

HERE = "tests.distributed.test_embedding_checkpoints"
DEADLINE_S = 120.0  # only ever reached by a hang
LONG_S = 900.0  # so is this one, by ten thousand steps
LOST = (PeerLostError, EmbeddingStateError, DeadlineExceededError)


def take_steps(embedding: DistEmbedding, optimizer: SparseAdam, rank: int, until: int) -> None:
    while embedding.step < until:
        ids, weights = gradients(rank, embedding.step)
        (embedding(ids) * weights).sum().backward()
        optimizer.step()


def rows_of(embedding: DistEmbedding) -> list[list[float]]:
    with torch.no_grad():
        rows: list[list[float]] = embedding(ALL).tolist()
    return rows


def train(rank: int, num_servers: int, port: int, load: str, save: str, until: int) -> list[list[float]]:
    """A trainer of two that goes on from one checkpoint, or from none, and leaves another."""
    init_client(num_servers, 2, rank, "127.0.0.1", port)
    embedding = DistEmbedding(NUM_NODES, DIM, name="a", timeout_s=DEADLINE_S)
    if load:
        embedding.load(load)
        assert embedding.tag == Checkpoint.read(Path(load)).tag  # what ``infer`` resumes by
    take_steps(embedding, SparseAdam([embedding], lr=0.1), rank, until)
    rows = rows_of(embedding)
    if save and rank == 0:
        embedding.save(save)
    shutdown_client()
    return rows


def rows_after(directory: Path, num_servers: int, deadline_s: float = DEADLINE_S, **how: Any) -> list[list[float]]:
    with running_servers(*[directory] * num_servers, num_clients=2) as job:
        function = f"{HERE}.train"
        arguments = {"num_servers": num_servers, "port": job.port, "load": "", "save": "", **how}
        first, second = run_processes([(function, {"rank": rank, **arguments}) for rank in range(2)], deadline_s)
    assert first == second
    rows: list[list[float]] = first
    return rows


def test_a_checkpoint_goes_on_with_the_same_bits_on_any_number_of_servers(tmp_path: Path) -> None:
    directories = {count: make_partitions(tmp_path / str(count), count) for count in (1, 2, 3)}
    undisturbed = rows_after(directories[2], 2, until=6)
    saved = str(tmp_path / "saved")
    rows_after(directories[2], 2, until=3, save=saved)
    for count in (1, 2, 3):
        assert rows_after(directories[count], count, until=6, load=saved) == undisturbed
    # In one process, which has no partitions, as well.
    alone = DistEmbedding(NUM_NODES, DIM, name="a")
    alone.load(saved)
    assert alone.step == 3
    with pytest.raises(InvalidArgumentError, match=r"directory: expected a checkpoint of dim 4, .* has 3"):
        DistEmbedding(NUM_NODES, 4, name="b").load(saved)


def load_what_is_replaced(rank: int, port: int, before: str, saved: str) -> tuple[int, list[list[float]]]:
    """A trainer of two; the second one had read the directory when it still had what is in ``before``."""
    init_client(2, 2, rank, "127.0.0.1", port)
    embedding = DistEmbedding(NUM_NODES, DIM, name="a", timeout_s=DEADLINE_S)
    read = Checkpoint.read
    with pytest.MonkeyPatch.context() as patched:
        if rank == 1:
            early = iter([replace(read(Path(before)), folder=Path(saved))])
            patched.setattr(Checkpoint, "read", lambda *args: next(early, None) or read(*args))
        embedding.load(saved)
    found = embedding.step, rows_of(embedding)
    shutdown_client()
    return found


def test_a_checkpoint_that_is_replaced_while_trainers_read_it(tmp_path: Path) -> None:
    directory, saved, before = make_partitions(tmp_path / "data", 2), tmp_path / "saved", tmp_path / "before"
    rows_after(directory, 2, until=3, save=str(saved))
    shutil.copytree(saved, before)
    expected = rows_after(directory, 2, until=6, save=str(saved))
    with running_servers(directory, directory, num_clients=2) as job:
        arguments = {"port": job.port, "before": str(before), "saved": str(saved)}
        found = run_processes(
            [(f"{HERE}.load_what_is_replaced", {"rank": rank, **arguments}) for rank in range(2)], DEADLINE_S
        )
    assert found == [[6, expected]] * 2


def test_a_file_that_goes_while_its_checkpoint_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reader of a checkpoint that another one replaces meanwhile has the new one."""
    embedding = DistEmbedding(NUM_NODES, DIM, name="a")
    embedding.save(tmp_path)

    def check_late(folder: Path, file: ArrayFile) -> None:
        monkeypatch.undo()
        take_steps(embedding, SparseAdam([embedding], lr=0.1), 0, 1)
        embedding.save(tmp_path)
        check_size(folder, file)

    monkeypatch.setattr(checkpoint, "check_size", check_late)
    assert Checkpoint.read(tmp_path).step == 1
    next(tmp_path.glob("*.npy")).unlink()
    with pytest.raises(StorageError):
        Checkpoint.read(tmp_path)


# --- deaths ----------------------------------------------------------------------------------------------------


def learn(rank: int, num_servers: int, port: int, saved: str, until: int, every: int) -> list[list[float]]:
    """A trainer of two that goes on from the last checkpoint, as often as something is lost; says how far it is."""
    init_client(num_servers, 2, rank, "127.0.0.1", port, connect_timeout_s=DEADLINE_S)
    embedding = DistEmbedding(NUM_NODES, DIM, name="a", timeout_s=DEADLINE_S)
    optimizer = SparseAdam([embedding], lr=0.1)
    is_begun = (Path(saved) / "META.json").exists()
    while True:
        try:
            if is_begun:
                embedding.load(saved)
            is_begun = True
            while embedding.step < until:
                if rank == 0 and embedding.step % every == 0:
                    embedding.save(saved)
                    (Path(saved) / f"at-{embedding.step}").touch()
                take_steps(embedding, optimizer, rank, embedding.step + 1)
            rows = rows_of(embedding)
            optimizer.step()  # nobody leaves before all have read
            break
        except LOST:
            continue
    shutdown_client()
    return rows


def wait_for(path: Path, *processes: TestProcess) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not path.exists():
        assert time.monotonic() < deadline, path
        for process in processes:
            if process.poll() is not None:
                pytest.fail(f"a trainer gave {process.wait(DEADLINE_S)} before it had got to {path.name}")
        time.sleep(0.002)


def restarted(job: Job, rank: int, directory: Path, num_servers: int) -> contextlib.AbstractContextManager[TestProcess]:
    """A server in place of one that was killed."""
    arguments = {"directory": str(directory), "rank": rank, "num_servers": num_servers, "num_clients": 2}
    return start("tests.support.jobs.serve", **arguments, port=job.port, fd=-1, partition=-1)


def killed_and_begun_again(
    directory: Path,
    saved: Path,
    until: int,
    every: int,
    kill_at: list[tuple[int, str]],
    pause: Callable[[], float],
    deadline_s: float = DEADLINE_S,
) -> list[list[float]]:
    """The rows after all steps of two trainers and two servers, of which some are killed after some checkpoints."""
    saved.mkdir()
    how = {"num_servers": 2, "saved": str(saved), "until": until, "every": every}
    with contextlib.ExitStack() as stack:
        job = stack.enter_context(running_servers(directory, directory, num_clients=2))
        trainers = [stack.enter_context(start(f"{HERE}.learn", rank=r, port=job.port, **how)) for r in range(2)]
        server = job.servers[1]
        for step, who in kill_at:
            wait_for(saved / f"at-{step}", *trainers)
            time.sleep(pause())
            if who == "server":
                server.kill()
                server = stack.enter_context(restarted(job, 1, directory, 2))
            else:
                rank = int(who[-1])
                trainers[rank].kill()
                trainers[rank] = stack.enter_context(start(f"{HERE}.learn", rank=rank, port=job.port, **how))
        first, second = (trainer.wait(deadline_s) for trainer in trainers)
    assert first == second
    rows: list[list[float]] = first
    return rows


@pytest.mark.faults
def test_after_deaths_the_same_final_bits(tmp_path: Path) -> None:
    directory = make_partitions(tmp_path / "data", 2)
    undisturbed = rows_after(directory, 2, until=40)
    kills = [(4, "server"), (12, "trainer1"), (20, "server"), (28, "trainer0")]
    found = killed_and_begun_again(directory, tmp_path / "saved", 40, 4, kills, lambda: 0.0)
    assert found == undisturbed


@pytest.mark.faults
@pytest.mark.thorough
def test_ten_thousand_steps_and_twenty_deaths(tmp_path: Path) -> None:
    directory = make_partitions(tmp_path / "data", 2)
    undisturbed = rows_after(directory, 2, LONG_S, until=10_000)
    generator = random.Random(5)
    kills = [(400 * place, generator.choice(["server", "trainer0", "trainer1"])) for place in range(1, 21)]
    found = killed_and_begun_again(
        directory, tmp_path / "saved", 10_000, 100, kills, lambda: generator.uniform(0, 0.3), LONG_S
    )
    assert found == undisturbed


def test_a_server_that_was_started_anew_says_so(tmp_path: Path) -> None:
    """Its rows are gone: neither pulls nor pushes nor a new embedding go on with mixed states."""
    directory = make_partitions(tmp_path / "data", 2)
    saved = tmp_path / "saved"
    with running_servers(directory, directory) as job, job.client():
        embedding = DistEmbedding(NUM_NODES, DIM, name="a", timeout_s=DEADLINE_S)
        optimizer = SparseAdam([embedding], lr=0.1)
        take_steps(embedding, optimizer, 0, 2)
        embedding.save(saved)
        expected = rows_of(embedding)
        take_steps(embedding, optimizer, 0, 3)
        job.servers[1].kill()
        arguments = {"directory": str(directory), "rank": 1, "num_servers": 2, "num_clients": 0}
        with start("tests.support.jobs.serve", **arguments, port=job.port, fd=-1, partition=-1):
            for use in (lambda: embedding(ALL), optimizer.step):
                for _ in range(2):  # the first may have met its death
                    with pytest.raises((PeerLostError, EmbeddingStateError)) as caught:
                        use()
                assert isinstance(caught.value, EmbeddingStateError)
            other = DistEmbedding(NUM_NODES, DIM, name="a", timeout_s=DEADLINE_S)
            assert other.step == -1
            with pytest.raises(EmbeddingStateError, match=r"servers have taken different steps: \[\d, 0\]"):
                other(ALL)
            other.load(saved)
            assert (other.step, rows_of(other)) == (2, expected)
            with pytest.raises(EmbeddingStateError, match="since checkpoint"):
                embedding(ALL)
            embedding.load(saved)
            assert rows_of(embedding) == expected


def test_what_is_damaged_or_elsewhere_changes_nothing(tmp_path: Path) -> None:
    directory = make_partitions(tmp_path / "data", 2)
    saved = tmp_path / "saved"
    with running_servers(directory, directory) as job, job.client():
        embedding = DistEmbedding(NUM_NODES, DIM, name="a", timeout_s=DEADLINE_S)
        with pytest.raises(StorageError, match="there is no checkpoint"):
            embedding.load(saved)
        take_steps(embedding, SparseAdam([embedding], lr=0.1), 0, 2)
        embedding.save(saved)
        expected, names = rows_of(embedding), sorted(os.listdir(saved))
        path = next(path for path in saved.glob("*-1-rows.npy"))
        whole = path.read_bytes()
        path.write_bytes(whole[:-1])
        with pytest.raises(StorageError, match="expected"):
            embedding.load(saved)
        path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
        with pytest.raises(StorageError, match="altered"):
            embedding.load(saved)
        path.write_bytes(whole)
        embedding.load(saved)
        assert rows_of(embedding) == expected
        file = tmp_path / "file"
        file.touch()
        with pytest.raises(StorageError, match="file"):
            embedding.save(file / "below")
        (saved / "0123456789abcdef-0-rows.npy").touch()  # of one that was killed
        embedding.save(saved)
        assert len(os.listdir(saved)) == len(names)
        embedding.load(saved)
        assert rows_of(embedding) == expected
