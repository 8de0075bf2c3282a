"""The examples run in every mode, learn, and see the same batches in all of them: losses agree bit by bit."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.processes import ROOT, run_program

DEADLINE_S = 300.0  # only ever reached by a hang


def run_job(name: str, *arguments: str) -> str:
    """What an example prints that starts servers and trainers."""
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [str(ROOT / "examples" / name), *arguments]
    done = run_program(*command, directory=ROOT, timeout_s=DEADLINE_S, environ=environ)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout


@pytest.mark.thorough
def test_tables_are_built_trained_on_and_gone_on_with(tmp_path: Path) -> None:
    """Two servers, a trainer that stops in the middle of an epoch, and one that goes on."""
    pytest.importorskip("duckdb", reason="the extra [tables] is not installed")
    printed = run_job("tables.py", "--smoke", "--workdir", str(tmp_path))
    assert "segments bargains, books, games, garden; features of users age, visits" in printed
    stopped = re.search(r"stopped in epoch (\d+), after (\d+) batches", printed)
    went_on = re.search(r"goes on in epoch (\d+), batch (\d+)", printed)
    assert stopped is not None and went_on is not None, printed  # noqa: PT018
    assert (went_on[1], int(went_on[2])) == (stopped[1], int(stopped[2]) + 1)
    assert re.search(r"test accuracy \d+\.\d+%", printed)


@pytest.mark.thorough
def test_rows_are_inferred_beside_training(tmp_path: Path) -> None:
    """On the same servers, with the weights of each epoch."""
    printed = run_job("inference.py", "--smoke", "--workdir", str(tmp_path))
    lines = printed.splitlines()
    losses = [re.search(r"epoch (\d): loss (.*)", line) for line in lines if line.startswith("[trainer 0]")]
    assert [found and found[1] for found in losses] == ["0", "1"]
    rows = [re.search(r"rows of epoch (\d): 2,000 nodes, test accuracy (.*)%", line) for line in lines]
    accuracies = [float(found[2]) for found in rows if found]
    assert len(accuracies) == 2
    assert accuracies[-1] > 60  # of four classes
    assert (tmp_path / "rows" / "RESULTS.json").exists()
    joined, drawn = map(float, re.findall(r"(-?[\d.]+) of", lines[-1]))
    assert joined > drawn


def test_rows_are_learned_and_exported(tmp_path: Path) -> None:
    """Tables without features, two servers and two trainers, and Parquet by the ids of the tables."""
    pytest.importorskip("duckdb", reason="the extra [tables] is not installed")
    printed = run_job("embeddings.py", "--smoke", "--workdir", str(tmp_path))
    told = re.search(r"3,000 users written; segments of (\d+\.\d+)% of the test users are told", printed)
    assert told is not None, printed
    assert float(told[1]) > 60  # of four segments


def run_example(name: str, mode: str, *arguments: str) -> str:
    """What an example prints with ``--smoke``.

    Servers and their trainers are interpreters that start and end as those of users; in other modes they are forks.
    """
    command = [str(ROOT / "examples" / name), "--smoke", "--mode", mode, *arguments]
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    if mode == "remote":
        done = subprocess.run(
            [sys.executable, *command], env=environ, capture_output=True, text=True, timeout=DEADLINE_S, check=False
        )
    else:
        done = run_program(*command, directory=ROOT, timeout_s=DEADLINE_S, environ=environ)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout


@pytest.mark.thorough
def test_all_modes_train_alike(tmp_path: Path) -> None:
    results: dict[str, dict[str, Any]] = {}
    for mode in ("local", "collocated", "mp", "remote"):
        printed = run_example("train_sage.py", mode, "--out", str(tmp_path / mode))
        results[mode] = json.loads((tmp_path / mode).read_text())
        accuracy = results[mode]["test"]["accuracy"]
        assert f"test accuracy {accuracy:.2%}" in printed
        assert accuracy > 0.9  # four classes
    losses = {mode: [row["loss"] for row in result["epochs"]] for mode, result in results.items()}
    assert losses["local"][-1] < losses["local"][0]
    assert losses["collocated"][-1] < losses["collocated"][0]
    for mode in ("mp", "remote"):  # two trainers each, as the collocated ones
        assert losses[mode] == losses["collocated"]
        assert results[mode]["test"] == results["collocated"]["test"]


# What an example says at its end, and what guessing would reach at most.
SAYS = {
    "link_prediction.py": (r"test ROC-AUC (0\.\d+)$", 0.6),
    "subgraph.py": (r"test accuracy (\d+\.\d+)%$", 50.0),
    "hetero.py": (r"test accuracy (\d+\.\d+)%$", 40.0),
}


@pytest.mark.parametrize(
    ("name", "mode"),
    [
        *((name, "local") for name in SAYS),
        pytest.param("link_prediction.py", "remote", marks=pytest.mark.thorough),
        pytest.param("hetero.py", "collocated", marks=pytest.mark.thorough),
        pytest.param("subgraph.py", "mp", marks=pytest.mark.thorough),
    ],
)
def test_smoke(name: str, mode: str) -> None:
    pattern, guessing = SAYS[name]
    printed = run_example(name, mode)
    found = re.search(pattern, printed, re.MULTILINE)
    assert found is not None, printed
    assert float(found[1]) > guessing
