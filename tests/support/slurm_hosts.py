"""Slurm on two hosts in namespaces: a controller on the first, a daemon and munge on each."""

from __future__ import annotations

import secrets
import shutil
import time
from pathlib import Path

from tests.support.hosts import DEADLINE_S, Host
from tests.support.ssh_hosts import NAMES, SshCluster

_PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "sinfo")
_SETTINGS = """ClusterName=namespaces
SlurmctldHost={controller}
SlurmUser=root
AuthType=auth/munge
CredType=cred/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/linear
ReturnToService=2
MpiDefault=none
StateSaveLocation={directory}/state
SlurmdSpoolDir={directory}/%h.spool
SlurmdPidFile=/run/slurmd.pid
SlurmctldPidFile=/run/slurmctld.pid
SlurmdLogFile={directory}/%h.slurmd.log
SlurmctldLogFile={directory}/slurmctld.log
NodeName={nodes} CPUs=1 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def missing_slurm() -> list[str]:
    """Programs of Slurm and munge that this machine does not have."""
    return [name for name in _PROGRAMS if not shutil.which(name)]


def start_slurm(cluster: SshCluster) -> Path:
    """Starts Slurm's daemons on both hosts, which end with these; returns when both nodes are idle.

    Returns:
        What ``SLURM_CONF`` names.
    """
    directory = cluster.directory
    settings = directory / "slurm.conf"
    settings.write_text(_SETTINGS.format(controller=NAMES[0], nodes=",".join(NAMES), directory=directory))
    key = directory / "munge.key"
    key.write_bytes(secrets.token_bytes(128))
    key.chmod(0o600)
    for host in (cluster.a, cluster.b):
        host.run("mkdir", "-p", "/run/munge", str(directory / "state"), str(directory / f"{host.name}.spool"))
        files = [f"--{kind}-file={directory}/{host.name}.munge.{kind}" for kind in ("log", "seed")]
        host.run("munged", "--force", f"--key-file={key}", "--pid-file=/run/munge/munged.pid", *files)
    cluster.a.run("slurmctld", "-f", str(settings))
    for host in (cluster.a, cluster.b):
        host.run("slurmd", "-f", str(settings))
    _wait_until_idle(cluster.a, settings)
    return settings


def _wait_until_idle(host: Host, settings: Path) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while True:
        states = host.run("env", f"SLURM_CONF={settings}", "sinfo", "--noheader", "--Node", "--format=%t").split()
        if states == ["idle"] * len(NAMES):
            return
        if time.monotonic() > deadline:
            raise RuntimeError(f"Slurm's nodes are {states} after {DEADLINE_S:g} s")
        time.sleep(0.1)
