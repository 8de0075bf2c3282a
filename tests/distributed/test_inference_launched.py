"""Inference by trainers under the launcher; one process of the job dies at a random moment, and the next job goes on.

``python -m pytest tests/distributed/test_inference_launched.py -m thorough`` has twenty deaths.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch_geometric.nn import GraphSAGE

from graphlearn_dist.cli import main
from graphlearn_dist.inference import infer, open_results
from tests.support.graphs import random_graph
from tests.support.inference import basic, dataset_of, num_done, partitions_of
from tests.support.jobs import children, wait_ended
from tests.support.processes import TestProcess, start
from tests.support.worker_groups import DEADLINE_S

HERE = "tests.distributed.test_inference_launched"
GRAPH = random_graph(900, 7000, 7)
MODEL = """
from torch_geometric.nn import GraphSAGE
from tests.support.inference import basic

def make():
    return basic(GraphSAGE)
"""

pytestmark = pytest.mark.faults


def launch(directory: str, model: str, out: str) -> int:
    """Two servers and two trainers, which go on where an earlier job was; the launcher's exit code."""
    job = ["launch", "--data", directory, "--servers", "2", "--trainers", "2", "-m", "graphlearn_dist"]
    what = ["infer", "--together", "--resume", "--data", directory, "--model", f"{model}:make", "--out", out]
    return main([*job, *what, "--block-size", "2", "--quiet"])


def below(pid: int) -> Iterator[int]:
    """A process's children, their children, and so on."""
    for child in children(pid):
        yield child
        yield from below(child)


def wait_for_a_block(out: Path, before: int, launcher: TestProcess) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while num_done(out) <= before and launcher.poll() is None:
        assert time.monotonic() < deadline, launcher.output()
        time.sleep(0.002)


def kill_one(launcher: TestProcess, rng: random.Random) -> None:
    """Kills the launcher, or a wrapper, a server or a trainer."""
    with contextlib.suppress(ProcessLookupError):  # the job may have ended
        os.kill(rng.choice([launcher.pid, *below(launcher.pid)]), signal.SIGKILL)


def check_deaths(root: Path, num_deaths: int, seed: int) -> None:
    """Kills until so many processes were, goes on after each, and compares what is there at the end."""
    rng, left, number = random.Random(seed), num_deaths, 0
    directory, model = partitions_of(GRAPH, root, "random", 2), root / "model.py"
    model.write_text(MODEL)
    expected = infer(basic(GraphSAGE), dataset_of(GRAPH)).rows()
    while left or number == 0 or (root / f"out{number}").exists():
        out = root / f"out{number}"
        before = num_done(out)
        with start(f"{HERE}.launch", directory=str(directory), model=str(model), out=str(out)) as launcher:
            wait_for_a_block(out, before, launcher)
            job = [*below(launcher.pid)]
            if left:
                time.sleep(rng.uniform(0.0, 0.4))
                kill_one(launcher, rng)
                left -= 1
                wait_ended([launcher.pid, *job], DEADLINE_S)
            else:
                assert launcher.wait(DEADLINE_S) == 0
        if (out / "RESULTS.json").exists():
            assert torch.equal(open_results(out).rows(), expected)
            number += 1


def test_a_death_at_a_random_moment(tmp_path: Path) -> None:
    check_deaths(tmp_path, 1, 1)


@pytest.mark.thorough
def test_twenty_deaths_at_random_moments(tmp_path: Path) -> None:
    check_deaths(tmp_path, 20, 2)
