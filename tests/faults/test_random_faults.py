"""Random faults: twenty jobs with one fault each; ``make faults`` runs as many as one likes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from tests.support.processes import ROOT

pytestmark = [pytest.mark.faults, pytest.mark.slow]

_GRACE_S = "60"  # a busy machine takes its time; ten seconds are for one that is quiet
_DEADLINE_S = 900.0


def test_twenty_random_faults() -> None:
    """Each job has exactly the batches of the local loader, or one error that names the cause; nothing is left."""
    command = [sys.executable, "-m", "tests.faults.run", "-n", "20", "--grace", _GRACE_S]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, start_new_session=True) as run:
        try:
            said, _ = run.communicate(timeout=_DEADLINE_S)
        except BaseException:
            os.killpg(run.pid, signal.SIGKILL)  # launchers that die take their jobs with them
            raise
    assert run.returncode == 0, said
    assert "20 faults in" in said
    assert ", 0 wrong" in said
