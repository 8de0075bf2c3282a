"""docs/cluster.md, as printed, on two hosts."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.processes import ROOT
from tests.support.slurm_hosts import missing_slurm, start_slurm
from tests.support.ssh_hosts import ssh_cluster, why_not

DEADLINE_S = 300.0  # only ever reached by a hang
# What Slurm does with a script, but for the nodes, which are given: where Slurm is not installed.
SBATCH = """#!/bin/sh
export SLURM_JOB_NODELIST=node-a,node-b SLURM_JOB_NUM_NODES=2
shift
exec bash "$@" > slurm-1.out 2>&1
"""
_BLOCK = re.compile(
    r"^```(?P<kind>sh|hosts|python|bash)(?: (?P<name>\S+))?\n(?P<text>.*?)^```$", re.DOTALL | re.MULTILINE
)


@pytest.mark.thorough
def test_the_example_as_printed(tmp_path: Path) -> None:
    if reason := why_not():
        pytest.skip(reason)
    pytest.importorskip("torch_geometric")
    blocks = list(_BLOCK.finditer((ROOT / "docs" / "cluster.md").read_text()))
    for block in blocks:
        if block["kind"] != "sh":
            (tmp_path / (block["name"] or block["kind"])).write_text(block["text"])
    commands = "".join(block["text"] for block in blocks if block["kind"] == "sh")
    with ssh_cluster() as cluster:
        programs = tmp_path / "bin"
        programs.mkdir()
        (programs / "ssh").write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {cluster.directory}/ssh_config "$@"\n')
        (programs / "graphlearn-dist").write_text(f'#!/bin/sh\nexec {sys.executable} -m graphlearn_dist "$@"\n')
        (programs / "python").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
        settings = ""
        if missing_slurm():
            (programs / "sbatch").write_text(SBATCH)
        else:
            settings = f"SLURM_CONF={start_slurm(cluster)}"
        for program in programs.iterdir():
            program.chmod(0o755)
        environ = f"PATH={programs}:$PATH PYTHONPATH={ROOT} OMP_NUM_THREADS=1 {settings}"
        script = f"cd {tmp_path}\nexport {environ}\nset -e\n{commands}"
        done = subprocess.run(
            cluster.a.command("sh", "-c", script),
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            stdin=subprocess.DEVNULL,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        left = [*cluster.a.commands().values(), *cluster.b.commands().values()]
    assert left == []
    _check_job(done.stdout.splitlines(), tmp_path / "logs")
    _check_job((tmp_path / "slurm-1.out").read_text().splitlines(), tmp_path / "slurm-logs")


def _check_job(lines: list[str], logs: Path) -> None:
    for rank, host in enumerate(("node-a", "node-b")):
        assert f"[launcher] server {rank} on {host} is ready" in lines
        assert len([line for line in lines if re.match(rf"\[trainer {rank}\] epoch [01]: loss \d", line)]) == 2
        log = (logs / f"server-{rank}.log").read_text()
        assert f"server {rank} of 2 listens at 0.0.0.0:" in log
        assert f"serves partition {rank} of 2" in log
        for client in (0, 1):
            assert re.search(rf"client {client} \(pid \d+ on node-[ab]\) has come", log)
    assert "server 1 on node-b is ready" in (logs / "launcher.log").read_text()
