"""The examples of local loaders run, and learn something."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
HANG_S = 300  # generous: only a hang takes as long

# What the last line says, and what guessing would reach at most.
EXPECTED = {
    "link_prediction.py": (r"test ROC-AUC (0\.\d+)$", 0.6),
    "subgraph.py": (r"test accuracy (\d+\.\d+)%$", 50.0),
    "hetero.py": (r"test accuracy (\d+\.\d+)%$", 40.0),
}


@pytest.mark.parametrize("name", EXPECTED)
def test_smoke(name: str) -> None:
    command = [sys.executable, str(EXAMPLES / name), "--smoke"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=HANG_S, check=False)
    assert run.returncode == 0, run.stderr
    pattern, guessing = EXPECTED[name]
    found = re.search(pattern, run.stdout.strip().splitlines()[-1])
    assert found is not None, run.stdout
    assert float(found[1]) > guessing
