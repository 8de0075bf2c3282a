"""The demo's own parts: partitions keep the data set, children do not outlive it, the table says what was measured."""

from __future__ import annotations

import argparse
import dataclasses
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
sys.path.insert(0, str(EXAMPLES))

import datasets  # noqa: E402
import demo  # noqa: E402
import job  # noqa: E402
from full_batch import FullBatchResult  # noqa: E402

from graphlearn_dist.errors import LaunchError  # noqa: E402
from graphlearn_dist.partition import load_partition_layout  # noqa: E402

HANG_S = 60  # generous: only a hang takes as long


def test_partitions_hold_the_data_set(tmp_path: Path) -> None:
    data = datasets.load("community:600:8:4:6", seed=2)
    job.partition(data, tmp_path / "parts", 3)
    assert demo.shape_of_partitions(tmp_path / "parts") == (6, 4)
    layout = load_partition_layout(tmp_path / "parts")
    parts = [layout.open_partition(i) for i in range(3)]
    assert sum(part.graphs[None].indices.numel() for part in parts) == data.num_edges
    assert torch.equal(torch.as_tensor(layout.nodes[None].split["val"]), data.val)
    x = torch.cat([part.node_feats[None] for part in parts])
    assert torch.equal(x.sum(1).sort().values, data.x.sum(1).sort().values)


def test_tables_become_partitions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("duckdb", reason="the extra [tables] is not installed")
    pq = pytest.importorskip("pyarrow.parquet")
    import pyarrow as pa

    pq.write_table(pa.table({"id": ["c", "a", "b"], "x": [1.0, 2.0, 3.0], "y": [1, 0, 2]}), tmp_path / "nodes.parquet")
    pq.write_table(pa.table({"from": ["a", "b"], "to": ["b", "c"]}), tmp_path / "edges.parquet")
    (tmp_path / "graph.json").write_text(
        """{"nodes": [{"node_id_col": "id", "files": "nodes.parquet", "features": [{"feature_col": "x"}],
                       "labels": [{"label_col": "y", "split_pct": [0.5, 0.25, 0.25]}]}],
            "edges": [{"source_id_col": "from", "dest_id_col": "to", "files": "edges.parquet"}]}"""
    )
    out = demo.build_partitions(tmp_path / "graph.json", tmp_path / "parts", 2)
    assert demo.shape_of_partitions(out) == (1, 3)
    assert "nodes: 3 (" in capsys.readouterr().out


def test_child_that_ended_is_left_alone() -> None:
    with job.launched([sys.executable, "-c", "raise SystemExit(3)"]) as process:
        assert process.wait(HANG_S) == 3


@pytest.mark.parametrize("stubborn", [False, True])
def test_child_does_not_outlive_an_interrupt(monkeypatch: pytest.MonkeyPatch, stubborn: bool) -> None:
    """Asked to end first; one that ignores it is killed."""
    monkeypatch.setattr(job, "STOP_TIMEOUT_S", 0.2 if stubborn else HANG_S)
    ignore = "signal.signal(signal.SIGTERM, signal.SIG_IGN); " if stubborn else ""
    code = f"import signal, sys; {ignore}print('up', flush=True); sys.stdin.read()"
    real = subprocess.Popen

    def with_pipes(command: list[str], **options: Any) -> subprocess.Popen[bytes]:
        return real(command, **{**options, "stdin": subprocess.PIPE, "stdout": subprocess.PIPE})

    monkeypatch.setattr(subprocess, "Popen", with_pipes)
    started: list[subprocess.Popen[bytes]] = []

    def interrupted() -> None:
        with job.launched([sys.executable, "-c", code]) as process:
            started.append(process)
            assert process.stdout.readline() == b"up\n"
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    process = started[0]
    assert process.returncode == (-signal.SIGKILL if stubborn else -signal.SIGTERM)
    with pytest.raises(ProcessLookupError):
        os.kill(process.pid, 0)
    process.stdin.close()
    process.stdout.close()


def test_table_leaves_the_first_epoch_out_and_compares() -> None:
    def row(train_s: float, seeds_per_s: float) -> dict[str, float]:
        shares = {"wait_share": 0.5, "compute_share": 0.3, "sync_share": 0.2}
        return {"train_s": train_s, "seeds_per_s": seeds_per_s, "edges_per_s": 10 * seeds_per_s, **shares}

    args = argparse.Namespace(servers=2, trainers=3)
    recipe = job.Recipe(fanout="4,2", batch_size=8)
    result = {
        "test": {"accuracy": 0.745},
        "best": {"val_accuracy": 0.71, "epoch": 2},
        "epochs": [row(99, 1), row(2, 1000), row(4, 2000)],
    }
    reference = demo.Reference(
        FullBatchResult(0.75, 0.7, 9, 10, 0.5, 5.0), FullBatchResult(0.5, 0.45, 9, 10, 0.25, 2.5)
    )
    text = demo.summary(result, reference, args, recipe)
    lines = [" ".join(line.split()) for line in text.splitlines()]
    for expected in (
        "epoch 3.00 s",
        "seeds 1,500 /s",
        "sampled edges 15,000 /s",
        "a trainer's time 50% waiting for batches",
        "2 servers; 3 trainers, 8 seeds a batch each; fan-out 4,2",
        "remote, sampled 74.50% 71.00% 3 epochs, best after 2",
        "full batch 75.00% 70.00% 10 steps of 0.50 s in one process, best after 9",
        "without edges 50.00% 45.00% 10 steps of 0.25 s in one process, best after 9",
        "remote - full batch -0.50 +1.00 points",
    ):
        assert expected in lines
    assert "full batch" not in demo.summary(result, None, args, recipe)


def test_failed_launch_is_an_error_with_its_output(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho no such thing >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(broken))
    with pytest.raises(LaunchError, match=r"exit code 1; the end of what it wrote:\nno such thing"):
        job.train_remotely(job.Recipe(), tmp_path, (3, 2), tmp_path / "out.json", log=tmp_path / "log.txt")


def test_launch_has_a_deadline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    stuck = tmp_path / "python"
    stuck.write_text("#!/bin/sh\nexec sleep 600\n")
    stuck.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(stuck))
    with pytest.raises(LaunchError, match=r"did not end within 0\.2 s"):
        job.train_remotely(job.Recipe(), tmp_path, (3, 2), tmp_path / "out.json", timeout_s=0.2)


def test_recipes_go_by_the_name_and_the_command_line_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    assert job.recipe_for("some/where/cora.npz") == job.RECIPES["cora"]
    assert job.recipe_for("community:100") == job.Recipe()
    monkeypatch.setattr(sys, "argv", ["demo.py", "--data", "cora.npz", "--epochs", "3", "--full-epochs", "0"])
    chosen = demo.chosen_recipe(demo.parse_args())
    assert chosen == dataclasses.replace(job.RECIPES["cora"], epochs=3, full_epochs=0)


def test_unit_rows_sum_to_one_and_empty_rows_stay(tmp_path: Path) -> None:
    x = np.array([[1, 3], [0, 0], [2, 2]])
    np.savez(tmp_path / "a.npz", edge_index=[[0], [1]], x=x, y=[0, 1, 0], split=[0, 1, 2])
    data = job.Recipe(unit_rows=True).load(str(tmp_path / "a.npz"))
    assert data.x.tolist() == [[0.25, 0.75], [0, 0], [0.5, 0.5]]
