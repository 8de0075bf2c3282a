"""The launcher under Slurm itself, on two hosts: how a job ends that is cancelled, or that srun starts twice."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.jobs import make_partitions
from tests.support.processes import ROOT
from tests.support.slurm_hosts import missing_slurm, start_slurm
from tests.support.ssh_hosts import NAMES, SshCluster, ssh_cluster, why_not

pytestmark = pytest.mark.thorough
DEADLINE_S = 200.0  # only ever reached by a hang
TRAINER = """
import threading
print("trains", flush=True)
threading.Event().wait()
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[SshCluster]:
    if missing := missing_slurm():
        pytest.skip(f"Slurm is not installed: {', '.join(missing)}")
    if reason := why_not():
        pytest.skip(reason)
    with ssh_cluster() as cluster:
        start_slurm(cluster)
        yield cluster


def submit(cluster: SshCluster, directory: Path, script: str, *options: str) -> str:
    """Has Slurm run a script; its job's number. What it prints goes to ``out`` of the directory."""
    programs = directory / "bin"
    programs.mkdir()
    (programs / "ssh").write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {cluster.directory}/ssh_config "$@"\n')
    (programs / "graphlearn-dist").write_text(f'#!/bin/sh\nexec {sys.executable} -m graphlearn_dist "$@"\n')
    for program in programs.iterdir():
        program.chmod(0o755)
    (directory / "job.sbatch").write_text(
        f"#!/bin/bash\nexport PATH={programs}:$PATH PYTHONPATH={ROOT} OMP_NUM_THREADS=1\ncd {directory}\n{script}\n"
    )
    asked = ["--parsable", "--nodes=2", "--ntasks-per-node=1", f"--output={directory}/out", *options]
    return slurm(cluster, "sbatch", *asked, str(directory / "job.sbatch")).strip()


def slurm(cluster: SshCluster, *argv: str) -> str:
    return cluster.a.run("env", f"SLURM_CONF={cluster.directory}/slurm.conf", *argv)


def wait_until(holds: Callable[[], bool], what: Callable[[], str]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not holds():
        assert time.monotonic() < deadline, what()
        time.sleep(0.1)


def state_of(cluster: SshCluster, job: str) -> str:
    shown = slurm(cluster, "scontrol", "--oneliner", "show", "job", job)
    return shown.partition("JobState=")[2].split()[0]


@pytest.mark.parametrize("signal", ["TERM", ""], ids=["as before its time is up", "cancelled"])
def test_a_job_that_slurm_ends_leaves_nothing(signal: str, cluster: SshCluster, tmp_path: Path) -> None:
    make_partitions(tmp_path / "partitions", 2)
    (tmp_path / "train.py").write_text(TRAINER)
    job = submit(
        cluster,
        tmp_path,
        "exec graphlearn-dist launch --on ssh --data partitions --servers 2 --trainers 2 train.py",
    )
    said = tmp_path / "out"
    lines = [
        *(f"[launcher] server {rank} on {host} is ready" for rank, host in enumerate(NAMES)),
        *(f"[trainer {rank}] trains" for rank in range(2)),
    ]
    wait_until(lambda: said.exists() and all(line in said.read_text() for line in lines), lambda: said.read_text())
    assert cluster.b.commands()
    if signal:  # what `#SBATCH --signal=B:TERM@30` has Slurm do
        slurm(cluster, "scancel", "--batch", f"--signal={signal}", job)
    else:
        slurm(cluster, "scancel", job)
    wait_until(lambda: state_of(cluster, job) not in ("RUNNING", "COMPLETING"), lambda: state_of(cluster, job))
    wait_until(
        lambda: not cluster.a.commands() and not cluster.b.commands(),
        lambda: f"{cluster.a.commands()} {cluster.b.commands()}",
    )
    if signal:
        assert state_of(cluster, job) == "FAILED"  # with the launcher's code
        assert "[launcher]" in said.read_text()


def test_a_launcher_that_srun_starts_twice(cluster: SshCluster, tmp_path: Path) -> None:
    make_partitions(tmp_path / "partitions", 2)
    (tmp_path / "train.py").write_text(TRAINER)
    launch = "graphlearn-dist launch --on ssh --data partitions --servers 2 --trainers 2 train.py"
    job = submit(cluster, tmp_path, f"srun {launch}")
    wait_until(lambda: state_of(cluster, job) == "FAILED", lambda: state_of(cluster, job))
    assert (tmp_path / "out").read_text().count("expected to be started once, srun starts it 2 times") == 2
