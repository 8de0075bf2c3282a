"""The demo's own parts: partitions keep the data set, children do not outlive it, the table says what was measured."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
sys.path.insert(0, str(EXAMPLES))

import datasets  # noqa: E402
import demo  # noqa: E402
from full_batch import FullBatchResult  # noqa: E402

from graphlearn_dist.partition import load_partition_layout  # noqa: E402

HANG_S = 60  # generous: only a hang takes as long


def test_partitions_hold_the_data_set(tmp_path: Path) -> None:
    data = datasets.load("community:600:8:4:6", seed=2)
    demo.partition(data, tmp_path / "parts", 3)
    assert demo.shape_of_partitions(tmp_path / "parts") == (6, 4)
    layout = load_partition_layout(tmp_path / "parts")
    parts = [layout.open_partition(i) for i in range(3)]
    assert sum(part.graphs[None].indices.numel() for part in parts) == data.num_edges
    assert torch.equal(torch.as_tensor(layout.nodes[None].split["val"]), data.val)
    x = torch.cat([part.node_feats[None] for part in parts])
    assert torch.equal(x.sum(1).sort().values, data.x.sum(1).sort().values)


def test_child_that_ended_is_left_alone() -> None:
    with demo.launched([sys.executable, "-c", "raise SystemExit(3)"]) as process:
        assert process.wait(HANG_S) == 3


@pytest.mark.parametrize("stubborn", [False, True])
def test_child_does_not_outlive_an_interrupt(monkeypatch: pytest.MonkeyPatch, stubborn: bool) -> None:
    """Asked to end first; one that ignores it is killed."""
    monkeypatch.setattr(demo, "STOP_TIMEOUT_S", 0.2 if stubborn else HANG_S)
    ignore = "signal.signal(signal.SIGTERM, signal.SIG_IGN); " if stubborn else ""
    code = f"import signal, sys; {ignore}print('up', flush=True); sys.stdin.read()"
    real = subprocess.Popen

    def with_pipes(command: list[str], **options: bool) -> subprocess.Popen[bytes]:
        return real(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, **options)

    monkeypatch.setattr(subprocess, "Popen", with_pipes)
    started: list[subprocess.Popen[bytes]] = []

    def interrupted() -> None:
        with demo.launched([sys.executable, "-c", code]) as process:
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

    args = argparse.Namespace(servers=2, trainers=3, fanout="4,2", batch_size=8, hidden=16)
    result = {
        "test_accuracy": 0.745,
        "best": {"val_accuracy": 0.71},
        "epochs": [row(99, 1), row(2, 1000), row(4, 2000)],
    }
    reference = demo.Reference(
        FullBatchResult(0.75, 0.7, 9, 10, 0.5, 5.0), FullBatchResult(0.5, 0.45, 9, 10, 0.25, 2.5)
    )
    text = demo.summary(result, reference, args)
    lines = [" ".join(line.split()) for line in text.splitlines()]
    for expected in (
        "epoch 3.00 s",
        "seeds 1,500 /s",
        "sampled edges 15,000 /s",
        "a trainer's time 50% waiting for batches",
        "remote, sampled 74.50% 71.00% 3 epochs",
        "full batch 75.00% 70.00% 10 epochs of 0.50 s, one process",
        "without edges 50.00% 45.00% 10 epochs of 0.25 s, one process",
        "remote - full batch -0.50 +1.00 points",
    ):
        assert expected in lines
    assert "full batch" not in demo.summary(result, None, args)


def test_failed_launch_ends_the_demo(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    args = argparse.Namespace(servers=1, trainers=1, epochs=1, hidden=4, fanout="2", batch_size=4, lr=0.1, seed=0)
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(SystemExit, match="exit code 1"):
        demo.train_remotely(args, tmp_path, (3, 2), tmp_path / "out.json")
