"""The examples without servers run, learn, and see the same batches in both modes: their losses agree bit by bit."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
DEADLINE_S = 180.0  # only ever reached by a hang


def run_example(name: str, out: Path) -> tuple[str, dict[str, Any]]:
    """What an example prints and writes with ``--smoke``."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / name), "--smoke", "--out", str(out)],
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout, json.loads(out.read_text())


def test_both_modes_train_alike(tmp_path: Path) -> None:
    printed, collocated = run_example("train_sage_collocated.py", tmp_path / "collocated.json")
    assert f"test accuracy {collocated['test']['accuracy']:.2%}" in printed
    assert collocated["test"]["accuracy"] > 0.9  # four classes
    losses = [row["loss"] for row in collocated["epochs"]]
    assert losses[-1] < losses[0]
    _, mp = run_example("train_sage_mp.py", tmp_path / "mp.json")
    assert [row["loss"] for row in mp["epochs"]] == losses
    assert mp["test"] == collocated["test"]
